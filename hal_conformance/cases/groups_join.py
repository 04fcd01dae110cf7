"""Groups: joining, seats, and what ends a membership."""

from __future__ import annotations

from functools import partial

import numpy as np

from hal.core.dtypes import DType
from hal.core.errors import DeadlineExceeded, HalError, InvalidCall, StaleHandle
from hal.core.values import Collective, CollectiveKind, GroupSpec
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.crowd import crowd, join, new_key, perform, settled
from hal_conformance.held import check_held, held
from hal_conformance.members import GROUP, SHORT_S, SUM, check_sum
from hal_conformance.rig import Rig

groups_join = Cases("H", Level.DEVICES)


@groups_join.case("ranks-and-size", "collective.exact", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    members = crowd(rig, 2)
    expect.equal([(m.group.rank, m.group.size) for m in members], [(0, 2), (1, 2)], "the members")


@groups_join.case("missing-at-creation", "group.missing", needs=GROUP, devices=3)
def _(rig: Rig) -> None:
    devices = rig.devices(3)
    peers = tuple(device.name for device in devices)
    key = new_key()
    errors = settled(
        [
            partial(devices[rank].create_group, GroupSpec(key, rank, peers, SHORT_S))
            for rank in (0, 2)
        ]
    )
    for error in errors:
        expect.that(isinstance(error, DeadlineExceeded), f"got {error!r}, not DeadlineExceeded")
        expect.that("1" in str(error), f"the message does not name rank 1: {error}")


@groups_join.case("join-again-after-missing", "group.missing", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """A join that ended at its deadline leaves nothing in the way of the next one."""
    devices, key = rig.devices(2), new_key()
    peers = tuple(device.name for device in devices)
    spec = GroupSpec(key, 0, peers, 0.05)
    expect.raises(DeadlineExceeded, devices[0].create_group, spec)
    check_sum(rig, join(rig, devices, key=key))


@groups_join.case("disagree-on-peers", "group.disagree", needs=GROUP, devices=3)
def _(rig: Rig) -> None:
    devices, key = rig.devices(3), new_key()
    a, b, c = (device.name for device in devices)
    specs = [(0, GroupSpec(key, 0, (a, b), 2)), (1, GroupSpec(key, 1, (c, b), 2))]
    errors = settled([partial(devices[i].create_group, spec) for i, spec in specs])
    expect.that(
        any(isinstance(error, InvalidCall) for error in errors)
        and all(isinstance(error, HalError) for error in errors),
        f"members that name other peers got {errors}",
    )


@groups_join.case("rank-out-of-range", "call.refused", needs=GROUP)
def _(rig: Rig) -> None:
    for rank in (-1, 1):
        spec = GroupSpec(new_key(), rank, (rig.name,), SHORT_S)
        expect.raises(InvalidCall, rig.device.create_group, spec)


@groups_join.case("not-among-peers", "call.refused", needs=GROUP)
def _(rig: Rig) -> None:
    spec = GroupSpec(new_key(), 0, ("nobody:7",), SHORT_S)
    expect.raises((InvalidCall,), rig.device.create_group, spec)


@groups_join.case("freed-group", "handle.stale", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    members = crowd(rig, 2)
    region = rig.buffer(64).region()
    rig.device.free(members[0].group)
    expect.raises(StaleHandle, members[0].call, SUM, region, region)


@groups_join.case("create-and-free-200", "open.leaks", needs=GROUP, devices=2, timeout_s=40)
def _(rig: Rig) -> None:
    devices = rig.devices(2)
    for turn in range(200):
        members = join(rig, devices)
        if turn == 20:
            before = held()
        for member in members:
            member.device.free(member.group)
            member.device.free(member.timeline)
    check_held(before, "180 groups", slack=4)


@groups_join.case("other-seats", "collective.exact", needs=GROUP, devices=3)
def _(rig: Rig) -> None:
    """Ranks follow `peers`, not the order of the devices."""
    devices = rig.devices(3)
    members = join(rig, [devices[2], devices[0], devices[1]])
    call = Collective(CollectiveKind.ALL_GATHER, DType.I32, 2)
    sources = [np.full(2, rank, np.int32) for rank in range(3)]
    for got in perform(rig, members, call, sources):
        expect.equal(got.tolist(), [0, 0, 1, 1, 2, 2], "the gathered ranks")
