"""Order where there is much of it: many waits, points, commands and values, and large transfers."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.errors import Failure, FailureKind, HalError, OperationFailed, Scope, StaleHandle
from hal.core.values import Command, CopyCommand, FillCommand, LaunchCommand, Point, Timeline, Waits
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.cases.kernels_grid import touch
from hal_conformance.held import used
from hal_conformance.kernels import need
from hal_conformance.rig import Gate, Rig
from hal_conformance.steps import (
    KINDS,
    LONG_S,
    QUIET_S,
    cells,
    element,
    lines,
    pair,
    some,
    still,
    turn,
    turned,
    work,
)

order_sizes = Cases("F", Level.ASYNC)

MIB = 1 << 20
HELD_S = 3.0
COUNTS = (65, 257, 1025)
"""One beyond the powers of two at which lists and masks end."""
VALUES = (1 << 8, 1 << 16, 1 << 31, 1 << 32, 1 << 48)


@order_sizes.case("waits-beyond", "submit.waits", kind=KINDS, count=COUNTS)
def _(rig: Rig, kind: str, count: int) -> None:
    """An operation of each kind waits for each of so many points: the last one, and one in their
    midst."""
    one, device = work(rig, kind), rig.device
    for place in (count - 1, int(rig.random.integers(count // 2, count - 1))):
        (line,) = lines(rig, 1)
        opened, kept = rig.gate(), rig.gate()
        opened.open()
        waits = [opened.point] * count
        waits[place] = kept.point
        point = one.submit(line, waits)
        still(rig, point, f"a {kind} of which wait {place} of {count} is open")
        kept.open()
        rig.done(point)
        device.free(line)


@order_sizes.case("failed-wait-beyond", "submit.poisoned", "submit.fails", kind=KINDS)
def _(rig: Rig, kind: str) -> None:
    """One failed wait of many, before the operation is submitted or behind that, fails it."""
    one, device = work(rig, kind), rig.device
    failure = Failure(FailureKind.ABORTED, Scope.OPERATION, rig.name, "signal", "planted")
    for count, is_before in itertools.product((2, *COUNTS[:2]), (True, False)):
        (line,) = lines(rig, 1)
        opened, failing = rig.gate(), rig.gate()
        opened.open()
        waits = [opened.point] * count
        waits[count - 1] = failing.point
        if is_before:
            failing.fail(failure)
        point = one.submit(line, waits)
        if not is_before:
            failing.fail(failure)
        when = "before" if is_before else "behind"
        what = f"a {kind} of which wait {count} of {count} failed {when} its submission"
        expect.equal(rig.failed(point), failure, f"the failure of {what}")
        expect.equal(one.ran(), False, f"whether {what} ran")
        with contextlib.suppress(StaleHandle):  # where it is the rig's, too, it is freed already
            device.free(line)
        for gate in (opened, failing):
            device.free(gate.timeline)


@order_sizes.case("submits-at-once", "submit.async", kind=KINDS)
def _(rig: Rig, kind: str) -> None:
    """A submission returns while what it waits for is held back, which ends only then, or when
    that has taken too long."""
    one, (line,), gate = work(rig, kind), lines(rig, 1), rig.gate()
    returned, late = threading.Event(), []

    def hold() -> None:
        if not returned.wait(HELD_S):
            late.append(HELD_S)
        gate.open()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    point = one.submit(line, (gate.point,))
    returned.set()
    thread.join(LONG_S)
    text = f"the submission of a {kind} did not return in {HELD_S} s, while its wait was held back"
    expect.that(not late, text)
    rig.done(point)


@order_sizes.case("held-for-seconds", "submit.waits", "wait.true", "wait.deadline")
def _(rig: Rig) -> None:
    """What waits for a gate goes on waiting, on the device and on the host, however long it
    takes: nothing gives up after a time of its own."""
    gate, found, held = rig.gate(), [], []
    for kind, line in zip(_had(rig, KINDS), itertools.cycle(some(rig, len(KINDS)))):
        one = work(rig, kind)
        held.append((kind, one, one.submit(line, (gate.point,))))

    def wait() -> None:
        with contextlib.suppress(HalError):  # the case has failed, and the device is closed
            found.append(rig.device.wait([gate.point], HELD_S + LONG_S, True))

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    begin_s = time.monotonic()
    reached = rig.device.wait([point for _, _, point in held], HELD_S, False)
    expect.equal(reached, False, f"a wait of {HELD_S} s for any operation behind a gate")
    took_s = time.monotonic() - begin_s
    expect.that(took_s > 0.99 * HELD_S, f"a wait of {HELD_S} s gave up after {took_s:.2f} s")
    for kind, one, _ in held:
        text = f"a {kind} ran within {HELD_S} s, before the gate for which it waits opened"
        expect.that(not one.ran(), text)
    expect.that(not found, f"a wait for a gate ended within {HELD_S} s, before that opened")
    gate.open()
    for _, _, point in held:
        rig.done(point)
    waiter.join(LONG_S)
    expect.equal(found, [True], f"what a wait gave for a gate that opened after {HELD_S} s")


def _had(rig: Rig, kinds: Sequence[str]) -> Iterator[str]:
    """The kinds of operations that the device has."""
    for kind in kinds:
        with contextlib.suppress(expect.Unfit):
            work(rig, kind)
            yield kind


@order_sizes.case("points-beyond", "wait.true", count=COUNTS, wait_all=(True, False))
def _(rig: Rig, count: int, wait_all: bool) -> None:
    """A wait looks at the last of so many points."""
    gates = [rig.gate() for _ in range(count)]
    points = _points(gates)
    if wait_all:
        for gate in gates[:-1]:
            gate.open()
    reached = rig.device.wait(points, QUIET_S, wait_all)
    expect.equal(reached, False, f"a wait for {count} points before the last is there")
    gates[-1].open()
    reached = rig.device.wait(points, LONG_S, wait_all)
    expect.equal(reached, True, f"a wait for {count} points of which the last was reached")


@order_sizes.case("failed-point-beyond", "wait.raises", count=COUNTS, wait_all=(True, False))
def _(rig: Rig, count: int, wait_all: bool) -> None:
    """A wait for so many points raises where the last one fails: the others are reached where it
    waits for all, and none of them where it waits for any."""
    gates = [rig.gate() for _ in range(count)]
    if wait_all:
        for gate in gates[:-1]:
            gate.open()
    failure = Failure(FailureKind.ABORTED, Scope.OPERATION, rig.name, "signal", "planted")
    gates[-1].fail(failure)
    error = expect.raises(OperationFailed, rig.device.wait, _points(gates), LONG_S, wait_all)
    expect.equal(error.failure, failure, f"the failure of the last of {count} points")


def _points(gates: Sequence[Gate]) -> list[Point]:
    return [gate.point for gate in gates]


@order_sizes.case(
    "graph-beyond", "replay.same", "record.order", needs=(Feature.GRAPH,), count=(71, 263, 1031)
)
def _(rig: Rig, count: int) -> None:
    """Launches, fills and copies: every command of a long graph runs, in its order."""
    dtype = element(rig, ints=True)
    (cell,), (array,) = cells(rig, dtype, 1)
    program, marks = rig.program(turn(dtype)), rig.buffer(bytes(8 * count))
    source = rig.buffer(np.arange(1, count + 1))
    commands: list[Command] = []
    launches = 0
    for i in range(count):
        place = marks.region(8 * i, 8)
        if i % 3 == 0:
            commands.append(
                LaunchCommand(rig.device.bind(program, (cell, launches % 7)), (1, 1, 1))
            )
            launches += 1
        elif i % 3 == 1:
            commands.append(FillCommand(place, int(i + 1).to_bytes(8, "little")))
        else:
            commands.append(CopyCommand(place, source.region(8 * i, 8)))
    rig.done(rig.device.replay(rig.device.record(commands), (), rig.timeline(), ()))
    numbers = np.arange(1, count + 1)
    numbers[::3] = 0
    found = np.frombuffer(rig.read(marks), np.int64)
    expect.same(found, numbers, f"the marks of the {count} commands of a graph")
    wanted = turned(array, [i % 7 for i in range(launches)])
    expect.same(rig.array(cell, dtype), wanted, f"a cell after the {launches} launches of a graph")


@order_sizes.case(
    "signal-beyond", "wait.true", "signal.wakes", "submit.waits", kind=KINDS, value=VALUES
)
def _(rig: Rig, kind: str, value: int) -> None:
    """Values of a host-driven timeline compare as whole numbers, on both sides of a power of
    two."""
    gate, (line,) = rig.device.create_timeline(True), lines(rig, 1)
    for reached in (value - 1, value, value + 1):
        waiting = work(rig, kind).submit(line, (Point(gate, reached),))
        rig.device.signal(gate, reached - 1, None)
        still(rig, waiting, f"a {kind} that waits for the value {reached}, at {reached - 1},")
        rig.device.signal(gate, reached, None)
        rig.done(waiting)
        expect.that(rig.pending(Point(gate, reached + 1)), f"value {reached + 1} is not reached")
        for earlier in (1, reached - 1):
            expect.that(not rig.pending(Point(gate, earlier)), f"value {earlier} stays reached")
        gate, (line,) = rig.device.create_timeline(True), lines(rig, 1)


@order_sizes.case("values-beyond-16-bits", "timeline.values", "wait.true", timeout_s=60)
def _(rig: Rig) -> None:
    """More operations on one timeline than a short counter has values. Nothing is checked between
    the case and the plugin, which would take longer than the operations."""
    count, device = (1 << 16) + 3, rig.open(wrappers=())
    (line,), end_s = lines(rig, 1, device), time.monotonic() + 20
    fill, gate = work(rig, "fill", device), rig.gate(device)
    point = fill.submit(line, ())
    while point.value < count - 2:
        if time.monotonic() > end_s:
            raise expect.Unfit(f"{count} operations take the device more than 20 s")
        point = fill.submit(line, ())
        if not point.value % 4096:
            rig.done(point, device)
    rig.done(point, device)
    behind = [fill.submit(line, (gate.point,)) for _ in range(2)]
    expect.equal(behind[-1].value, count, "the value of the last operation")
    for late in behind:
        text = f"value {late.value} was reached before its operation ran"
        expect.that(rig.pending(late, device), text)
    gate.open()
    rig.done(behind[-1], device)


@order_sizes.case(
    "large-after-write", "submit.waits", mib=(1, 2, 9, 33), read=("copy", "copy-out", "launch")
)
def _(rig: Rig, mib: int, read: str) -> None:
    """What reads much waits for what writes it, on another timeline and held back by a gate."""
    nbytes, device = mib * MIB, rig.device
    if nbytes > device.info.limits.alloc_nbytes // 4:
        raise expect.Unfit(f"the device has no two buffers of {mib} MiB")
    source, (line, other), gate = rig.buffer(nbytes), pair(rig), rig.gate()
    rig.done(device.fill(source.region(), b"\x11", line, ()))
    held, late = _held_by(gate, line, other)
    first = device.fill(source.region(), b"\x22", line, held)
    if read == "launch":
        dtype = element(rig, ints=True)
        width = 8 * dtype.nbytes
        bound = device.bind(rig.program(turn(dtype)), (source.region(nbytes - width, width), 0))
        second = device.launch(bound, (1, 1, 1), other, (first, *late))
        found: Callable[[], bytes] = lambda: rig.read(source.region(nbytes - width, width))
        written = np.frombuffer(b"\x22" * width, NUMPY[dtype])
        wanted = turned(written, [0]).tobytes()
    elif read == "copy":
        target = rig.buffer(nbytes)
        second = device.copy(target.region(), source.region(), other, (first, *late))
        found, wanted = lambda: rig.read(target), b"\x22" * nbytes
    else:
        host = bytearray(nbytes)
        second = device.copy(host, source.region(), other, (first, *late))
        found, wanted = lambda: bytes(host), b"\x22" * nbytes
    still(rig, second, f"a {read} of {mib} MiB that waits for a fill behind a gate")
    gate.open()
    rig.done(second)
    expect.same_bytes(found(), wanted, f"what a {read} of {mib} MiB read after a fill")


@order_sizes.case(
    "large-before-write", "submit.waits", mib=(1, 2, 9, 33), write=("fill", "copy-in")
)
def _(rig: Rig, mib: int, write: str) -> None:
    """What writes much waits for what reads it."""
    nbytes, device = mib * MIB, rig.device
    if nbytes > device.info.limits.alloc_nbytes // 4:
        raise expect.Unfit(f"the device has no two buffers of {mib} MiB")
    source, target, (line, other) = rig.buffer(nbytes), rig.buffer(nbytes), pair(rig)
    rig.done(device.fill(source.region(), b"\x11", line, ()))
    gate = rig.gate()
    held, late = _held_by(gate, line, other)
    first = device.copy(target.region(), source.region(), line, held)
    if write == "fill":
        second = device.fill(source.region(), b"\x22", other, (first, *late))
    else:
        second = device.copy(source.region(), b"\x22" * nbytes, other, (first, *late))
    still(rig, second, f"a {write} of {mib} MiB that waits for a copy behind a gate")
    gate.open()
    rig.done(second)
    expect.same_bytes(rig.read(target), b"\x11" * nbytes, f"a copy before a {write} of {mib} MiB")


def _held_by(gate: Gate, line: Timeline, other: Timeline) -> tuple[Waits, Waits]:
    """What the first of two operations waits for, and what the second one waits for besides the
    first: on one timeline it is the second's own wait that must hold it."""
    return ((gate.point,), ()) if other is not line else ((), (gate.point,))


@order_sizes.case("large-launch", "submit.waits", "launch.grid", instances=(2, 65, 301, 1025, 4097))
def _(rig: Rig, instances: int) -> None:
    """A launch of many instances waits, too, and what waits for it comes behind all of them."""
    need(rig, DType.I32)
    count = min(instances, rig.info.limits.grid[0])
    line, other = pair(rig)
    total, gate, host = rig.buffer(np.zeros(1, np.int32)), rig.gate(), bytearray(4)
    bound = rig.device.bind(rig.program(touch()), (total,))
    point = rig.device.launch(bound, (count, 1, 1), line, (gate.point,))
    after = rig.device.copy(host, total.region(), other, (point,))
    still(rig, point, f"a launch of {count} instances that waits for a gate")
    expect.same(rig.array(total, DType.I32), np.zeros(1, np.int32), "what a launch that waits did")
    gate.open()
    rig.done(after)
    expect.equal(int.from_bytes(host, "little"), count, f"instances before what waits for {count}")


@order_sizes.case(
    "large-graph", "submit.waits", "replay.same", needs=(Feature.GRAPH,), count=(2, 65, 301, 1025)
)
def _(rig: Rig, count: int) -> None:
    """A replay of many commands waits, too, and what waits for it comes behind all of them."""
    line, other = pair(rig)
    marks, gate, host = rig.buffer(bytes(count)), rig.gate(), bytearray(count)
    graph = rig.device.record([FillCommand(marks.region(i, 1), b"\1") for i in range(count)])
    point = rig.device.replay(graph, (), line, (gate.point,))
    after = rig.device.copy(host, marks.region(), other, (point,))
    still(rig, point, f"a replay of {count} commands that waits for a gate")
    expect.same_bytes(rig.read(marks), bytes(count), "what a replay that waits did")
    gate.open()
    rig.done(after)
    expect.same_bytes(bytes(host), b"\1" * count, f"what waits for a replay of {count} commands")


GROWTH_NBYTES = 6 << 20
OFTEN = 10_000
_WARM = OFTEN // 4
_MOST_S = 3.0


def _growing(rig: Rig) -> dict[str, Callable[[], object]]:
    """One of each kind, which leaves nothing behind."""
    device, line, fill = rig.device, rig.timeline(), work(rig, "fill")
    dtype = element(rig)
    cell = rig.buffer(8 * dtype.nbytes)
    program = rig.program(turn(dtype))
    bound, host = device.bind(program, (cell, 0)), bytearray(16)

    def timeline() -> None:
        rig.give_up(device)  # it may be the only one
        one = device.create_timeline(False)
        rig.done(fill.submit(one, ()))
        device.free(one)

    def gate() -> None:
        one = rig.gate()
        one.open()
        device.free(one.timeline)

    kinds: dict[str, Callable[[], object]] = {
        "launch": lambda: device.launch(bound, (1, 1, 1), line, ()),
        "copy": lambda: device.copy(host, cell.region(0, 16), line, ()),
        "fill": lambda: device.fill(cell.region(), b"\0", line, ()),
        "bind": lambda: device.free(device.bind(program, (cell, 1))),
        "alloc": lambda: device.free(rig.buffer(4096)),
        "timeline": timeline,
        "gate": gate,
        "wait": lambda: device.wait([Point(line, 0)], 0, True),
        "health": device.health,
        "describe": device.describe,
    }
    source = rig.source(turn(dtype))
    kinds["load"] = lambda: device.free(device.load(source))
    if Feature.HOST_CALL in rig.info.features:
        kinds["host_call"] = lambda: rig.done(device.host_call(lambda: None, line, ()))
    if Feature.GRAPH in rig.info.features:
        graph = device.record([LaunchCommand(bound, (1, 1, 1))])
        kinds["record"] = lambda: device.free(device.record([FillCommand(cell.region(), b"\0")]))
        kinds["replay"] = lambda: device.replay(graph, (), line, ())
    if Feature.STATS in rig.info.features:
        kinds["stats"] = lambda: device.stats("")
    if Feature.TIMESTAMPS in rig.info.features:
        reached = fill.submit(line, ())
        rig.done(reached)
        kinds["timestamps"] = lambda: device.timestamps(reached)
    seen = [space.name for space in rig.info.spaces if space.host_visible and space.coherent]
    if Feature.MAP in rig.info.features and seen:
        shown = rig.buffer(4096, space=seen[0])
        kinds["map"] = lambda: device.map(shown.region(), True)
    if Feature.IMPORT_HOST in rig.info.features:
        kinds["import_host"] = lambda: device.free(device.import_host(memoryview(bytearray(4096))))
    return kinds


GROWN = (
    "launch", "copy", "fill", "bind", "alloc", "timeline", "gate", "wait", "health", "describe",
    "host_call", "record", "replay", "load", "map", "import_host", "stats", "timestamps",
)  # fmt: skip


@order_sizes.case("grows-not", "free.returns", "open.leaks", kind=GROWN, timeout_s=60)
def _(rig: Rig, kind: str) -> None:
    """Ten thousand of a kind leave no memory behind, or as many as a few seconds allow."""
    kinds = _growing(rig)
    if kind not in kinds:
        raise expect.Unfit(f"the device does not declare what {kind} needs")
    one, sync = kinds[kind], work(rig, "fill")

    def often(most: int, seconds: float) -> int:
        end_s = time.monotonic() + seconds
        for number in range(most):
            one()
            if not number % 256:
                rig.done(sync.submit(rig.timeline(), ()))
            if time.monotonic() > end_s:  # each may take a second, as a compiler does
                break
        rig.done(sync.submit(rig.timeline(), ()))
        return number + 1

    often(_WARM, _MOST_S / 3)
    before = used()
    count = often(OFTEN, _MOST_S)
    grown = before.grown()
    allowed = GROWTH_NBYTES if count == OFTEN else GROWTH_NBYTES // 3
    if grown > allowed:  # what an allocator keeps does not grow twice
        before, again = used(), often(OFTEN, _MOST_S)
        grown = max(0, before.grown()) * count // again
    expect.that(
        grown <= allowed,
        f"{count} of {kind} took {grown} bytes of the process, {grown // count} each",
    )
