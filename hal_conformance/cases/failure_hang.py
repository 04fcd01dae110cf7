"""Hangs: found in time, told to all who wait, and ended by a reset."""

from __future__ import annotations

import time
from functools import partial

from hal.core.description import Feature
from hal.core.errors import DeviceLost, Failure, FailureKind, OperationFailed, Scope
from hal.core.values import HealthState, Point
from hal_conformance import busy, expect
from hal_conformance.case import Cases, Level
from hal_conformance.cases.failure_real import FOUND_S, GETS_ON, LONGER, Spin, another, spin
from hal_conformance.crowd import together
from hal_conformance.faults import (
    HOOKS,
    caught,
    fastest,
    lost_error,
    need_found_in_time,
    no_hang,
    plant,
    planted,
    progress_s,
    stopwatch,
)
from hal_conformance.rig import Rig
from hal_conformance.steps import QUIET_S, lines, pair, still, work

failure_hang = Cases("I", Level.RESILIENT)

NEEDS = (Feature.INJECT,)
HEALTH_S = 0.05
_PARTS = (8, 32, 128)
"""Into how many parts the work of the time that counts as a hang is divided: on a machine that is
busy, a part may be late, and is tried smaller."""
_TOGETHER = 3
"""How many times as long as a hang the parts take together."""


def _plant(rig: Rig, hook: str, scope: Scope = Scope.OPERATION) -> Failure:
    need_found_in_time(rig.device)
    failure = planted(rig.device, (FailureKind.HANG, scope), hook=hook)
    return plant(rig.device, failure, hook)


@failure_hang.case("hang-at", "failure.hang", "inject.true", needs=NEEDS, hook=HOOKS)
def _(rig: Rig, hook: str) -> None:
    """The hanging operation fails, and with it what is behind it; what is not runs on."""
    progress_s(rig.device)
    line, other, free = lines(rig, 3)
    copy = work(rig, "copy-out")
    one, apart = work(rig, hook), work(rig, "copy-in")
    failure = _plant(rig, hook)
    point = one.submit(line, ())
    points = [copy.submit(line, ()), copy.submit(other, (point,))]
    rig.done(apart.submit(free, ()))
    for waiting in [point, *points]:
        error = caught(rig.device, waiting)
        expect.failure(error, FailureKind.HANG)
        expect.equal(error.failure, failure, "the cause")
    expect.equal(copy.ran(), False, "whether a copy behind the hang ran")


@failure_hang.case("hang-in-time", "failure.hang", needs=NEEDS, timed=True)
def _(rig: Rig) -> None:
    """Found within twice `Limits.progress_s`, and not before the operation could know."""
    most_s = 2 * progress_s(rig.device)
    fill = work(rig, "fill")

    def attempt(_: int) -> float:
        (line,) = lines(rig, 1)
        _plant(rig, "fill")
        with busy.crowd() as besides, stopwatch() as seconds:
            caught(rig.device, fill.submit(line, ()))
        return seconds[0] / besides.factor()

    took = fastest(3, attempt)
    expect.that(took <= most_s, f"the best of three took {took:.3f} s, allowed are {most_s} s")


@failure_hang.case("health-while-hanging", "health.prompt", needs=NEEDS)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    _plant(rig, "fill")
    point = work(rig, "fill").submit(line, ())
    rig.device.wait([point], QUIET_S / 2, True)
    state = rig.device.health().state
    expect.that(state in (HealthState.OK, HealthState.HANGING), f"the state is {state}")


@failure_hang.case("health-while-hanging-is-prompt", "health.prompt", needs=NEEDS, timed=True)
def _(rig: Rig) -> None:

    def attempt(_: int) -> float:
        """In a hang of its own: an answer that comes when the hang is over comes too late."""
        (line,) = lines(rig, 1)
        _plant(rig, "fill")
        point = work(rig, "fill").submit(line, ())
        rig.device.wait([point], QUIET_S / 2, True)
        with stopwatch() as seconds:
            rig.device.health()
        return seconds[0]

    took = fastest(3, attempt)
    expect.that(took <= HEALTH_S, f"the best of three took {took:.3f} s, allowed are {HEALTH_S} s")


@failure_hang.case("eight-waiters-of-a-hang", "failure.hang", "call.threads", needs=NEEDS)
def _(rig: Rig) -> None:
    progress_s(rig.device)
    (line,) = lines(rig, 1)
    failure = _plant(rig, "fill")
    points = [work(rig, "fill").submit(line, ()), Point(line, 2)] * 4

    def met(point: Point) -> Failure:
        return caught(rig.device, point).failure

    waiters = [partial(met, point) for point in points]
    expect.equal(together(waiters), [failure] * 8, "what the waiters got")


@failure_hang.case("wait-for-a-hang-ends", "wait.deadline", needs=NEEDS, timed=True)
def _(rig: Rig) -> None:
    """A wait that is shorter than the detection returns False."""
    (line,) = lines(rig, 1)
    copy = work(rig, "copy")
    _plant(rig, "copy")
    still(rig, copy.submit(line, ()), "a hanging copy")


@failure_hang.case("hang-of-the-device", "failure.hang", "failure.refuses", needs=NEEDS)
def _(rig: Rig) -> None:
    """A hang of scope DEVICE takes the device with it once it is found."""
    progress_s(rig.device)
    line, other = pair(rig)
    gate, fill, copy = rig.gate(), work(rig, "fill"), work(rig, "copy")
    blocked = copy.submit(other, (gate.point,))
    failure = _plant(rig, "fill", Scope.DEVICE)
    for point in (fill.submit(line, ()), blocked):
        lost_error(caught(rig.device, point), failure)
    lost_error(expect.raises(DeviceLost, copy.submit, other, ()), failure)
    expect.equal(rig.device.health().cause, failure, "the cause that health gives")


@failure_hang.case("waiting-is-no-hang", "failure.hang")
def _(rig: Rig) -> None:
    """Work that waits for the host for longer than it takes to find a hang is no hang."""
    pause_s = 2.2 * progress_s(rig.device)
    if pause_s > 1:
        raise expect.Unfit(f"it would take {pause_s} s; set a shorter time without progress")
    line, other = pair(rig)
    gate, copy = rig.gate(), work(rig, "copy")
    points = [copy.submit(line, (gate.point,)), copy.submit(line, ())]
    points.append(copy.submit(other, (points[-1],)))
    time.sleep(pause_s)
    with no_hang("work that waits for the host"):
        expect.that(all(map(rig.pending, points)), "work waits on")
        expect.equal(rig.device.health().state, HealthState.OK, "the state while work waits")
        gate.open()
        for point in points:
            rig.done(point)


@failure_hang.case("getting-on-is-no-hang", "failure.hang", timeout_s=60, how=("each", "within"))
def _(rig: Rig, how: str) -> None:
    """Launches that take longer together than it takes to find a hang, and each a part of that,
    are no hang. Nor is one launch whose instances end one after the other, on a device that sees
    them end; one that does not see it is not proved to tell work from a hang."""
    limit_s = progress_s(rig.device)
    for parts in _PARTS if how == "each" else _PARTS[:1]:
        with another(rig) as other:
            rounds = max(1, int(Spin.of(other).count / LONGER / parts))
            with no_hang(GETS_ON):
                bound = other.device.bind(other.program(spin(other)), (other.buffer(4), rounds))
                (line,) = lines(other, 1)
            count, own_s = _TOGETHER * parts, 0.0
            try:
                # What was timed while the machine was busy takes less than its part: once more,
                # twice as much, until it took longer than a hang may take to be found. What
                # threads waited for a processor is left out, and by more where a device counts
                # the waits of each of its threads.
                while own_s < LONGER * limit_s:
                    launches, instances = (count, 1) if how == "each" else (1, count)
                    if instances > other.info.limits.grid[0]:
                        raise expect.Unfit(f"the device has no grid of {instances}")
                    gate = other.gate()
                    for _ in range(launches):
                        point = other.device.launch(bound, (instances, 1, 1), line, (gate.point,))
                    with busy.crowd() as besides, stopwatch() as seconds:
                        gate.open()
                        other.done(point, timeout_s=FOUND_S)
                    besides.count()
                    own_s, count = besides.own_s(seconds[0], 0, elsewhere=False), 2 * count
            except OperationFailed as error:
                found = error.failure
                if found.kind is not FailureKind.HANG:
                    raise
            else:
                return
    text = f"work that gets on was taken for a hang after {limit_s} s of it: {found.message}"
    if how == "each":
        raise expect.Wrong(
            f"a launch of a {parts}th of that and the next, one after the other: {text}"
        )
    raise expect.Unproved(f"the device may not see instances end: {text}")


@failure_hang.case("works-after-a-hang", "failure.hang", "submit.apart", needs=NEEDS)
def _(rig: Rig) -> None:
    progress_s(rig.device)
    line, other = lines(rig, 2)
    _plant(rig, "fill")
    caught(rig.device, work(rig, "fill").submit(line, ()))
    copy = work(rig, "copy")
    rig.done(copy.submit(other, ()))
    expect.equal(copy.ran(), True, "whether a copy on another timeline ran")


@failure_hang.case("close-ends-a-hang", "close.failed", needs=NEEDS, hook=HOOKS)
def _(rig: Rig, hook: str) -> None:
    (line,) = lines(rig, 1)
    one = work(rig, hook)
    _plant(rig, hook)
    one.submit(line, ())
    rig.device.close()
    expect.equal(rig.device.health().state, HealthState.CLOSED, "the state after close")


@failure_hang.case(
    "reset-ends-a-hang", "reset.clears", "reset.works", needs=(Feature.INJECT, Feature.RESET)
)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    fill = work(rig, "fill")
    _plant(rig, "fill")
    point = fill.submit(line, ())

    def waiter() -> str:
        # A wait that begins after the reset finds a stale handle instead.
        try:
            rig.device.wait([point], 5, True)
        except OperationFailed as error:
            return error.failure.kind.value
        except ValueError:
            return "stale"
        return "reached"

    def reset() -> str:
        rig.device.wait([point], QUIET_S, True)
        rig.reset()
        return "reset"

    *woken, _ = together([waiter, waiter, reset])
    expect.that("reached" not in woken, f"waiters of a hang that a reset ended got {woken}")
    expect.equal(rig.device.health().state, HealthState.OK, "the state after the reset")
    after = work(rig, "fill")
    rig.done(after.submit(rig.timeline(), ()))
    expect.equal(after.ran(), True, "whether the device works")
