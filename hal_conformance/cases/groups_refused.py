"""Groups: calls that no member may make, and calls in which members disagree."""

from __future__ import annotations

from dataclasses import replace

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.values import Collective, CollectiveKind, ReduceKind
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.crowd import crowd
from hal_conformance.expect import Unfit
from hal_conformance.members import GROUP, SUM, check_sum, submitted
from hal_conformance.rig import Rig

groups_refused = Cases("H", Level.DEVICES)

_LATE_S = 300.0
"""A deadline of calls that is longer than any wait for a failure here: it fails them, too."""


@groups_refused.case("wrong-size", "collective.refused", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """Refused on the member that brings it, before it counts as a call."""
    members = crowd(rig, 2)
    good, bad = rig.buffer(64).region(), rig.buffer(60).region()
    for dst, src in ((bad, good), (good, bad)):
        expect.raises(InvalidCall, members[0].call, SUM, dst, src)
    check_sum(rig, members)


@groups_refused.case("wrong-root", "collective.refused", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    members = crowd(rig, 2)
    region = rig.buffer(64).region()
    for root in (-1, 2):
        call = Collective(CollectiveKind.BROADCAST, DType.I32, 16, root=root)
        expect.raises(InvalidCall, members[0].call, call, region, region)
    check_sum(rig, members)


@groups_refused.case("no-average-of-bools", "collective.refused", needs=GROUP)
def _(rig: Rig) -> None:
    if DType.BOOL not in rig.info.dtypes:
        raise Unfit("the device has no bool")
    (member,) = crowd(rig, 1)
    region = rig.buffer(16).region()
    call = Collective(CollectiveKind.ALL_REDUCE, DType.BOOL, 16, ReduceKind.AVG)
    expect.raises(InvalidCall, member.call, call, region, region)


@groups_refused.case(
    "mismatch",
    "collective.mismatch",
    needs=GROUP,
    devices=2,
    field=("kind", "dtype", "count", "reduce", "root"),
)
def _(rig: Rig, field: str) -> None:
    """Every member's call fails, whoever came first."""
    mine = Collective(CollectiveKind.REDUCE, DType.I32, 16)
    theirs = {
        "kind": replace(mine, kind=CollectiveKind.ALL_REDUCE),
        "dtype": replace(mine, dtype=DType.F32),
        "count": replace(mine, count=8),
        "reduce": replace(mine, reduce=ReduceKind.MAX),
        "root": replace(mine, root=1),
    }[field]
    for calls in ((mine, theirs), (theirs, mine)):
        members = crowd(rig, 2, timeout_s=_LATE_S)
        points = [submitted(rig, m, call) for m, call in zip(members, calls, strict=True)]
        for member, point in zip(members, points, strict=True):
            rig.failed(point, member.device)


@groups_refused.case("mismatch-is-told", "collective.mismatch", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """The message has both counts."""
    members = crowd(rig, 2)
    points = [
        submitted(rig, m, replace(SUM, count=n)) for m, n in zip(members, (16, 9), strict=True)
    ]
    text = " ".join(rig.failed(p, m.device).message for m, p in zip(members, points, strict=True))
    expect.that("16" in text and "9" in text, f"the messages do not tell the counts: {text}")
