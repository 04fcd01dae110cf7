"""Hazards between timelines: what waits keep in order, the memory shows.

The operation that must come first is held back by a gate, so that a device which forgets the wait
of the second one runs it too early for certain.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hal.core.values import Buffer, Point, Timeline, Waits
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.additions import COUNT, add_number, number_type
from hal_conformance.case import Cases, Level
from hal_conformance.rig import Rig
from hal_conformance.steps import (
    QUIET_S,
    element,
    lines,
    mix,
    pair,
    stamp,
    turn,
    turned,
    up_to,
    work,
)

order_hazards = Cases("F", Level.ASYNC)

SIZE = 32
Submit = Callable[[Timeline, Waits], Point]


def _noise(rig: Rig) -> bytes:
    return rig.noise(SIZE)


def _writer(rig: Rig, kind: str, target: Buffer, byte: int) -> tuple[Submit, bytes]:
    """An operation that writes the target, and what it writes."""
    new = bytes([byte]) * SIZE
    device = rig.device
    if kind == "fill":
        return lambda line, waits: device.fill(target.region(), new[:1], line, waits), new
    if kind == "copy":
        source = rig.buffer(new)
        return lambda line, waits: device.copy(target.region(), source.region(), line, waits), new
    return lambda line, waits: device.copy(target.region(), new, line, waits), new


def _reader(rig: Rig, kind: str, source: Buffer) -> tuple[Submit, Callable[[], bytes]]:
    """An operation that reads the source, and what it read."""
    device = rig.device
    if kind == "copy":
        spy = rig.buffer(SIZE)
        move: Submit = lambda line, waits: device.copy(spy.region(), source.region(), line, waits)
        return move, lambda: rig.read(spy)
    host = bytearray(SIZE)
    return lambda line, waits: device.copy(host, source.region(), line, waits), lambda: bytes(host)


def _in_order(rig: Rig, first: Submit, second: Submit) -> None:
    """Submit both on two timelines, the second after the first, which a gate holds back."""
    line, other = pair(rig)
    gate = rig.gate()
    before = first(line, (gate.point,))
    after = second(other, (before,))
    rig.device.wait([after], QUIET_S / 4, True)
    gate.open()
    rig.done(after)


@order_hazards.case(
    "read-after-write",
    "submit.waits",
    write=("fill", "copy", "copy-in"),
    read=("copy", "copy-out"),
)
def _(rig: Rig, write: str, read: str) -> None:
    cell = rig.buffer(_noise(rig))
    first, new = _writer(rig, write, cell, 7)
    second, found = _reader(rig, read, cell)
    _in_order(rig, first, second)
    expect.same_bytes(found(), new, f"what a {read} read after a {write}")


@order_hazards.case(
    "write-after-read",
    "submit.waits",
    read=("copy", "copy-out"),
    write=("fill", "copy", "copy-in"),
)
def _(rig: Rig, read: str, write: str) -> None:
    old = _noise(rig)
    cell = rig.buffer(old)
    first, found = _reader(rig, read, cell)
    second, new = _writer(rig, write, cell, 7)
    _in_order(rig, first, second)
    expect.same_bytes(found(), old, f"what a {read} read before a {write}")
    expect.same_bytes(rig.read(cell), new, "what was written afterwards")


@order_hazards.case(
    "write-after-write",
    "submit.waits",
    first=("fill", "copy", "copy-in"),
    second=("fill", "copy", "copy-in"),
)
def _(rig: Rig, first: str, second: str) -> None:
    cell = rig.buffer(_noise(rig))
    early, _ = _writer(rig, first, cell, 7)
    late, new = _writer(rig, second, cell, 9)
    _in_order(rig, early, late)
    expect.same_bytes(rig.read(cell), new, f"a cell after a {first} and then a {second}")


@order_hazards.case("kernel-after-copy-in", "submit.waits")
def _(rig: Rig) -> None:
    dtype = element(rig, ints=True)
    cell = rig.buffer(bytes(8 * dtype.nbytes))
    data = rig.random.integers(0, 99, 8).astype(NUMPY[dtype])
    bound = rig.device.bind(rig.program(turn(dtype)), (cell, 5))
    _in_order(
        rig,
        lambda line, waits: rig.device.copy(cell.region(), data.tobytes(), line, waits),
        lambda line, waits: rig.device.launch(bound, (1, 1, 1), line, waits),
    )
    expect.same(rig.array(cell, dtype), turned(data, [5]), "the kernel's result")


@order_hazards.case("copy-out-after-kernel", "submit.waits")
def _(rig: Rig) -> None:
    dtype = element(rig, ints=True)
    data = rig.random.integers(0, 99, 8).astype(NUMPY[dtype])
    cell, host = rig.buffer(data), bytearray(data.nbytes)
    bound = rig.device.bind(rig.program(turn(dtype)), (cell, 3))
    _in_order(
        rig,
        lambda line, waits: rig.device.launch(bound, (1, 1, 1), line, waits),
        lambda line, waits: rig.device.copy(host, cell.region(), line, waits),
    )
    expect.same_bytes(bytes(host), turned(data, [3]).tobytes(), "the copy of the result")


@order_hazards.case("kernel-after-kernel", "submit.waits")
def _(rig: Rig) -> None:
    dtype = element(rig, ints=True)
    data = rig.random.integers(0, 99, 8).astype(NUMPY[dtype])
    cell, program = rig.buffer(data), rig.program(turn(dtype))
    one, two = (rig.device.bind(program, (cell, k)) for k in (1, 2))
    _in_order(
        rig,
        lambda line, waits: rig.device.launch(one, (1, 1, 1), line, waits),
        lambda line, waits: rig.device.launch(two, (1, 1, 1), line, waits),
    )
    expect.same(rig.array(cell, dtype), turned(data, [1, 2]), "two kernels in order")


@order_hazards.case("kernel-before-its-input-changes", "submit.waits")
def _(rig: Rig) -> None:
    dtype = element(rig, ints=True)
    a, b = (rig.random.integers(0, 99, 8).astype(NUMPY[dtype]) for _ in range(2))
    left, right, out = rig.buffer(a), rig.buffer(b), rig.buffer(a.nbytes)
    bound = rig.device.bind(rig.program(mix(dtype)), (left, right, out, 4))
    _in_order(
        rig,
        lambda line, waits: rig.device.launch(bound, (1, 1, 1), line, waits),
        lambda line, waits: rig.device.fill(left.region(), b"\0", line, waits),
    )
    expect.same(rig.array(out, dtype), a * 3 + b + 4, "the kernel's result")


@order_hazards.case("chain-over-timelines", "submit.waits")
def _(rig: Rig) -> None:
    held = up_to(rig, 8)
    data, gate = rig.noise(16), rig.gate()
    chain = [rig.buffer(data), *(rig.buffer(bytes(16)) for _ in range(60))]
    point = gate.point
    for index, (to, of) in enumerate(zip(chain[1:], chain, strict=False)):
        line = held[index % len(held)]
        point = rig.device.copy(to.region(), of.region(), line, (point,))
    expect.that(rig.pending(point), "the end of the chain waits")
    gate.open()
    rig.done(point)
    expect.same_bytes(rig.read(chain[-1]), data, "the end of a chain over timelines")


@order_hazards.case("chain-of-a-thousand", "submit.waits")
def _(rig: Rig) -> None:
    held = pair(rig)
    gate, buffer = rig.gate(), rig.buffer(8)
    point = gate.point
    for number in range(1, 1001):
        pattern = number.to_bytes(8, "little")
        point = rig.device.fill(buffer.region(), pattern, held[number % 2], (point,))
    gate.open()
    rig.done(point)
    expect.equal(int.from_bytes(rig.read(buffer), "little"), 1000, "the last pattern")


@order_hazards.case("fan-out", "submit.waits")
def _(rig: Rig) -> None:
    first, *held = up_to(rig, 9)
    gate, cell = rig.gate(), rig.buffer(bytes(SIZE))
    root = rig.device.fill(cell.region(), b"\5", first, (gate.point,))
    spies = [rig.buffer(bytes(SIZE)) for _ in held]
    points = [
        rig.device.copy(spy.region(), cell.region(), line, (root,))
        for spy, line in zip(spies, held, strict=True)
    ]
    gate.open()
    for point in points:
        rig.done(point)
    for spy in spies:
        expect.same_bytes(rig.read(spy), b"\5" * SIZE, "a branch of the fan")


@order_hazards.case("fan-in", "submit.waits")
def _(rig: Rig) -> None:
    last, *held = up_to(rig, 9)
    gates, cell, spy = [rig.gate() for _ in held], rig.buffer(bytes(len(held))), rig.buffer(9)
    points = [
        rig.device.fill(cell.region(i, 1), bytes([i + 1]), line, (gates[i].point,))
        for i, line in enumerate(held)
    ]
    found = spy.region(0, cell.nbytes)
    end = rig.device.copy(found, cell.region(), last, points)
    for i in rig.random.permutation(len(held)):
        expect.that(rig.pending(end), "the end waits for every branch")
        gates[i].open()
        rig.done(points[i])
    rig.done(end)
    expect.same_bytes(rig.read(found), bytes(range(1, len(held) + 1)), "what the end saw")


@order_hazards.case("diamond", "submit.waits", held=("left", "right"))
def _(rig: Rig, held: str) -> None:
    top, left, right, bottom = lines(rig, 4)
    gate, cell, spy = rig.gate(), rig.buffer(bytes(16)), rig.buffer(16)
    root = rig.device.fill(cell.region(), b"\1", top, ())
    halves = {"left": (left, 0), "right": (right, 8)}
    ends = [
        rig.device.fill(
            cell.region(offset, 8), b"\2", line, (root, gate.point) if side == held else (root,)
        )
        for side, (line, offset) in halves.items()
    ]
    end = rig.device.copy(spy.region(), cell.region(), bottom, ends)
    rig.device.wait([end], QUIET_S / 2, True)
    gate.open()
    rig.done(end)
    expect.same_bytes(rig.read(spy), b"\2" * 16, "what the end of the diamond saw")


@order_hazards.case("host-between-two-timelines", "submit.waits", "wait.true")
def _(rig: Rig) -> None:
    line, other = pair(rig)
    cell, spy = rig.buffer(bytes(8)), rig.buffer(8)
    for number in range(1, 50):
        pattern = number.to_bytes(8, "little")
        rig.done(rig.device.fill(cell.region(), pattern, line, ()))
        rig.done(rig.device.copy(spy.region(), cell.region(), other, ()))
        expect.same_bytes(rig.read(spy), pattern, f"what round {number} copied")


@order_hazards.case("ping-pong-of-timelines", "submit.waits")
def _(rig: Rig) -> None:
    line, other = pair(rig)
    gate, cell, log = rig.gate(), rig.buffer(bytes(4)), rig.buffer(bytes(400))
    point = gate.point
    for number in range(100):
        point = rig.device.fill(cell.region(), bytes([number]), line, (point,))
        point = rig.device.copy(log.region(4 * number, 4), cell.region(), other, (point,))
    gate.open()
    rig.done(point)
    expect.same_bytes(rig.read(log), bytes(n for n in range(100) for _ in range(4)), "the log")


@order_hazards.case("ping-pong-of-host-and-device", "submit.waits", "signal.wakes")
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    host, fill = rig.device.create_timeline(True), work(rig, "fill")
    for number in range(1, 201):
        point = fill.submit(line, (Point(host, number),))
        expect.that(rig.pending(point), "the device waits for the host")
        rig.device.signal(host, number, None)
        rig.done(point)


@order_hazards.case("free-before-it-runs", "free.deferred", what=("source", "target"))
def _(rig: Rig, what: str) -> None:
    line, other = pair(rig)
    data, gate = _noise(rig), rig.gate()
    source, between, spy = rig.buffer(data), rig.buffer(bytes(SIZE)), rig.buffer(bytes(SIZE))
    first = rig.device.copy(between.region(), source.region(), line, (gate.point,))
    last = rig.device.copy(spy.region(), between.region(), other, (first,))
    rig.device.free(source if what == "source" else between)
    squatters = [rig.buffer(b"\xee" * SIZE) for _ in range(8)]
    gate.open()
    rig.done(last)
    expect.same_bytes(rig.read(spy), data, f"a copy whose {what} was freed before it ran")
    for squatter in squatters:
        expect.same_bytes(rig.read(squatter), b"\xee" * SIZE, "a buffer made after the free")


@order_hazards.case("free-program-before-it-runs", "free.deferred")
def _(rig: Rig) -> None:
    dtype = element(rig)
    (line,) = lines(rig, 1)
    gate, cell = rig.gate(), rig.buffer(bytes(8 * dtype.nbytes))
    program = rig.program(stamp(dtype))
    bound = rig.device.bind(program, (cell,))
    point = rig.device.launch(bound, (1, 1, 1), line, (gate.point,))
    rig.device.free(bound)
    rig.device.free(program)
    gate.open()
    rig.done(point)
    expect.that(any(rig.read(cell)), "the launch ran after its program was freed")


@order_hazards.case("free-timeline-with-work", "free.deferred")
def _(rig: Rig) -> None:
    line, other = pair(rig)
    gate, one, late = rig.gate(), work(rig, "fill"), work(rig, "copy")
    point = late.submit(other, (one.submit(line, (gate.point,)),))
    rig.device.free(line)
    expect.that(rig.pending(point), "the work of a freed timeline still waits")
    gate.open()
    rig.done(point)
    expect.equal(one.ran(), True, "whether the work of a freed timeline ran")


@order_hazards.case(
    "launch-between-large-copies",
    "submit.order",
    "submit.waits",
    nbytes=(1 << 16, (1 << 18) + 64, 1 << 20, (4 << 20) + 64),
    by=("order", "waits"),
)
def _(rig: Rig, nbytes: int, by: str) -> None:
    """A launch sees the end of a copy that takes long, and a copy out sees what the launch wrote:
    an engine that copies past the queue must have been waited for. Nothing else is between them."""
    if nbytes > rig.info.limits.alloc_nbytes:
        raise expect.Unfit(f"the device has no buffer of {nbytes} bytes")
    kind = number_type(rig)
    dtype = np.dtype(NUMPY[kind])
    old = np.zeros(nbytes // kind.nbytes, dtype)
    buffer, program = rig.buffer(old), rig.program(add_number(rig, 9))
    tail = COUNT * kind.nbytes
    bound = rig.device.bind(program, (buffer.region(nbytes - tail, tail),))
    line, other = pair(rig)
    queue = line if by == "order" else other
    what = f"{nbytes} bytes copied in, of which a launch raised the last {COUNT} elements"
    for _ in range(3):
        new = rig.random.integers(0, 40, old.size).astype(dtype)
        host = bytearray(nbytes)
        copied = rig.device.copy(buffer.region(), new.tobytes(), line, ())
        ran = rig.device.launch(bound, (1, 1, 1), queue, () if by == "order" else (copied,))
        end = rig.device.copy(host, buffer.region(), line, () if by == "order" else (ran,))
        rig.done(end)
        new[-COUNT:] += dtype.type(9)
        expect.same_bytes(bytes(host), new.tobytes(), what)


@order_hazards.case("timelines-in-turns", "submit.waits", second=("copy", "launch"), rounds=(1, 4))
def _(rig: Rig, second: str, rounds: int) -> None:
    """Two timelines wait for each other in turns: a wait is no less one because the timeline that
    is waited for has itself waited for this one."""
    line, other = pair(rig)
    kind = number_type(rig)
    zeros = np.zeros(COUNT, NUMPY[kind])
    x, spy, nbytes = rig.buffer(zeros), rig.buffer(zeros), COUNT * kind.nbytes
    bound = rig.device.bind(rig.program(add_number(rig, 1)), (x,))
    for number in range(rounds):
        given = (zeros + zeros.dtype.type(10 * number + 5)).tobytes()
        gate, host = rig.gate(), bytearray(nbytes)
        begun = rig.device.copy(x.region(), given, line, ())
        waits = (begun, gate.point)
        if second == "copy":
            given = (zeros + zeros.dtype.type(10 * number + 6)).tobytes()
            changed = rig.device.copy(x.region(), given, other, waits)
        else:
            changed = rig.device.launch(bound, (1, 1, 1), other, waits)
        read = rig.device.copy(spy.region(), x.region(), line, (changed,))
        end = rig.device.copy(host, spy.region(), line, ())
        rig.device.wait([read], QUIET_S / 4, True)
        gate.open()
        rig.done(end)
        wanted = (zeros + zeros.dtype.type(10 * number + 6)).tobytes()
        text = f"what a copy read that waited for a {second} of a timeline that had waited for it"
        expect.same_bytes(bytes(host), wanted, text)
