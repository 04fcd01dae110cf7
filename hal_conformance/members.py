"""What members of a group do in cases that are not about what is computed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.errors import Failure, FailureKind, OperationFailed, Scope
from hal.core.values import Collective, CollectiveKind, Fault, Point
from hal_conformance import expect
from hal_conformance.collectives import combined, source_count, values, wanted_count
from hal_conformance.crowd import Member, crowd, perform, together
from hal_conformance.rig import Rig
from hal_conformance.steps import lines

GROUP = (Feature.COLLECTIVES,)
SUM = Collective(CollectiveKind.ALL_REDUCE, DType.I32, 16)
SHORT_S = 0.15
"""The deadline of members who wait for one that does not come."""


def check_sum(rig: Rig, members: Sequence[Member]) -> None:
    """The group works: a sum of random integers is right."""
    sources = [values(rig, DType.I32, 16) for _ in members]
    for got in perform(rig, members, SUM, sources):
        expect.same_bytes(got.tobytes(), combined(SUM, sources).tobytes(), "the sum")


def submitted(rig: Rig, member: Member, call: Collective) -> Point:
    """Submit a call with regions that fit it."""
    size, rank, width = member.group.size, member.group.rank, call.dtype.nbytes
    src = rig.buffer(source_count(call, rank, size) * width, member.device)
    dst = rig.buffer(wanted_count(call, rank, size) * width, member.device)
    return member.call(call, dst.region(), src.region())


def two_and_a_lost_one(rig: Rig) -> tuple[list[Member], list[Point]]:
    """Three members, and the points of the sum that two of them have begun when the third one is
    lost."""
    members = crowd(rig, 3)
    points = [submitted(rig, member, SUM) for member in members[:2]]
    lose(rig, members[2])
    return members, points


def shrunk(rig: Rig, members: Sequence[Member], ranks: tuple[int, ...]) -> list[Member]:
    """The group that members of these ranks make at once without the others."""
    groups = together(
        [partial(members[rank].device.shrink, members[rank].group, ranks) for rank in ranks]
    )
    return [
        Member(members[rank].device, group, lines(rig, 1, members[rank].device)[0])
        for rank, group in zip(ranks, groups, strict=True)
    ]


def lose(rig: Rig, member: Member) -> None:
    """Take the member's device away."""
    name = member.device.name
    failure = Failure(FailureKind.DEVICE_LOST, Scope.DEVICE, name, "fill", "injected loss")
    member.device.inject(Fault(failure, "fill"))
    timeline = rig.timeline(member.device)
    buffer = rig.buffer(4, member.device)
    try:
        rig.failed(member.device.fill(buffer.region(), b"\0", timeline, ()), member.device)
    except OperationFailed:
        return


def cause_of(rig: Rig) -> Failure:
    """Why a case aborts a group."""
    return Failure(FailureKind.ABORTED, Scope.PEER, rig.name, "collective", "the test aborts")
