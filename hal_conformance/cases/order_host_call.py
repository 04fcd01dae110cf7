"""Host calls: once, in order, with their failures, and free to submit and to take their time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from hal.core.description import Feature
from hal.core.errors import FailureKind, Scope
from hal.core.values import Point
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.expect import Unfit
from hal_conformance.faults import no_hang
from hal_conformance.rig import Rig
from hal_conformance.steps import lines, pair, work

order_host_call = Cases("F", Level.ASYNC)

MOST_PROGRESS_S = 0.5
NEEDS = (Feature.HOST_CALL,)


@order_host_call.case("host-call-once", "host_call.order", needs=NEEDS)
def _(rig: Rig) -> None:
    calls: list[int] = []
    points = [rig.device.host_call(lambda: calls.append(1), rig.timeline(), ()) for _ in range(9)]
    for point in points:
        rig.done(point)
    rig.done(work(rig, "fill").submit(rig.timeline(), ()))
    expect.equal(len(calls), 9, "how often nine host calls ran")


@order_host_call.case("host-calls-in-order", "host_call.order", needs=NEEDS)
def _(rig: Rig) -> None:
    seen: list[int] = []
    for number in range(600):
        point = rig.device.host_call(partial(seen.append, number), rig.timeline(), ())
    rig.done(point)
    expect.equal(seen, list(range(600)), "the order of the calls")


@order_host_call.case("host-call-sees-earlier-work", "host_call.order", needs=NEEDS)
def _(rig: Rig) -> None:
    """What a copy before it brought is there when the function runs, and the next copy is not."""
    host, seen = bytearray(8), []
    buffers = [rig.buffer(bytes([n]) * 8) for n in range(1, 20)]
    for buffer in buffers:
        rig.device.copy(host, buffer.region(), rig.timeline(), ())
        point = rig.device.host_call(lambda: seen.append(host[0]), rig.timeline(), ())
    rig.done(point)
    expect.equal(seen, list(range(1, 20)), "what the host calls saw")


@order_host_call.case("host-call-before-later-work", "host_call.order", needs=NEEDS)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    started, finish = threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        finish.wait(5)

    copy = work(rig, "copy-out")
    rig.device.host_call(slow, line, ())
    point = copy.submit(line, ())
    expect.that(started.wait(5), "the host call starts")
    expect.that(rig.pending(point), "a copy waits for the host call before it")
    expect.equal(copy.ran(), False, "whether the copy ran before the host call ended")
    finish.set()
    rig.done(point)


@order_host_call.case("slow-host-call-holds-only-its-timeline", "timeline.independent", needs=NEEDS)
def _(rig: Rig) -> None:
    line, other = lines(rig, 2)
    finish, hold = _held()
    slow = rig.device.host_call(hold, line, ())
    rig.done(work(rig, "copy").submit(other, ()), timeout_s=4)
    rig.done(rig.device.host_call(lambda: None, other, ()), timeout_s=4)
    expect.that(rig.pending(slow), "the slow host call goes on")
    finish.set()
    rig.done(slow)


@order_host_call.case("slow-host-call-is-no-hang", "host_call.slow", needs=NEEDS)
def _(rig: Rig) -> None:
    progress_s = rig.info.limits.progress_s
    if not 0 < progress_s <= MOST_PROGRESS_S:
        raise Unfit("the device does not watch for hangs, or takes too long for a test")
    finish, hold = _held()
    slow = rig.device.host_call(hold, rig.timeline(), ())
    with no_hang("a host call that takes long"):
        expect.that(not rig.device.wait([slow], 3 * progress_s, True), "the slow host call goes on")
        finish.set()
        rig.done(slow)


@order_host_call.case("host-call-is-asynchronous", "submit.async", needs=NEEDS)
def _(rig: Rig) -> None:
    finish, hold = _held()
    point = rig.device.host_call(hold, rig.timeline(), ())
    expect.that(rig.pending(point), "the call goes on after its submission")
    finish.set()
    rig.done(point)


@order_host_call.case("host-call-fails", "host_call.fails", "submit.fails", needs=NEEDS)
def _(rig: Rig) -> None:
    line, other = pair(rig)
    long = "spilled coffee " * 20 + "at the end"

    def wrong() -> None:
        raise LookupError(long)

    copy = work(rig, "copy")
    point = rig.device.host_call(wrong, line, ())
    behind, far = copy.submit(line, ()), copy.submit(other, (point,))
    failure = rig.failed(point)
    expect.equal(failure.kind, FailureKind.HOST_CALL, "the failure's kind")
    expect.that(failure.scope in (Scope.OPERATION, Scope.QUEUE), "the failure is not the device's")
    expect.equal(failure.device, rig.name, "the failure's device")
    expect.that(long in failure.message, f"it says all that happened: {failure.message}")
    expect.equal([rig.failed(behind), rig.failed(far)], [failure] * 2, "the failures behind it")
    expect.equal(copy.ran(), False, "whether a copy behind it ran")


@order_host_call.case("failed-host-call-apart", "submit.apart", "host_call.fails", needs=NEEDS)
def _(rig: Rig) -> None:
    line, other = lines(rig, 2)

    def wrong() -> None:
        raise ValueError("planted")

    rig.failed(rig.device.host_call(wrong, line, ()))
    calls: list[int] = []
    rig.done(rig.device.host_call(lambda: calls.append(1), other, ()))
    expect.equal(calls, [1], "a host call on another timeline")


@order_host_call.case("host-call-not-called-behind-a-failure", "submit.poisoned", needs=NEEDS)
def _(rig: Rig) -> None:
    line, other = pair(rig)
    calls: list[str] = []

    def wrong() -> None:
        calls.append("wrong")
        raise ValueError("planted")

    point = rig.device.host_call(wrong, line, ())
    points = [
        rig.device.host_call(lambda: calls.append("same timeline"), line, ()),
        rig.device.host_call(lambda: calls.append("other timeline"), other, (point,)),
    ]
    for behind in points:
        rig.failed(behind)
    expect.equal(calls, ["wrong"], "the host calls that ran")


@order_host_call.case("host-call-may-submit", "host_call.order", needs=NEEDS, same=(True, False))
def _(rig: Rig, same: bool) -> None:
    line, other = pair(rig)
    copy, points = work(rig, "copy"), []
    target = line if same else other
    rig.done(rig.device.host_call(lambda: points.append(copy.submit(target, ())), line, ()))
    expect.equal(len(points), 1, "the points of work that the host call submitted")
    rig.done(points[0])
    expect.equal(copy.ran(), True, "whether work of a host call ran")


@order_host_call.case("host-call-may-signal", "host_call.order", "signal.wakes", needs=NEEDS)
def _(rig: Rig) -> None:
    line, other = pair(rig)
    gate = rig.gate()
    point = work(rig, "fill").submit(other, (gate.point,))
    rig.device.host_call(gate.open, line, ())
    rig.done(point)


@order_host_call.case("host-call-may-wait-for-another", "timeline.independent", needs=NEEDS)
def _(rig: Rig) -> None:
    line, other = pair(rig)
    gate, copy = rig.gate(), work(rig, "copy")
    late = rig.device.host_call(lambda: None, other, (copy.submit(other, (gate.point,)),))
    early = rig.device.host_call(lambda: rig.done(late), line, ())
    expect.that(rig.pending(early), "the host call waits")
    gate.open()
    rig.done(early)


@order_host_call.case("host-calls-of-many-timelines", "host_call.order", needs=NEEDS)
def _(rig: Rig) -> None:
    """A chain of calls across timelines keeps the order that the waits ask for."""
    held, gate = lines(rig, 4), rig.gate()
    point, seen = gate.point, list[int]()
    for number in range(40):
        line = held[int(rig.random.integers(4))]
        point = rig.device.host_call(partial(seen.append, number), line, (point,))
    gate.open()
    rig.done(point)
    expect.equal(seen, list(range(40)), "the order of a chain of host calls")


@order_host_call.case("host-call-while-the-host-waits", "wait.lock", needs=NEEDS)
def _(rig: Rig) -> None:
    """A call that needs the interpreter runs while this thread is inside a wait."""
    (line,) = lines(rig, 1)
    gate = rig.gate()
    seen: list[int] = []
    rig.device.host_call(lambda: seen.append(sum(range(1000))), line, (gate.point,))
    rig.device.host_call(lambda: None, line, ())
    gate.open()
    rig.done(Point(line, 2))


def _held() -> tuple[threading.Event, Callable[[], None]]:
    """An event, and a function that returns once it is set."""
    finish = threading.Event()

    def hold() -> None:
        finish.wait(5)

    return finish, hold
