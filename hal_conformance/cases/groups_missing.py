"""Groups: members that do not come, come late, are lost or close their device."""

from __future__ import annotations

import time

from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.errors import HalError, Scope
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.collectives import combined, values
from hal_conformance.crowd import crowd
from hal_conformance.members import GROUP, SHORT_S, SUM, submitted, two_and_a_lost_one
from hal_conformance.rig import Rig

groups_missing = Cases("H", Level.DEVICES)


@groups_missing.case("missing-member", "collective.missing", needs=GROUP, devices=3)
def _(rig: Rig) -> None:
    members = crowd(rig, 3, timeout_s=SHORT_S)
    points = [submitted(rig, member, SUM) for member in members[:2]]
    for member, point in zip(members[:2], points, strict=True):
        failure = rig.failed(point, member.device)
        expect.equal(failure.scope, Scope.PEER, "the failure's scope")
        expect.that("2" in failure.message, f"the message does not name rank 2: {failure}")


@groups_missing.case("late-member-fails-too", "collective.missing", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """After the deadline nobody gets a result, the late member included."""
    members = crowd(rig, 2, timeout_s=0.05)
    rig.failed(submitted(rig, members[0], SUM), members[0].device)
    try:
        point = submitted(rig, members[1], SUM)
    except HalError:
        return
    rig.failed(point, members[1].device)


@groups_missing.case("slow-member", "collective.exact", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """A member that comes late but in time spoils nothing."""
    members, data = crowd(rig, 2), [values(rig, DType.I32, 16) for _ in range(2)]
    src = [rig.buffer(x, m.device) for x, m in zip(data, members, strict=True)]
    first = members[0].call(SUM, src[0].region(), src[0].region())
    time.sleep(0.05)
    second = members[1].call(SUM, src[1].region(), src[1].region())
    for member, buffer, point in zip(members, src, (first, second), strict=True):
        rig.done(point, member.device)
        got = rig.read(buffer, member.device)
        expect.same_bytes(got, combined(SUM, data).tobytes(), "the sum")


@groups_missing.case(
    "lost-member",
    "collective.missing",
    "failure.loss",
    needs=(*GROUP, Feature.INJECT),
    devices=3,
    level=Level.RESILIENT,
)
def _(rig: Rig) -> None:
    members, points = two_and_a_lost_one(rig)
    for member, point in zip(members[:2], points, strict=True):
        failure = rig.failed(point, member.device, timeout_s=2.0)
        expect.equal(failure.scope, Scope.PEER, "the failure's scope")
        expect.that("2" in failure.message, f"the message does not name rank 2: {failure}")


@groups_missing.case("closed-member", "collective.missing", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    members = crowd(rig, 2)
    point = submitted(rig, members[0], SUM)
    members[1].device.close()
    failure = rig.failed(point, members[0].device, timeout_s=2.0)
    expect.equal(failure.scope, Scope.PEER, "the failure's scope")
