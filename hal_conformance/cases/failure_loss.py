"""A lost device: every waiter wakes with the cause, every submission is refused."""

from __future__ import annotations

from hal.core.description import Feature
from hal.core.errors import DeviceLost, Failure, FailureKind, Scope
from hal.core.values import AllocOptions, Health, HealthState, Point
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.crowd import together
from hal_conformance.faults import (
    FAULT,
    HOOKS,
    LOST,
    RESET_REQUIRED,
    Doom,
    caught,
    fastest,
    lost_error,
    plant,
    planted,
    stopwatch,
)
from hal_conformance.rig import Rig
from hal_conformance.steps import KINDS, QUIET_S, element, lines, pair, stamp, work

failure_loss = Cases("I", Level.RESILIENT)

NEEDS = (Feature.INJECT,)
LOSS_S = 0.1


@failure_loss.case(
    "loss-at", "failure.loss", "inject.true", "health.cause", needs=NEEDS, hook=HOOKS
)
def _(rig: Rig, hook: str) -> None:
    """The operation, one that waits, a gate and a value that nobody owes: all get the cause."""
    line, other = pair(rig)
    gate, one, copy = rig.gate(), work(rig, hook), work(rig, "copy")
    blocked = copy.submit(other, (gate.point,))
    failure = plant(rig.device, planted(rig.device, LOST, hook=hook), hook)
    for point in (one.submit(line, ()), blocked, gate.point, Point(other, 9)):
        lost_error(caught(rig.device, point), failure)
    _check_health(rig.device.health(), HealthState.LOST, failure)


@failure_loss.case(
    "reset-required-at", "failure.loss", "inject.true", "health.cause", needs=NEEDS, hook=HOOKS
)
def _(rig: Rig, hook: str) -> None:
    line, other = pair(rig)
    gate, one, copy = rig.gate(), work(rig, hook), work(rig, "copy")
    blocked = copy.submit(other, (gate.point,))
    failure = plant(rig.device, planted(rig.device, RESET_REQUIRED, hook=hook), hook)
    for point in (one.submit(line, ()), blocked, gate.point, Point(other, 9)):
        lost_error(caught(rig.device, point), failure)
    _check_health(rig.device.health(), HealthState.RESET_REQUIRED, failure)


@failure_loss.case("loss-at-alloc", "failure.loss", "inject.true", needs=NEEDS)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gate = rig.gate()
    blocked = work(rig, "fill").submit(line, (gate.point,))
    failure = plant(rig.device, planted(rig.device, LOST, hook="alloc"), "alloc")
    lost_error(expect.raises(DeviceLost, rig.device.alloc, 8, AllocOptions()), failure)
    lost_error(caught(rig.device, blocked), failure)
    _check_health(rig.device.health(), HealthState.LOST, failure)


@failure_loss.case("loss-at-load", "failure.loss", "inject.true", needs=NEEDS)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gate, source = rig.gate(), rig.source(stamp(element(rig)))
    blocked = work(rig, "fill").submit(line, (gate.point,))
    failure = plant(rig.device, planted(rig.device, LOST, hook="load"), "load")
    lost_error(expect.raises(DeviceLost, rig.device.load, source), failure)
    lost_error(caught(rig.device, blocked), failure)
    _check_health(rig.device.health(), HealthState.LOST, failure)


@failure_loss.case("loss-of-work-that-waits", "failure.loss", "submit.poisoned", needs=NEEDS)
def _(rig: Rig) -> None:
    """The operation that loses the device waits itself; what stands behind it never runs."""
    line, other = pair(rig)
    gate, doom, copy = rig.gate(), Doom(rig), work(rig, "copy-out")
    point = doom.submit(line, (gate.point,))
    points = [copy.submit(line, ()), copy.submit(other, (point,))]
    rig.device.wait([point], QUIET_S, True)
    expect.equal(rig.device.health().state, HealthState.OK, "the state before the loss")
    gate.open()
    for waiting in [point, *points]:
        lost_error(caught(rig.device, waiting), doom.failure)
    expect.equal(copy.ran(), False, "whether a copy behind the loss ran")


@failure_loss.case("loss-of-everything-unreached", "failure.loss", "signal.wakes", needs=NEEDS)
def _(rig: Rig) -> None:
    held = lines(rig, 10)
    gates, fill, doom = [rig.gate() for _ in held], work(rig, "fill"), Doom(rig)
    points = [fill.submit(line, (gate.point,)) for line, gate in zip(held, gates, strict=True)] + [
        fill.submit(line, ()) for line in held
    ]
    failure = doom.strike()
    for point in [*points, *(gate.point for gate in gates)]:
        lost_error(caught(rig.device, point), failure)


@failure_loss.case(
    "eight-waiters-wake-lost", "failure.loss", "call.threads", needs=NEEDS, wait_all=(True, False)
)
def _(rig: Rig, wait_all: bool) -> None:
    (line,) = lines(rig, 1)
    gate, fill, doom = rig.gate(), work(rig, "fill"), Doom(rig)
    points = [fill.submit(line, (gate.point,)), gate.point, Point(line, 5)]

    def waiter() -> Failure:
        error = expect.raises(DeviceLost, rig.device.wait, points, 5, wait_all)
        return expect.failure(error)

    def loss() -> Failure:
        rig.device.wait(points, QUIET_S, False)
        return doom.strike()

    got = together([*([waiter] * 8), loss])
    expect.equal(got, [doom.failure] * 9, "what the waiters got")


@failure_loss.case("reached-before-the-loss", "wait.true", "failure.loss", needs=NEEDS)
def _(rig: Rig) -> None:
    doom, gate, copy = Doom(rig), rig.gate(), work(rig, "copy")
    gate.open()
    reached = copy.submit(rig.timeline(), ())
    rig.done(reached)
    doom.strike()
    expect.that(rig.device.wait([reached, gate.point], 0, True), "reached points stay reached")


@failure_loss.case("refuses-after-loss", "failure.refuses", needs=NEEDS, kind=KINDS)
def _(rig: Rig, kind: str) -> None:
    (line,) = lines(rig, 1)
    one, failure = work(rig, kind), Doom(rig).strike()
    for _ in range(2):
        lost_error(expect.raises(DeviceLost, one.submit, line, ()), failure)


@failure_loss.case("refuses-until-reset", "failure.refuses", needs=NEEDS)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    fill, failure = work(rig, "fill"), Doom(rig, how=RESET_REQUIRED).strike()
    for _ in range(3):
        lost_error(expect.raises(DeviceLost, fill.submit, line, ()), failure)


@failure_loss.case("refuses-soon", "failure.refuses", needs=NEEDS, timed=True)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    fill = work(rig, "fill")
    Doom(rig).strike()

    def attempt(_: int) -> float:
        with stopwatch() as seconds:
            expect.raises(DeviceLost, fill.submit, line, ())
        return seconds[0]

    expect.that(fastest(3, attempt) < 0.01, "a submission to a lost device is refused in 10 ms")


@failure_loss.case("first-loss-is-kept", "health.cause", "failure.refuses", needs=NEEDS)
def _(rig: Rig) -> None:
    """Two losses and a failed gate: everybody gets the same, first cause."""
    held = lines(rig, 3)
    gate, late, fill = rig.gate(), rig.gate(), work(rig, "fill")
    works = [work(rig, "copy") for _ in range(2)]
    causes = [
        plant(rig.device, planted(rig.device, LOST, text, "copy"), "copy", nth)
        for nth, text in enumerate(("one", "two"), 1)
    ]
    points = [one.submit(line, (gate.point,)) for one, line in zip(works, held[:2], strict=True)]
    points.append(fill.submit(held[2], (late.point,)))
    gate.open()
    first = caught(rig.device, points[2]).failure
    expect.that(first in causes, f"{first} is none of the planted causes")
    late.fail(planted(rig.device, FAULT, "late"))
    for point in [*points, late.point]:
        expect.equal(caught(rig.device, point).failure, first, "the cause")
    _check_health(rig.device.health(), HealthState.LOST, first)
    lost_error(expect.raises(DeviceLost, fill.submit, held[2], ()), first)


@failure_loss.case("second-loss-of-no-operation", "health.cause", needs=NEEDS)
def _(rig: Rig) -> None:
    """The device is lost twice without any work: the first cause stays."""
    first, _ = [
        plant(rig.device, planted(rig.device, LOST, text, "health"), "health", nth)
        for nth, text in enumerate(("one", "two"), 1)
    ]
    for _ in range(2):
        rig.device.health()
    _check_health(rig.device.health(), HealthState.LOST, first)


@failure_loss.case("loss-in-time", "failure.loss", needs=NEEDS, timed=True)
def _(rig: Rig) -> None:
    """A waiter of other work has the cause 100 ms after the operation that loses the device."""

    def attempt(_: int) -> float:
        device = rig.open()
        (line,) = lines(rig, 1, device)
        gate, doom = rig.gate(device), Doom(rig, device)
        blocked = work(rig, "fill", device).submit(line, (gate.point,))
        with stopwatch() as seconds:
            doom.submit()
            caught(device, blocked)
        return seconds[0]

    took = fastest(3, attempt)
    expect.that(took <= LOSS_S, f"the best of three took {took:.3f} s, allowed are {LOSS_S} s")


@failure_loss.case("loss-behind-a-long-queue", "failure.loss", "failure.refuses", needs=NEEDS)
def _(rig: Rig) -> None:
    """What ran before the loss is reached, what did not has the cause; nothing stays open."""
    held, buffer, doom = lines(rig, 3), rig.buffer(1 << 16), Doom(rig)
    half = buffer.nbytes // 2
    to, of = buffer.region(0, half), buffer.region(half, half)
    points = [rig.device.copy(to, of, held[i % 3], ()) for i in range(200)]
    failure = doom.strike()
    for point in points:
        try:
            rig.done(point, timeout_s=1)
        except DeviceLost as error:
            lost_error(error, failure)
    lost_error(expect.raises(DeviceLost, rig.device.copy, to, of, held[0], ()), failure)


@failure_loss.case("loss-and-waits-with-deadline", "failure.loss", "wait.deadline", needs=NEEDS)
def _(rig: Rig) -> None:
    """Polls and short waits of a lost device's points raise at once, too."""
    (line,) = lines(rig, 1)
    gate, doom = rig.gate(), Doom(rig)
    blocked = work(rig, "fill").submit(line, (gate.point,))
    failure = doom.strike()
    for timeout_s in (0, 0.001, 1):
        for wait_all in (True, False):
            points = [blocked, gate.point]
            error = expect.raises(DeviceLost, rig.device.wait, points, timeout_s, wait_all)
            lost_error(error, failure)


@failure_loss.case("scope-decides-the-error", "wait.raises", needs=NEEDS, scope=tuple(Scope))
def _(rig: Rig, scope: Scope) -> None:
    """DEVICE and RESET lose the device whatever the kind says; no other scope does."""
    (line,) = lines(rig, 1)
    how = (FailureKind.ILLEGAL_ADDRESS, scope)
    failure = plant(rig.device, planted(rig.device, how, hook="fill"), "fill")
    error = caught(rig.device, work(rig, "fill").submit(line, ()))
    expect.equal(error.failure, failure, "the failure")
    lost = scope in (Scope.DEVICE, Scope.RESET)
    expect.equal(isinstance(error, DeviceLost), lost, "whether the waiter got DeviceLost")
    expect.equal(rig.device.health().state is not HealthState.OK, lost, "whether it is lost")


def _check_health(health: Health, state: HealthState, cause: Failure) -> None:
    expect.equal((health.state, health.cause), (state, cause), "the state and its cause")
