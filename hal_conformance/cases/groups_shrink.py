"""Groups: abort, and what goes on without some of the members."""

from __future__ import annotations

import threading
from dataclasses import replace

from hal.core.description import Feature
from hal.core.errors import InvalidCall
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.crowd import crowd, join
from hal_conformance.members import (
    GROUP,
    SUM,
    cause_of,
    check_sum,
    shrunk,
    submitted,
    two_and_a_lost_one,
)
from hal_conformance.rig import Rig

groups_shrink = Cases("H", Level.DEVICES)


@groups_shrink.case("abort-wakes", "abort.wakes", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """From another thread, while one waits; the cause arrives unchanged."""
    members, cause = crowd(rig, 2), cause_of(rig)
    point = submitted(rig, members[0], SUM)
    abort = threading.Timer(0.02, members[0].device.abort, (members[0].group, cause))
    abort.start()
    try:
        expect.equal(rig.failed(point, members[0].device, timeout_s=2.0), cause, "the failure")
    finally:
        abort.join(5)


@groups_shrink.case("abort-again", "abort.wakes", "async_error.first", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """The first cause stays."""
    (member, _other), cause = crowd(rig, 2), cause_of(rig)
    expect.equal(member.device.async_error(member.group), None, "async_error of a sound group")
    for message in ("first", "second"):
        member.device.abort(member.group, replace(cause, message=message))
    error = member.device.async_error(member.group)
    expect.equal(error, replace(cause, message="first"), "async_error")


@groups_shrink.case("abort-is-local", "abort.wakes", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """The member's own later calls fail; its timeline's other work does not wait for anybody."""
    (member, _other), cause = crowd(rig, 2), cause_of(rig)
    member.device.abort(member.group, cause)
    expect.equal(rig.failed(submitted(rig, member, SUM), member.device), cause, "a later call")
    buffer = rig.buffer(b"\x01" * 8)
    expect.same_bytes(rig.read(buffer), b"\x01" * 8, "a copy on the device afterwards")


@groups_shrink.case("other-group-untouched", "submit.apart", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    devices = rig.devices(2)
    broken, sound = join(rig, devices), join(rig, devices)
    broken[0].device.abort(broken[0].group, cause_of(rig))
    check_sum(rig, sound)
    expect.equal(sound[0].device.async_error(sound[0].group), None, "async_error of a sound group")


@groups_shrink.case("shrink", "shrink.works", needs=GROUP, devices=3)
def _(rig: Rig) -> None:
    members = crowd(rig, 3)
    survivors = shrunk(rig, members, (0, 2))
    expect.equal([m.group.rank for m in survivors], [0, 1], "the survivors' ranks")
    check_sum(rig, survivors)


@groups_shrink.case("shrink-after-abort", "shrink.works", needs=GROUP, devices=3)
def _(rig: Rig) -> None:
    members = crowd(rig, 3)
    point = submitted(rig, members[0], SUM)
    for member in (members[0], members[2]):
        member.device.abort(member.group, cause_of(rig))
    rig.failed(point, members[0].device)
    check_sum(rig, shrunk(rig, members, (0, 2)))


@groups_shrink.case(
    "shrink-after-loss",
    "shrink.works",
    needs=(*GROUP, Feature.INJECT),
    devices=3,
    level=Level.RESILIENT,
)
def _(rig: Rig) -> None:
    members, points = two_and_a_lost_one(rig)
    for member, point in zip(members, points, strict=False):
        rig.failed(point, member.device)
    check_sum(rig, shrunk(rig, members, (0, 1)))


@groups_shrink.case("shrink-twice", "shrink.works", needs=GROUP, devices=4)
def _(rig: Rig) -> None:
    members = crowd(rig, 4)
    names = [members[0].device.name, members[3].device.name]
    members = shrunk(rig, shrunk(rig, members, (0, 2, 3)), (0, 2))
    expect.equal([m.device.name for m in members], names, "the devices of the survivors")
    check_sum(rig, members)


@groups_shrink.case("shrink-without-oneself", "call.refused", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    members = crowd(rig, 2)
    expect.raises(InvalidCall, members[0].device.shrink, members[0].group, (1,))
    expect.raises(InvalidCall, members[0].device.shrink, members[0].group, (0, 5))


@groups_shrink.case("split", "collective.exact", needs=GROUP, devices=4)
def _(rig: Rig) -> None:
    """Two halves of one group, each a group of its own at the same time."""
    members = crowd(rig, 4)
    even, odd = shrunk(rig, members, (0, 2)), shrunk(rig, members, (1, 3))
    check_sum(rig, even)
    check_sum(rig, odd)
    check_sum(rig, members)
