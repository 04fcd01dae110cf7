"""Waiting on the host: for all or any, for the device or for signals, with deadlines."""

from __future__ import annotations

import math
import time

from hal.core.values import Point
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.rig import Gate, Rig
from hal_conformance.steps import LONG_S, QUIET_S, lines, meanwhile, work

order_wait = Cases("F", Level.ASYNC)


@order_wait.case("starts-at-zero", "wait.true", host_driven=(False, True))
def _(rig: Rig, host_driven: bool) -> None:
    timeline = rig.timeline() if not host_driven else rig.device.create_timeline(True)
    expect.that(rig.device.wait([Point(timeline, 0)], 0, True), "value 0 is reached from the start")
    expect.that(rig.pending(Point(timeline, 1)), "value 1 is not")


@order_wait.case("no-points", "wait.true", wait_all=(True, False))
def _(rig: Rig, wait_all: bool) -> None:
    expect.equal(rig.device.wait([], 0, wait_all), True, "a wait for nothing")
    expect.equal(rig.device.wait([], LONG_S, wait_all), True, "a wait for nothing with a deadline")


@order_wait.case("poll", "wait.true", "wait.deadline")
def _(rig: Rig) -> None:
    gate = rig.gate()
    expect.equal(rig.device.wait([gate.point], 0, True), False, "a poll of an open point")
    gate.open()
    expect.equal(rig.device.wait([gate.point], 0, True), True, "a poll of a reached point")


@order_wait.case("not-before-the-deadline", "wait.deadline")
def _(rig: Rig) -> None:
    gate, begin = rig.gate(), time.monotonic()
    expect.equal(rig.device.wait([gate.point], 0.05, True), False, "a wait whose time passes")
    expect.that(time.monotonic() - begin >= 0.049, "it gave up before its deadline")


@order_wait.case("soon-after-the-deadline", "wait.deadline", timed=True, after_s=(0.001, 0.04))
def _(rig: Rig, after_s: float) -> None:
    gate = rig.gate()
    late = min(_late(rig, gate, after_s) for _ in range(3))
    expect.that(late < 0.03, f"the best of three waits of {after_s} s ended {late:.3f} s late")


def _late(rig: Rig, gate: Gate, timeout_s: float) -> float:
    begin = time.monotonic()
    rig.device.wait([gate.point], timeout_s, True)
    return time.monotonic() - begin - timeout_s


@order_wait.case("wakes-soon", "wait.true", "signal.wakes", timed=True)
def _(rig: Rig) -> None:
    """A waiter wakes within 20 ms of the signal, in the best of three tries."""
    delays = []
    for _ in range(3):
        gate, opened = rig.gate(), [0.0]

        def open_it(gate: Gate = gate, opened: list[float] = opened) -> None:
            opened[0] = time.monotonic()
            gate.open()

        with meanwhile(open_it):
            rig.done(gate.point)
            delays.append(time.monotonic() - opened[0])
    expect.that(min(delays) < 0.02, f"the best of three woke {min(delays):.3f} s after the signal")


@order_wait.case("any-of-four", "wait.true", place=range(4))
def _(rig: Rig, place: int) -> None:
    gates = [rig.gate() for _ in range(4)]
    points = [gate.point for gate in gates]
    expect.equal(rig.device.wait(points, QUIET_S / 4, False), False, "any of four open points")
    gates[place].open()
    expect.equal(rig.device.wait(points, LONG_S, False), True, "any of four, one reached")
    expect.equal(rig.device.wait(points, 0, False), True, "a poll of any")
    expect.equal(rig.device.wait(points, 0, True), False, "a poll of all")


@order_wait.case("all-of-four", "wait.true", place=range(4))
def _(rig: Rig, place: int) -> None:
    gates = [rig.gate() for _ in range(4)]
    points = [gate.point for gate in gates]
    for gate in (gate for i, gate in enumerate(gates) if i != place):
        gate.open()
    expect.equal(rig.device.wait(points, QUIET_S / 4, True), False, f"all, {place} is open")
    gates[place].open()
    expect.equal(rig.device.wait(points, LONG_S, True), True, "all of four reached ones")


@order_wait.case("woken-in-time", "signal.wakes", "wait.true", wait_all=(True, False))
def _(rig: Rig, wait_all: bool) -> None:
    first, last = rig.gate(), rig.gate()
    if wait_all:
        first.open()
    with meanwhile(last.open):
        reached = rig.device.wait([first.point, last.point], LONG_S, wait_all)
    expect.equal(reached, True, "a wait during which the last point was signalled")


@order_wait.case("without-a-deadline", "signal.wakes", "wait.true")
def _(rig: Rig) -> None:
    gate = rig.gate()
    with meanwhile(gate.open):
        expect.equal(rig.device.wait([gate.point], math.inf, True), True, "a wait for ever")


@order_wait.case("device-work-wakes", "wait.true")
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gate, copy = rig.gate(), work(rig, "copy")
    point = copy.submit(line, (gate.point,))
    with meanwhile(gate.open):
        expect.equal(rig.device.wait([point], LONG_S, True), True, "a wait for a copy")
    expect.equal(copy.ran(), True, "whether the copy was done when the wait ended")


@order_wait.case("reached-when-done", "wait.true", kind=("copy-out", "host_call"))
def _(rig: Rig, kind: str) -> None:
    """What the host sees without asking the device is there as soon as the wait ends."""
    (line,) = lines(rig, 1)
    one = work(rig, kind)
    rig.done(one.submit(line, ()))
    expect.equal(one.ran(), True, f"whether the {kind} was done when the wait ended")


@order_wait.case("value-nobody-owes-yet", "wait.true")
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    fill = work(rig, "fill")

    def thrice() -> None:
        for _ in range(3):
            fill.submit(line, ())

    expect.that(rig.pending(Point(line, 3)), "value 3 is open before anything is submitted")
    with meanwhile(thrice):
        expect.equal(rig.device.wait([Point(line, 3)], LONG_S, True), True, "value 3")


@order_wait.case("two-hundred-points", "wait.true")
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gate, fill = rig.gate(), work(rig, "fill")
    points = [fill.submit(line, (gate.point,)) for _ in range(200)]
    expect.equal(rig.device.wait(points, 0, False), False, "any of 200 points")
    gate.open()
    expect.equal(rig.device.wait(points, LONG_S, True), True, "all of 200 points")
