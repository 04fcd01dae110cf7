"""Failures that belong to no operation: every subscriber hears of each, once."""

from __future__ import annotations

from hal.core.description import Feature
from hal.core.errors import DeviceLost, Failure, FailureKind, Scope
from hal.core.values import HealthState
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.faults import LOST, caught, lost_error, plant, planted
from hal_conformance.rig import Rig
from hal_conformance.steps import QUIET_S, lines, work

failure_subscribe = Cases("I", Level.RESILIENT)

NEEDS = (Feature.SUBSCRIBE, Feature.INJECT)
SUBSCRIBERS = 17
CORRECTED = (FailureKind.DATA_CORRUPTION, Scope.OPERATION)


@failure_subscribe.case("subscribers-hear-once", "subscribe.once", "inject.true", needs=NEEDS)
def _(rig: Rig) -> None:
    heard: list[list[Failure]] = [[] for _ in range(SUBSCRIBERS)]
    for words in heard:
        rig.device.subscribe(words.append)
    failure = plant(rig.device, planted(rig.device, CORRECTED, hook="health"), "health", 2)
    states = [rig.device.health().state for _ in range(5)]
    rig.until(lambda: all(heard), "the call of every subscriber")
    rig.device.wait([rig.gate().point], QUIET_S, True)
    expect.equal(heard, [[failure]] * SUBSCRIBERS, f"what {SUBSCRIBERS} subscribers heard")
    expect.equal(states, [HealthState.OK] * 5, "the states meanwhile")


@failure_subscribe.case("subscribers-hear-each", "subscribe.once", needs=NEEDS)
def _(rig: Rig) -> None:
    heard: list[Failure] = []
    rig.device.subscribe(heard.append)
    wanted = []
    for number in range(5):
        failure = planted(rig.device, CORRECTED, f"heat {number}", "health")
        wanted.append(plant(rig.device, failure, "health"))
        rig.device.health()
        rig.until(lambda: len(heard) >= len(wanted), "the call of the subscriber")
    expect.equal(heard, wanted, "what the subscriber heard")


@failure_subscribe.case("operations-are-not-reported", "subscribe.once", needs=NEEDS)
def _(rig: Rig) -> None:
    """A failed operation belongs to its waiters."""
    (line,) = lines(rig, 1)
    heard: list[Failure] = []
    rig.device.subscribe(heard.append)
    fill = work(rig, "fill")
    plant(rig.device, planted(rig.device), "fill")
    caught(rig.device, fill.submit(line, ()))
    rig.device.wait([rig.gate().point], QUIET_S, True)
    expect.equal(heard, [], "what the subscriber heard")


@failure_subscribe.case("work-goes-on-meanwhile", "subscribe.once", "submit.apart", needs=NEEDS)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gate, copy = rig.gate(), work(rig, "copy")
    point = copy.submit(line, (gate.point,))
    rig.device.subscribe(lambda failure: None)
    plant(rig.device, planted(rig.device, CORRECTED, hook="health"), "health")
    rig.device.health()
    expect.that(rig.pending(point), "work waits on")
    gate.open()
    rig.done(point)


@failure_subscribe.case("loss-of-no-operation", "failure.loss", "subscribe.once", needs=NEEDS)
def _(rig: Rig) -> None:
    """The device goes by itself: subscribers hear of it, and every waiter wakes with the cause."""
    (line,) = lines(rig, 1)
    gate, fill = rig.gate(), work(rig, "fill")
    blocked = fill.submit(line, (gate.point,))
    heard: list[Failure] = []
    rig.device.subscribe(heard.append)
    failure = plant(rig.device, planted(rig.device, LOST, hook="health"), "health")
    rig.device.health()
    lost_error(caught(rig.device, blocked), failure)
    rig.until(lambda: bool(heard), "the call of the subscriber")
    expect.equal(heard, [failure], "what the subscriber heard")
    health = rig.device.health()
    expect.equal((health.state, health.cause), (HealthState.LOST, failure), "the state and cause")
    lost_error(expect.raises(DeviceLost, fill.submit, line, ()), failure)
