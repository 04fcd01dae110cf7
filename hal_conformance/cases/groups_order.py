"""Groups: the order of collectives and of what comes before and after them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from hal.core.dtypes import DType
from hal.core.values import AllocOptions, Buffer, Collective, CollectiveKind, Point, ReduceKind
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.collectives import Array, combined, expected, source_count, values
from hal_conformance.crowd import Member, crowd, join, together
from hal_conformance.expect import Wrong
from hal_conformance.members import GROUP, SHORT_S, SUM, cause_of, submitted
from hal_conformance.rig import Rig

groups_order = Cases("H", Level.DEVICES)


@groups_order.case("two-groups-at-once", "timeline.independent", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """Each rank submits to both groups, in another order: neither holds the other up."""
    devices = rig.devices(2)
    one, two = join(rig, devices), join(rig, devices)
    points = [
        (one[0], submitted(rig, one[0], SUM)), (two[0], submitted(rig, two[0], SUM)),
        (two[1], submitted(rig, two[1], SUM)), (one[1], submitted(rig, one[1], SUM)),
    ]  # fmt: skip
    for member, point in points:
        rig.done(point, member.device)


@groups_order.case("waits-for-its-source", "submit.waits", needs=GROUP, devices=2)
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


@groups_order.case("feeds-what-follows", "submit.order", needs=GROUP, devices=2)
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


@groups_order.case("poisoned-member", "submit.fails", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """A rank whose wait failed fails its own call with that cause, and the others get an error
    at their deadline or before, not a result."""
    # Long enough for the gate's failure to come first on a busy machine.
    members, cause = crowd(rig, 2, timeout_s=4 * SHORT_S), cause_of(rig)
    gate = rig.gate()
    region = rig.buffer(64).region()
    first = members[0].call(SUM, region, region, [gate.point])
    second = submitted(rig, members[1], SUM)
    gate.fail(cause)
    expect.equal(rig.failed(first, members[0].device), cause, "the failure of the rank itself")
    rig.failed(second, members[1].device)


@groups_order.case("hundred-in-a-row", "submit.order", needs=GROUP, devices=2)
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


@groups_order.case("random-calls", "collective.exact", needs=GROUP, devices=2, part=range(4))
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


@groups_order.case("from-threads", "call.threads", needs=GROUP, devices=2)
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
