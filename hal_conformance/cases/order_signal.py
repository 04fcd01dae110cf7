"""Signals and failures of host-driven timelines: whom they wake, and which are refused."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from hal.core.errors import Failure, FailureKind, InvalidCall, OperationFailed, Scope, StaleHandle
from hal.core.values import Point
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.crowd import together
from hal_conformance.expect import Unfit
from hal_conformance.rig import Rig
from hal_conformance.steps import LONG_S, lines, meanwhile, still, work

order_signal = Cases("F", Level.ASYNC)


def _planted(rig: Rig) -> Failure:
    return Failure(FailureKind.ABORTED, Scope.OPERATION, rig.name, "signal", "planted")


@order_signal.case("eight-waiters", "signal.wakes", "call.threads")
def _(rig: Rig) -> None:
    gate = rig.gate()
    waits = [lambda: rig.device.wait([gate.point], LONG_S, True)] * 8
    with meanwhile(gate.open):
        expect.equal(together(waits), [True] * 8, "what eight waiters got")


@order_signal.case("eight-waiters-of-eight-values", "signal.wakes", "call.threads")
def _(rig: Rig) -> None:
    host = rig.device.create_timeline(True)
    points = [Point(host, value) for value in range(8, 0, -1)]
    waits = [partial(rig.device.wait, [point], LONG_S, True) for point in points]

    def count_up() -> None:
        for value in range(1, 9):
            rig.device.signal(host, value, None)

    with meanwhile(count_up):
        expect.equal(together(waits), [True] * 8, "what the waiters of values 8 to 1 got")


@order_signal.case("signal-wakes-only-its-values", "signal.wakes", "wait.true")
def _(rig: Rig) -> None:
    host = rig.device.create_timeline(True)
    rig.device.signal(host, 3, None)
    for value in range(1, 6):
        expect.equal(rig.pending(Point(host, value)), value > 3, f"whether value {value} is open")
    rig.device.signal(host, 5, None)
    expect.that(rig.device.wait([Point(host, 5)], 0, True), "value 5 is reached")


@order_signal.case("device-waits-of-several-values", "signal.wakes", "submit.waits")
def _(rig: Rig) -> None:
    held, host = lines(rig, 4), rig.device.create_timeline(True)
    fill = work(rig, "fill")
    points = [fill.submit(line, (Point(host, 10 * i + 10),)) for i, line in enumerate(held)]
    for index, point in enumerate(points):
        rig.device.signal(host, 10 * index + 9, None)
        still(rig, point, f"work that waits for value {10 * index + 10}")
        rig.device.signal(host, 10 * index + 10, None)
        rig.done(point)


@order_signal.case("signal-must-grow", "signal.refused")
def _(rig: Rig) -> None:
    host = rig.device.create_timeline(True)
    expect.raises(InvalidCall, rig.device.signal, host, 0, None)
    rig.device.signal(host, 5, None)
    for value in (5, 4, 0):
        expect.raises(InvalidCall, rig.device.signal, host, value, None)
    expect.that(rig.pending(Point(host, 6)), "value 6 is open after refused signals")
    rig.device.signal(host, 6, None)


@order_signal.case("signal-of-a-device-timeline", "signal.refused")
def _(rig: Rig) -> None:
    expect.raises(InvalidCall, rig.device.signal, rig.timeline(), 1, None)
    expect.that(rig.pending(Point(rig.timeline(), 1)), "the value is open after a refused signal")


@order_signal.case("work-on-a-host-timeline", "call.refused")
def _(rig: Rig) -> None:
    gate, buffer = rig.gate(), rig.buffer(4)
    expect.raises(InvalidCall, rig.device.fill, buffer.region(), b"\1", gate.timeline, ())


@order_signal.case("failure-is-raised", "wait.raises", "signal.wakes", wait_all=(True, False))
def _(rig: Rig, wait_all: bool) -> None:
    gate, other = rig.gate(), rig.gate()
    points = [other.point, gate.point]
    with meanwhile(lambda: gate.fail(_planted(rig))):
        error = expect.raises(OperationFailed, rig.device.wait, points, LONG_S, wait_all)
    expect.equal(expect.failure(error), _planted(rig), "the failure that the waiter got")
    error = expect.raises(OperationFailed, rig.device.wait, [gate.point], 0, True)
    expect.equal(expect.failure(error), _planted(rig), "the failure that a poll got")


@order_signal.case("eight-waiters-of-a-failure", "wait.raises", "signal.wakes", "call.threads")
def _(rig: Rig) -> None:
    gate = rig.gate()
    waits = [lambda: rig.failed(gate.point, timeout_s=LONG_S)] * 8
    with meanwhile(lambda: gate.fail(_planted(rig))):
        expect.equal(together(waits), [_planted(rig)] * 8, "what eight waiters got")


@order_signal.case("freed-gate-wakes-its-waiter", "free.timeline")
def _(rig: Rig) -> None:
    for _ in range(20):
        gate = rig.gate()
        free = partial(rig.device.free, gate.timeline)
        # The error comes where this thread was too late: its wait began after the free.
        with meanwhile(free), suppress(StaleHandle):
            rig.failed(gate.point, timeout_s=LONG_S)
            return
    raise Unfit("this machine is too busy to be in a wait before another thread runs")


@order_signal.case(
    "freed-timeline-is-stale", "free.twice", "handle.stale", host_driven=(False, True)
)
def _(rig: Rig, host_driven: bool) -> None:
    timeline = rig.device.create_timeline(True) if host_driven else lines(rig, 1)[0]
    rig.device.free(timeline)
    expect.raises(StaleHandle, rig.device.free, timeline)
    expect.raises(StaleHandle, rig.device.wait, [Point(timeline, 1)], 0, True)
    expect.raises(StaleHandle, work(rig, "fill").submit, rig.timeline(), (Point(timeline, 1),))
