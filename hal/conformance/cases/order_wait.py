"""Waiting on the host: for all or any, with deadlines, in many threads, and without the lock."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from hal.conformance import expect
from hal.conformance.case import Cases, Level
from hal.conformance.crowd import together
from hal.conformance.expect import Unfit
from hal.conformance.rig import Gate, Rig
from hal.conformance.steps import QUIET_S, elsewhere, lines, still, work
from hal.core.errors import Failure, FailureKind, InvalidCall, OperationFailed, Scope, StaleHandle
from hal.core.values import Point

order_wait = Cases("F", Level.ASYNC)

LONG_S = 5.0
"""The deadline of waits that must end before it."""


@contextmanager
def _meanwhile(call: Callable[[], None]) -> Iterator[None]:
    """Run a call in another thread while the body waits; it is over at the end."""
    thread = threading.Timer(QUIET_S, call)
    thread.start()
    yield
    thread.join(LONG_S)


def _planted(rig: Rig) -> Failure:
    return Failure(FailureKind.ABORTED, Scope.OPERATION, rig.name, "signal", "planted")


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

        with _meanwhile(open_it):
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
    with _meanwhile(last.open):
        reached = rig.device.wait([first.point, last.point], LONG_S, wait_all)
    expect.equal(reached, True, "a wait during which the last point was signalled")


@order_wait.case("without-a-deadline", "signal.wakes", "wait.true")
def _(rig: Rig) -> None:
    gate = rig.gate()
    with _meanwhile(gate.open):
        expect.equal(rig.device.wait([gate.point], math.inf, True), True, "a wait for ever")


@order_wait.case("device-work-wakes", "wait.true")
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gate, copy = rig.gate(), work(rig, "copy")
    point = copy.submit(line, (gate.point,))
    with _meanwhile(gate.open):
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
    with _meanwhile(thrice):
        expect.equal(rig.device.wait([Point(line, 3)], LONG_S, True), True, "value 3")


@order_wait.case("eight-waiters", "signal.wakes", "call.threads")
def _(rig: Rig) -> None:
    gate = rig.gate()
    waits = [lambda: rig.device.wait([gate.point], LONG_S, True)] * 8
    with _meanwhile(gate.open):
        expect.equal(together(waits), [True] * 8, "what eight waiters got")


@order_wait.case("eight-waiters-of-eight-values", "signal.wakes", "call.threads")
def _(rig: Rig) -> None:
    host = rig.device.create_timeline(True)
    points = [Point(host, value) for value in range(8, 0, -1)]
    waits = [partial(rig.device.wait, [point], LONG_S, True) for point in points]

    def count_up() -> None:
        for value in range(1, 9):
            rig.device.signal(host, value, None)

    with _meanwhile(count_up):
        expect.equal(together(waits), [True] * 8, "what the waiters of values 8 to 1 got")


@order_wait.case("signal-wakes-only-its-values", "signal.wakes", "wait.true")
def _(rig: Rig) -> None:
    host = rig.device.create_timeline(True)
    rig.device.signal(host, 3, None)
    for value in range(1, 6):
        expect.equal(rig.pending(Point(host, value)), value > 3, f"whether value {value} is open")
    rig.device.signal(host, 5, None)
    expect.that(rig.device.wait([Point(host, 5)], 0, True), "value 5 is reached")


@order_wait.case("device-waits-of-several-values", "signal.wakes", "submit.waits")
def _(rig: Rig) -> None:
    held, host = lines(rig, 4), rig.device.create_timeline(True)
    fill = work(rig, "fill")
    points = [fill.submit(line, (Point(host, 10 * i + 10),)) for i, line in enumerate(held)]
    for index, point in enumerate(points):
        rig.device.signal(host, 10 * index + 9, None)
        still(rig, point, f"work that waits for value {10 * index + 10}")
        rig.device.signal(host, 10 * index + 10, None)
        rig.done(point)


@order_wait.case("signal-must-grow", "signal.refused")
def _(rig: Rig) -> None:
    host = rig.device.create_timeline(True)
    expect.raises(InvalidCall, rig.device.signal, host, 0, None)
    rig.device.signal(host, 5, None)
    for value in (5, 4, 0):
        expect.raises(InvalidCall, rig.device.signal, host, value, None)
    expect.that(rig.pending(Point(host, 6)), "value 6 is open after refused signals")
    rig.device.signal(host, 6, None)


@order_wait.case("signal-of-a-device-timeline", "signal.refused")
def _(rig: Rig) -> None:
    expect.raises(InvalidCall, rig.device.signal, rig.timeline(), 1, None)
    expect.that(rig.pending(Point(rig.timeline(), 1)), "the value is open after a refused signal")


@order_wait.case("work-on-a-host-timeline", "call.refused")
def _(rig: Rig) -> None:
    gate, buffer = rig.gate(), rig.buffer(4)
    expect.raises(InvalidCall, rig.device.fill, buffer.region(), b"\1", gate.timeline, ())


@order_wait.case("failure-is-raised", "wait.raises", "signal.wakes", wait_all=(True, False))
def _(rig: Rig, wait_all: bool) -> None:
    gate, other = rig.gate(), rig.gate()
    points = [other.point, gate.point]
    with _meanwhile(lambda: gate.fail(_planted(rig))):
        error = expect.raises(OperationFailed, rig.device.wait, points, LONG_S, wait_all)
    expect.equal(expect.failure(error), _planted(rig), "the failure that the waiter got")
    error = expect.raises(OperationFailed, rig.device.wait, [gate.point], 0, True)
    expect.equal(expect.failure(error), _planted(rig), "the failure that a poll got")


@order_wait.case("eight-waiters-of-a-failure", "wait.raises", "signal.wakes", "call.threads")
def _(rig: Rig) -> None:
    gate = rig.gate()
    waits = [lambda: rig.failed(gate.point, timeout_s=LONG_S)] * 8
    with _meanwhile(lambda: gate.fail(_planted(rig))):
        expect.equal(together(waits), [_planted(rig)] * 8, "what eight waiters got")


@order_wait.case("freed-gate-wakes-its-waiter", "free.timeline")
def _(rig: Rig) -> None:
    for _ in range(20):
        gate = rig.gate()
        free = partial(rig.device.free, gate.timeline)
        # The error comes where this thread was too late: its wait began after the free.
        with _meanwhile(free), suppress(StaleHandle):
            rig.failed(gate.point, timeout_s=LONG_S)
            return
    raise Unfit("this machine is too busy to be in a wait before another thread runs")


@order_wait.case("freed-timeline-is-stale", "free.twice", "handle.stale", host_driven=(False, True))
def _(rig: Rig, host_driven: bool) -> None:
    timeline = rig.device.create_timeline(True) if host_driven else lines(rig, 1)[0]
    rig.device.free(timeline)
    expect.raises(StaleHandle, rig.device.free, timeline)
    expect.raises(StaleHandle, rig.device.wait, [Point(timeline, 1)], 0, True)
    expect.raises(StaleHandle, work(rig, "fill").submit, rig.timeline(), (Point(timeline, 1),))


@order_wait.case("lock-is-free", "wait.lock")
def _(rig: Rig) -> None:
    """Another thread runs on while this one waits: only that thread can end the wait."""
    gate = rig.gate()

    def beat() -> None:
        for _ in range(20):
            time.sleep(0.0005)
        gate.open()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    expect.equal(rig.device.wait([gate.point], LONG_S, True), True, "the wait for 20 beats")
    thread.join(LONG_S)


@order_wait.case("lock-is-free-all-the-time", "wait.lock", timed=True)
def _(rig: Rig) -> None:
    """Beats of another thread during a wait come at least half as often as without one."""
    gate = rig.gate()
    best = max(_beats(lambda: rig.device.wait([gate.point], 0.05, True)) for _ in range(3))
    idle = max(_beats(lambda: time.sleep(0.05)) for _ in range(3))
    expect.that(2 * best >= idle, f"{best} beats in a wait of 0.05 s, {idle} without one")


def _beats(call: Callable[[], object]) -> int:
    end, count = threading.Event(), [0]

    def beat() -> None:
        while not end.wait(0.0005):
            count[0] += 1

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    call()
    end.set()
    thread.join(LONG_S)
    return count[0]


@order_wait.case("waits-do-not-hold-submission", "call.threads")
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gate, fill = rig.gate(), work(rig, "fill")

    def use_and_open() -> int:
        for _ in range(20):
            rig.done(fill.submit(line, ()))
        gate.open()
        return 0

    waiters = [lambda: int(rig.device.wait([gate.point], LONG_S, True))] * 4
    expect.equal(together([*waiters, use_and_open]), [1, 1, 1, 1, 0], "what the threads got")


@order_wait.case("two-hundred-points", "wait.true")
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gate, fill = rig.gate(), work(rig, "fill")
    points = [fill.submit(line, (gate.point,)) for _ in range(200)]
    expect.equal(rig.device.wait(points, 0, False), False, "any of 200 points")
    gate.open()
    expect.equal(rig.device.wait(points, LONG_S, True), True, "all of 200 points")


_INTERRUPT = """
    import os, signal, threading, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    gate, line = device.create_timeline(True), device.create_timeline(False)
    buffer = device.alloc(16, AllocOptions())
    sent = []
    def interrupt():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    delays = []
    for _ in range(TRIES):
        timer = threading.Timer(0.03, interrupt)
        try:
            timer.start()  # on a busy machine the signal may come before this returns
            device.wait([Point(gate, 1)], 10, True)
        except KeyboardInterrupt:
            delays.append(time.monotonic() - sent[-1])
        timer.join(10)
    device.signal(gate, 1, None)
    point = device.fill(buffer.region(), bytes(1), line, [Point(gate, 1)])
    works = device.wait([point], 10, True)
    device.close()
    result = [delays, works]
"""


@order_wait.case("interrupt", "wait.interrupt", timeout_s=60)
def _(rig: Rig) -> None:
    """Ctrl-C ends a wait, and the device works on."""
    delays, works = elsewhere(rig, _INTERRUPT.replace("TRIES", "1"))
    expect.equal([len(delays), works], [1, True], "(interrupted waits, device works)")


@order_wait.case("interrupt-soon", "wait.interrupt", timed=True, timeout_s=60)
def _(rig: Rig) -> None:
    delays, _ = elsewhere(rig, _INTERRUPT.replace("TRIES", "3"))
    expect.equal(len(delays), 3, "interrupted waits of 3")
    expect.that(min(delays) <= 0.1, f"the best of three ended {min(delays):.3f} s after Ctrl-C")
