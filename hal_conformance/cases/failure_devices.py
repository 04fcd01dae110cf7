"""Losses among several devices: each device's failure is its own."""

from __future__ import annotations

from functools import partial

from hal.core.description import Feature
from hal.core.device import Device
from hal.core.errors import DeviceLost, Failure, FailureKind, OperationFailed, Scope
from hal.core.values import Collective, CollectiveKind, HealthState, Point
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.crowd import Member, join, together
from hal_conformance.faults import FAULT, LOST, Doom, caught, lost_error, plant, planted
from hal_conformance.rig import Rig
from hal_conformance.steps import element, lines, work

failure_devices = Cases("I", Level.RESILIENT)

NEEDS = (Feature.INJECT,)
TOGETHER = (Feature.INJECT, Feature.COLLECTIVES)
JOIN_S = 0.5


@failure_devices.case("loss-leaves-the-other-device", "submit.apart", needs=NEEDS, devices=2)
def _(rig: Rig) -> None:
    """What waits on the other device waits on and then runs; its next work runs, too."""
    first, second = rig.devices(2)
    (line,) = lines(rig, 1, second)
    gate, copy, doom = rig.gate(second), work(rig, "copy", second), Doom(rig, first)
    point = copy.submit(line, (gate.point,))
    doom.strike()
    expect.that(rig.pending(point, second), "work on the other device waits on")
    expect.equal(second.health().state, HealthState.OK, "the other device's state")
    gate.open()
    rig.done(point, second)
    expect.equal(copy.ran(), True, "whether work on the other device ran")
    rig.done(work(rig, "launch", second).submit(line, ()), second)


@failure_devices.case("two-devices-lost-together", "failure.loss", needs=NEEDS, devices=2)
def _(rig: Rig) -> None:
    both = rig.devices(2)
    gates = [rig.gate(device) for device in both]
    blocked = [_blocked(rig, device, gate.point) for device, gate in zip(both, gates, strict=True)]
    dooms = [Doom(rig, device) for device in both]
    points = [doom.submit() for doom in dooms]
    for device, doom, point, other in zip(both, dooms, points, blocked, strict=True):
        for waiting in (point, other):
            lost_error(caught(device, waiting), doom.failure)
        expect.equal(device.health().cause, doom.failure, f"the cause of {device.name}")


@failure_devices.case(
    "reset-one-of-two", "reset.works", needs=(Feature.INJECT, Feature.RESET), devices=2
)
def _(rig: Rig) -> None:
    first, second = rig.devices(2)
    dooms = [Doom(rig, device) for device in (first, second)]
    failures = [doom.strike() for doom in dooms]
    rig.reset(first)
    states = (first.health().state, second.health().state)
    expect.equal(states, (HealthState.OK, HealthState.LOST), "the states of both")
    expect.equal(second.health().cause, failures[1], "the cause of the one that was not reset")
    rig.done(work(rig, "copy", first).submit(rig.timeline(first), ()), first)


@failure_devices.case("go-on-with-another", "submit.apart", needs=NEEDS, devices=2)
def _(rig: Rig) -> None:
    """A result that was kept on the host is finished on another device."""
    first, second = rig.devices(2)
    data = rig.noise(256)
    half = rig.read(rig.buffer(data, first).region(0, 128), first)
    Doom(rig, first).strike()
    kept = rig.buffer(256, second)
    rig.write(kept.region(0, 128), half, second)
    rig.write(kept.region(128, 128), data[128:], second)
    expect.same_bytes(rig.read(kept, second), data, "the result on the other device")


@failure_devices.case(
    "loss-during-a-collective", "failure.loss", "collective.missing", needs=TOGETHER, devices=2
)
def _(rig: Rig) -> None:
    """The lost member gets its cause, the other one a failure of its peer that names the rank."""
    found = _collective_with(rig, rig.devices(2), LOST)
    lost_error(found[1][0], found[1][1])
    failure = expect.failure(found[0][0], scope=Scope.PEER)
    expect.that("1" in failure.message, f"it names the rank: {failure.message}")


@failure_devices.case(
    "failure-of-one-member", "inject.true", "collective.missing", needs=TOGETHER, devices=2
)
def _(rig: Rig) -> None:
    """One member's call fails; the other one's does not stay open, and both devices work on."""
    first, second = both = rig.devices(2)
    found = _collective_with(rig, both, FAULT)
    expect.equal(expect.failure(found[1][0]), found[1][1], "the failure of the member that failed")
    expect.that(not isinstance(found[0][0], DeviceLost), "the other member's device is not lost")
    for device in (first, second):
        rig.done(work(rig, "fill", device).submit(lines(rig, 1, device)[0], ()), device)


@failure_devices.case(
    "loss-of-a-waiting-member", "failure.loss", "collective.missing", needs=TOGETHER, devices=2
)
def _(rig: Rig) -> None:
    """A member is lost after it came, while it waits for the other one, which comes late."""
    first, second = members = join(rig, rig.devices(2), JOIN_S)
    call, doom = _call(rig), Doom(rig, second.device)
    buffers = [rig.buffer(64, member.device).region() for member in members]
    late = second.call(call, buffers[1], buffers[1])
    failure = doom.strike()
    lost_error(caught(second.device, late), failure)
    error = caught(first.device, first.call(call, buffers[0], buffers[0]), 5)
    expect.failure(error, scope=Scope.PEER)
    expect.equal(first.device.health().state, HealthState.OK, "the other member's state")


def _blocked(rig: Rig, device: Device, gate: Point) -> Point:
    (line,) = lines(rig, 1, device)
    return work(rig, "fill", device).submit(line, (gate,))


def _call(rig: Rig) -> Collective:
    dtype = element(rig)
    return Collective(CollectiveKind.ALL_REDUCE, dtype, 64 // dtype.nbytes)


def _collective_with(
    rig: Rig, devices: list[Device], how: tuple[FailureKind, Scope]
) -> list[tuple[OperationFailed, Failure]]:
    """An all-reduce of two devices, in which rank 1's call fails so; each one's error, and what
    was planted."""
    members, call = join(rig, devices, JOIN_S), _call(rig)
    buffers = [rig.buffer(bytes(64), member.device).region() for member in members]
    failure = planted(members[1].device, how, hook="collective")
    plant(members[1].device, failure, "collective")
    points = [m.call(call, b, b) for m, b in zip(members, buffers, strict=True)]

    def met(member: Member, point: Point) -> tuple[OperationFailed, Failure]:
        return caught(member.device, point, 5), failure

    return together([partial(met, m, p) for m, p in zip(members, points, strict=True)])
