"""Submission from many threads at once."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np

from hal.core.values import AllocOptions, Point
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.crowd import together
from hal_conformance.rig import Rig
from hal_conformance.steps import N, element, lines, turn, turned, work

order_threads = Cases("F", Level.ASYNC)

THREADS = 8
_PLAIN = AllocOptions()


@order_threads.case("threads-on-one-timeline", "call.threads", "timeline.values")
def _(rig: Rig) -> None:
    fill, start = work(rig, "fill"), threading.Barrier(THREADS)
    (line,) = lines(rig, 1)

    def submit() -> list[int]:
        start.wait(5)
        return [fill.submit(line, ()).value for _ in range(40)]

    found = together([submit] * THREADS)
    for values in found:
        expect.equal(values, sorted(values), "the values that one thread got")
    everything = sorted(value for values in found for value in values)
    expect.equal(everything, list(range(1, 40 * THREADS + 1)), "the values of all threads")
    rig.done(Point(line, 40 * THREADS))


@order_threads.case("threads-on-own-timelines", "call.threads", "submit.order")
def _(rig: Rig) -> None:
    dtype, held = element(rig, ints=True), lines(rig, THREADS)
    program = rig.program(turn(dtype))
    zero = np.zeros(N, NUMPY[dtype])
    cells = [rig.buffer(zero) for _ in held]

    def submit(index: int) -> int:
        for k in range(15):
            bound = rig.device.bind(program, (cells[index], (k + index) % 50))
            point = rig.device.launch(bound, (1, 1, 1), held[index], ())
        rig.done(point)
        return index

    together([partial(submit, index) for index in range(THREADS)])
    for index, cell in enumerate(cells):
        wanted = turned(zero, [(k + index) % 50 for k in range(15)])
        expect.same(rig.array(cell, dtype), wanted, f"the cell of thread {index}")


@order_threads.case("threads-of-everything", "call.threads")
def _(rig: Rig) -> None:
    """Each thread allocates, copies in, waits, copies out and frees."""
    held = lines(rig, THREADS)
    data = [rig.noise(64) for _ in held]

    def round_trip(index: int) -> bytes:
        for _ in range(10):
            buffer, host = rig.device.alloc(64, _PLAIN), bytearray(64)
            wrote = rig.device.copy(buffer.region(), data[index], held[index], ())
            rig.done(rig.device.copy(host, buffer.region(), held[index], (wrote,)))
            rig.device.free(buffer)
        return bytes(host)

    got = together([partial(round_trip, index) for index in range(THREADS)])
    for index, found in enumerate(got):
        expect.same_bytes(found, data[index], f"what thread {index} got back")


@order_threads.case("relay-of-threads", "call.threads", "submit.waits")
def _(rig: Rig) -> None:
    """Thread i copies cell i - 1 to cell i, behind a point that it makes up before it exists."""
    held = lines(rig, THREADS)
    data, gate = rig.noise(16), rig.gate()
    chain = [rig.buffer(data), *(rig.buffer(bytes(16)) for _ in held)]

    def submit(index: int) -> Point:
        before = Point(held[index - 1], 1) if index else gate.point
        to, of = chain[index + 1].region(), chain[index].region()
        return rig.device.copy(to, of, held[index], (before,))

    order = rig.random.permutation(THREADS)
    together([partial(submit, int(index)) for index in order])
    gate.open()
    rig.done(Point(held[-1], 1))
    expect.same_bytes(rig.read(chain[-1]), data, "the end of the relay")
