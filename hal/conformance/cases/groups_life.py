"""Groups: joining, disagreeing, members that do not come or are lost, abort, shrink."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hal.conformance import expect
from hal.conformance.case import Cases, Level
from hal.conformance.crowd import (
    Array,
    Member,
    combined,
    crowd,
    expected,
    join,
    new_key,
    perform,
    settled,
    source_count,
    together,
    values,
    wanted_count,
)
from hal.conformance.expect import Unfit, Wrong
from hal.conformance.held import check_held, held
from hal.conformance.rig import Rig
from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.errors import (
    DeadlineExceeded,
    Failure,
    FailureKind,
    HalError,
    InvalidCall,
    OperationFailed,
    Scope,
    StaleHandle,
)
from hal.core.values import (
    AllocOptions,
    Buffer,
    Collective,
    CollectiveKind,
    Fault,
    GroupSpec,
    Point,
    ReduceKind,
)

groups_life = Cases("H", Level.DEVICES)

GROUP = (Feature.COLLECTIVES,)
SUM = Collective(CollectiveKind.ALL_REDUCE, DType.I32, 16)
SHORT_S = 0.15
"""The deadline of members who wait for one that does not come."""


# joining


@groups_life.case("ranks-and-size", "collective.exact", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    members = crowd(rig, 2)
    expect.equal([(m.group.rank, m.group.size) for m in members], [(0, 2), (1, 2)], "the members")


@groups_life.case("missing-at-creation", "group.missing", needs=GROUP, devices=3)
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


@groups_life.case("join-again-after-missing", "group.missing", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """A join that ended at its deadline leaves nothing in the way of the next one."""
    devices, key = rig.devices(2), new_key()
    peers = tuple(device.name for device in devices)
    spec = GroupSpec(key, 0, peers, 0.05)
    expect.raises(DeadlineExceeded, devices[0].create_group, spec)
    _sum(rig, join(devices, key=key))


@groups_life.case("disagree-on-peers", "group.disagree", needs=GROUP, devices=3)
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


@groups_life.case("rank-out-of-range", "call.refused", needs=GROUP)
def _(rig: Rig) -> None:
    for rank in (-1, 1):
        spec = GroupSpec(new_key(), rank, (rig.name,), SHORT_S)
        expect.raises(InvalidCall, rig.device.create_group, spec)


@groups_life.case("not-among-peers", "call.refused", needs=GROUP)
def _(rig: Rig) -> None:
    spec = GroupSpec(new_key(), 0, ("nobody:7",), SHORT_S)
    expect.raises((InvalidCall,), rig.device.create_group, spec)


@groups_life.case("freed-group", "handle.stale", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    members = crowd(rig, 2)
    region = rig.buffer(64).region()
    rig.device.free(members[0].group)
    expect.raises(StaleHandle, members[0].call, SUM, region, region)


@groups_life.case("create-and-free-200", "open.leaks", needs=GROUP, devices=2, timeout_s=40)
def _(rig: Rig) -> None:
    devices = rig.devices(2)
    for turn in range(200):
        members = join(devices)
        if turn == 20:
            before = held()
        for member in members:
            member.device.free(member.group)
            member.device.free(member.timeline)
    check_held(before, "180 groups", slack=4)


@groups_life.case("other-seats", "collective.exact", needs=GROUP, devices=3)
def _(rig: Rig) -> None:
    """Ranks follow `peers`, not the order of the devices."""
    devices = rig.devices(3)
    members = join([devices[2], devices[0], devices[1]])
    call = Collective(CollectiveKind.ALL_GATHER, DType.I32, 2)
    sources = [np.full(2, rank, np.int32) for rank in range(3)]
    for got in perform(rig, members, call, sources):
        expect.equal(got.tolist(), [0, 0, 1, 1, 2, 2], "the gathered ranks")


# refused calls


@groups_life.case("wrong-size", "collective.refused", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """Refused on the member that brings it, before it counts as a call."""
    members = crowd(rig, 2)
    good, bad = rig.buffer(64).region(), rig.buffer(60).region()
    for dst, src in ((bad, good), (good, bad)):
        expect.raises(InvalidCall, members[0].call, SUM, dst, src)
    _sum(rig, members)


@groups_life.case("wrong-root", "collective.refused", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    members = crowd(rig, 2)
    region = rig.buffer(64).region()
    for root in (-1, 2):
        call = Collective(CollectiveKind.BROADCAST, DType.I32, 16, root=root)
        expect.raises(InvalidCall, members[0].call, call, region, region)
    _sum(rig, members)


@groups_life.case("no-average-of-bools", "collective.refused", needs=GROUP)
def _(rig: Rig) -> None:
    if DType.BOOL not in rig.info.dtypes:
        raise Unfit("the device has no bool")
    (member,) = crowd(rig, 1)
    region = rig.buffer(16).region()
    call = Collective(CollectiveKind.ALL_REDUCE, DType.BOOL, 16, ReduceKind.AVG)
    expect.raises(InvalidCall, member.call, call, region, region)


@groups_life.case(
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
        members = crowd(rig, 2)
        points = [_submit(rig, m, call) for m, call in zip(members, calls, strict=True)]
        for member, point in zip(members, points, strict=True):
            rig.failed(point, member.device)


@groups_life.case("mismatch-is-told", "collective.mismatch", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """The message has both counts."""
    members = crowd(rig, 2)
    points = [_submit(rig, m, replace(SUM, count=n)) for m, n in zip(members, (16, 9), strict=True)]
    text = " ".join(rig.failed(p, m.device).message for m, p in zip(members, points, strict=True))
    expect.that("16" in text and "9" in text, f"the messages do not tell the counts: {text}")


# members that do not come


@groups_life.case("missing-member", "collective.missing", needs=GROUP, devices=3)
def _(rig: Rig) -> None:
    members = crowd(rig, 3, timeout_s=SHORT_S)
    points = [_submit(rig, member, SUM) for member in members[:2]]
    for member, point in zip(members[:2], points, strict=True):
        failure = rig.failed(point, member.device)
        expect.equal(failure.scope, Scope.PEER, "the failure's scope")
        expect.that("2" in failure.message, f"the message does not name rank 2: {failure}")


@groups_life.case("late-member-fails-too", "collective.missing", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """After the deadline nobody gets a result, the late member included."""
    members = crowd(rig, 2, timeout_s=0.05)
    rig.failed(_submit(rig, members[0], SUM), members[0].device)
    try:
        point = _submit(rig, members[1], SUM)
    except HalError:
        return
    rig.failed(point, members[1].device)


@groups_life.case("slow-member", "collective.exact", needs=GROUP, devices=2)
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


@groups_life.case(
    "lost-member",
    "collective.missing",
    "failure.loss",
    needs=(*GROUP, Feature.INJECT),
    devices=3,
    level=Level.RESILIENT,
)
def _(rig: Rig) -> None:
    members = crowd(rig, 3)
    points = [_submit(rig, member, SUM) for member in members[:2]]
    _lose(rig, members[2])
    for member, point in zip(members[:2], points, strict=True):
        failure = rig.failed(point, member.device, timeout_s=2.0)
        expect.equal(failure.scope, Scope.PEER, "the failure's scope")
        expect.that("2" in failure.message, f"the message does not name rank 2: {failure}")


@groups_life.case("closed-member", "collective.missing", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    members = crowd(rig, 2)
    point = _submit(rig, members[0], SUM)
    members[1].device.close()
    failure = rig.failed(point, members[0].device, timeout_s=2.0)
    expect.equal(failure.scope, Scope.PEER, "the failure's scope")


# abort


@groups_life.case("abort-wakes", "abort.wakes", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """From another thread, while one waits; the cause arrives unchanged."""
    members, cause = crowd(rig, 2), _cause(rig)
    point = _submit(rig, members[0], SUM)
    abort = threading.Timer(0.02, members[0].device.abort, (members[0].group, cause))
    abort.start()
    try:
        expect.equal(rig.failed(point, members[0].device, timeout_s=2.0), cause, "the failure")
    finally:
        abort.join(5)


@groups_life.case("abort-again", "abort.wakes", "async_error.first", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """The first cause stays."""
    (member, _other), cause = crowd(rig, 2), _cause(rig)
    expect.equal(member.device.async_error(member.group), None, "async_error of a sound group")
    for message in ("first", "second"):
        member.device.abort(member.group, replace(cause, message=message))
    error = member.device.async_error(member.group)
    expect.equal(error, replace(cause, message="first"), "async_error")


@groups_life.case("abort-is-local", "abort.wakes", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """The member's own later calls fail; its timeline's other work does not wait for anybody."""
    (member, _other), cause = crowd(rig, 2), _cause(rig)
    member.device.abort(member.group, cause)
    expect.equal(rig.failed(_submit(rig, member, SUM), member.device), cause, "a later call")
    buffer = rig.buffer(b"\x01" * 8)
    expect.same_bytes(rig.read(buffer), b"\x01" * 8, "a copy on the device afterwards")


@groups_life.case("other-group-untouched", "submit.apart", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    devices = rig.devices(2)
    broken, sound = join(devices), join(devices)
    broken[0].device.abort(broken[0].group, _cause(rig))
    _sum(rig, sound)
    expect.equal(sound[0].device.async_error(sound[0].group), None, "async_error of a sound group")


# shrink


@groups_life.case("shrink", "shrink.works", needs=GROUP, devices=3)
def _(rig: Rig) -> None:
    members = crowd(rig, 3)
    survivors = _shrunk(members, (0, 2))
    expect.equal([m.group.rank for m in survivors], [0, 1], "the survivors' ranks")
    _sum(rig, survivors)


@groups_life.case("shrink-after-abort", "shrink.works", needs=GROUP, devices=3)
def _(rig: Rig) -> None:
    members = crowd(rig, 3)
    point = _submit(rig, members[0], SUM)
    for member in (members[0], members[2]):
        member.device.abort(member.group, _cause(rig))
    rig.failed(point, members[0].device)
    _sum(rig, _shrunk(members, (0, 2)))


@groups_life.case(
    "shrink-after-loss",
    "shrink.works",
    needs=(*GROUP, Feature.INJECT),
    devices=3,
    level=Level.RESILIENT,
)
def _(rig: Rig) -> None:
    members = crowd(rig, 3)
    points = [_submit(rig, member, SUM) for member in members[:2]]
    _lose(rig, members[2])
    for member, point in zip(members, points, strict=False):
        rig.failed(point, member.device)
    _sum(rig, _shrunk(members, (0, 1)))


@groups_life.case("shrink-twice", "shrink.works", needs=GROUP, devices=4)
def _(rig: Rig) -> None:
    members = crowd(rig, 4)
    names = [members[0].device.name, members[3].device.name]
    members = _shrunk(_shrunk(members, (0, 2, 3)), (0, 2))
    expect.equal([m.device.name for m in members], names, "the devices of the survivors")
    _sum(rig, members)


@groups_life.case("shrink-without-oneself", "call.refused", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    members = crowd(rig, 2)
    expect.raises(InvalidCall, members[0].device.shrink, members[0].group, (1,))
    expect.raises(InvalidCall, members[0].device.shrink, members[0].group, (0, 5))


@groups_life.case("split", "collective.exact", needs=GROUP, devices=4)
def _(rig: Rig) -> None:
    """Two halves of one group, each a group of its own at the same time."""
    members = crowd(rig, 4)
    even, odd = _shrunk(members, (0, 2)), _shrunk(members, (1, 3))
    _sum(rig, even)
    _sum(rig, odd)
    _sum(rig, members)


# order


@groups_life.case("two-groups-at-once", "timeline.independent", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """Each rank submits to both groups, in another order: neither holds the other up."""
    devices = rig.devices(2)
    one, two = join(devices), join(devices)
    points = [
        (one[0], _submit(rig, one[0], SUM)), (two[0], _submit(rig, two[0], SUM)),
        (two[1], _submit(rig, two[1], SUM)), (one[1], _submit(rig, one[1], SUM)),
    ]  # fmt: skip
    for member, point in points:
        rig.done(point, member.device)


@groups_life.case("waits-for-its-source", "submit.waits", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """A rank whose source is written behind a gate: the sum has the late bytes."""
    members = crowd(rig, 2)
    gate = rig.gate()
    late = rig.buffer(bytes(64))
    side = members[0].device.create_timeline(False)
    written = members[0].device.fill(late.region(), b"\x07\0\0\0", side, [gate.point])
    first = members[0].call(SUM, late.region(), late.region(), [written])
    other = rig.buffer(np.full(16, 5, np.int32), members[1].device)
    second = members[1].call(SUM, other.region(), other.region())
    expect.that(rig.pending(first), "a collective ran before its wait")
    gate.open()
    for member, buffer, point in zip(members, (late, other), (first, second), strict=True):
        rig.done(point, member.device)
        wanted = np.full(16, 12, np.int32).tobytes()
        expect.same_bytes(rig.read(buffer, member.device), wanted, "the sum")


@groups_life.case("feeds-what-follows", "submit.order", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """A copy behind the collective on the same timeline sees its result."""
    members = crowd(rig, 2)
    buffers = [rig.buffer(np.full(16, 3, np.int32), m.device) for m in members]
    copies = [rig.buffer(64, m.device) for m in members]
    points = []
    for m, b, c in zip(members, buffers, copies, strict=True):
        m.call(SUM, b.region(), b.region())
        points.append(m.device.copy(c.region(), b.region(), m.timeline, ()))
    for m, c, point in zip(members, copies, points, strict=True):
        rig.done(point, m.device)
        expect.same_bytes(rig.read(c, m.device), np.full(16, 6, np.int32).tobytes(), "the copy")


@groups_life.case("poisoned-member", "submit.fails", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """A rank whose wait failed fails its own call with that cause, and the others get an error
    at their deadline or before, not a result."""
    members, cause = crowd(rig, 2, timeout_s=SHORT_S), _cause(rig)
    gate = rig.gate()
    region = rig.buffer(64).region()
    first = members[0].call(SUM, region, region, [gate.point])
    second = _submit(rig, members[1], SUM)
    gate.fail(cause)
    expect.equal(rig.failed(first, members[0].device), cause, "the failure of the rank itself")
    rig.failed(second, members[1].device)


@groups_life.case("hundred-in-a-row", "submit.order", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """x += x of the other, a hundred times without a wait between."""
    members = crowd(rig, 2)
    buffers = [
        rig.buffer(np.arange(16, dtype=np.int32) + r, m.device) for r, m in enumerate(members)
    ]
    points: list[Point] = []
    for _ in range(100):
        points = [
            m.call(SUM, b.region(), b.region()) for m, b in zip(members, buffers, strict=True)
        ]
    total = np.arange(16, dtype=np.int32) * 2 + 1
    for _ in range(99):
        total = total + total
    for m, b, point in zip(members, buffers, points, strict=True):
        rig.done(point, m.device)
        expect.same_bytes(rig.read(b, m.device), total.tobytes(), "the hundredth sum")


@groups_life.case("random-calls", "collective.exact", needs=GROUP, devices=2, part=range(4))
def _(rig: Rig, part: int) -> None:
    """Random kinds, sizes, types and reductions against a model, without a wait between."""
    members = crowd(rig, min(2 + part, len(rig.setting.peers)))
    dtypes = [d for d in rig.info.dtypes if d.is_int] or [DType.F32]
    open_calls = [_random_call(rig, members, dtypes) for _ in range(25)]
    for call, points, dst, wanted in open_calls:
        for rank, member in enumerate(members):
            rig.done(points[rank], member.device)
            got = rig.read(dst[rank], member.device)
            expect.same_bytes(got, wanted[rank].tobytes(), f"{call} on rank {rank}")


@groups_life.case("from-threads", "call.threads", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """Each rank is driven by its own thread."""
    members = crowd(rig, min(4, len(rig.setting.peers)))
    data = [values(rig, DType.I32, 16) for _ in members]
    wanted = combined(SUM, data).tobytes()

    def drive(member: Member, mine: Array) -> bytes:
        buffer = member.device.alloc(64, AllocOptions())
        timeline = member.timeline
        member.device.copy(buffer.region(), mine.tobytes(), timeline, ())
        for _ in range(10):
            out = member.device.alloc(64, AllocOptions())
            point = member.call(SUM, out.region(), buffer.region())
        host = bytearray(64)
        end = member.device.copy(host, out.region(), timeline, [point])
        if not member.device.wait([end], 10, True):
            raise Wrong("a member's calls did not end")
        return bytes(host)

    drivers = [partial(drive, m, mine) for m, mine in zip(members, data, strict=True)]
    for got in together(drivers):
        expect.same_bytes(got, wanted, "the sum on a rank")


def _sum(rig: Rig, members: Sequence[Member]) -> None:
    """The group works: a sum of random integers is right."""
    sources = [values(rig, DType.I32, 16) for _ in members]
    for got in perform(rig, members, SUM, sources):
        expect.same_bytes(got.tobytes(), combined(SUM, sources).tobytes(), "the sum")


def _submit(rig: Rig, member: Member, call: Collective) -> Point:
    """Submit a call with regions that fit it."""
    size, rank, width = member.group.size, member.group.rank, call.dtype.nbytes
    src = rig.buffer(source_count(call, rank, size) * width, member.device)
    dst = rig.buffer(wanted_count(call, rank, size) * width, member.device)
    return member.call(call, dst.region(), src.region())


def _random_call(
    rig: Rig, members: Sequence[Member], dtypes: Sequence[DType]
) -> tuple[Collective, list[Point], list[Buffer], list[Array]]:
    kinds = [k for k in CollectiveKind if k is not CollectiveKind.ALL_TO_ALL_V]
    size = len(members)

    def choose(most: int) -> int:
        return int(rig.random.integers(most))

    call = Collective(
        kinds[choose(len(kinds))],
        dtypes[choose(len(dtypes))],
        choose(30),
        list(ReduceKind)[choose(5)],
        choose(size),
    )
    sources = [values(rig, call.dtype, source_count(call, r, size)) for r in range(size)]
    wanted = expected(call, sources)
    src = [rig.buffer(s, m.device) for s, m in zip(sources, members, strict=True)]
    dst = [rig.buffer(w.nbytes, m.device) for w, m in zip(wanted, members, strict=True)]
    points = [
        m.call(call, d.region(), s.region()) for m, d, s in zip(members, dst, src, strict=True)
    ]
    return call, points, dst, wanted


def _shrunk(members: Sequence[Member], ranks: tuple[int, ...]) -> list[Member]:
    groups = together(
        [partial(members[rank].device.shrink, members[rank].group, ranks) for rank in ranks]
    )
    return [
        Member(members[rank].device, group, members[rank].device.create_timeline(False))
        for rank, group in zip(ranks, groups, strict=True)
    ]


def _lose(rig: Rig, member: Member) -> None:
    """Take the member's device away."""
    name = member.device.name
    failure = Failure(FailureKind.DEVICE_LOST, Scope.DEVICE, name, "fill", "injected loss")
    member.device.inject(Fault(failure, "fill"))
    timeline = member.device.create_timeline(False)
    buffer = rig.buffer(4, member.device)
    try:
        rig.failed(member.device.fill(buffer.region(), b"\0", timeline, ()), member.device)
    except OperationFailed:
        return


def _cause(rig: Rig) -> Failure:
    return Failure(FailureKind.ABORTED, Scope.PEER, rig.name, "collective", "the test aborts")
