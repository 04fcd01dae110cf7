"""What collectives compute, against numpy: kinds, sizes, element types, reductions, roots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.values import Collective, CollectiveKind, ReduceKind
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.collectives import Array, combined, expected, source_count, tolerance, values
from hal_conformance.crowd import Member, crowd, perform
from hal_conformance.expect import Unfit
from hal_conformance.rig import Rig

groups_exact = Cases("H", Level.DEVICES)

GROUP = (Feature.COLLECTIVES,)
KINDS = tuple(kind for kind in CollectiveKind if kind is not CollectiveKind.BARRIER)
FOLDS = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER)
COUNTS = (0, 1, 7, 257)


@groups_exact.case(
    "result", "collective.exact", needs=GROUP, devices=2, kind=KINDS, ranks=(2, 3, 4, 8)
)
def _(rig: Rig, kind: CollectiveKind, ranks: int) -> None:
    dtype = _float(rig)
    members = crowd(rig, ranks)
    for count in COUNTS:
        _check(rig, members, _call(rig, kind, dtype, ranks, count))


@groups_exact.case("alone", "collective.exact", needs=GROUP, kind=KINDS)
def _(rig: Rig, kind: CollectiveKind) -> None:
    _check(rig, crowd(rig, 1), _call(rig, kind, _float(rig), 1, 5))


@groups_exact.case("type", "collective.exact", needs=GROUP, devices=2, dtype=tuple(DType))
def _(rig: Rig, dtype: DType) -> None:
    if dtype not in rig.info.dtypes:
        raise Unfit(f"the device has no {dtype.short}")
    members = crowd(rig, 3 if len(rig.setting.peers) > 2 else 2)
    for kind in KINDS:
        _check(rig, members, _call(rig, kind, dtype, len(members), 13))


@groups_exact.case(
    "reduction", "collective.exact", needs=GROUP, devices=2, reduce=tuple(ReduceKind), kind=FOLDS
)
def _(rig: Rig, reduce: ReduceKind, kind: CollectiveKind) -> None:
    members = crowd(rig, 2)
    for dtype in rig.info.dtypes:
        if dtype is not DType.BOOL or reduce is not ReduceKind.AVG:
            _check(rig, members, Collective(kind, dtype, 11, reduce))


@groups_exact.case(
    "root",
    "collective.exact",
    needs=GROUP,
    devices=2,
    kind=(
        CollectiveKind.BROADCAST,
        CollectiveKind.REDUCE,
        CollectiveKind.GATHER,
        CollectiveKind.SCATTER,
    ),
)
def _(rig: Rig, kind: CollectiveKind) -> None:
    members = crowd(rig, min(4, len(rig.setting.peers)))
    for root in range(len(members)):
        _check(rig, members, Collective(kind, _float(rig), 9, root=root))


@groups_exact.case(
    "in-place",
    "collective.in_place",
    needs=GROUP,
    devices=2,
    kind=(CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL),
)
def _(rig: Rig, kind: CollectiveKind) -> None:
    members = crowd(rig, min(3, len(rig.setting.peers)))
    for count in COUNTS:
        _check(rig, members, Collective(kind, _float(rig), count), in_place=True)


@groups_exact.case("large", "collective.exact", needs=GROUP, devices=2, kind=KINDS)
def _(rig: Rig, kind: CollectiveKind) -> None:
    members = crowd(rig, 2)
    count = 2**18 + 1 if kind is CollectiveKind.ALL_REDUCE else 2**15 + 1
    _check(rig, members, _call(rig, kind, _float(rig), 2, count))


@groups_exact.case("uneven-parts", "collective.exact", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    members = crowd(rig, min(4, len(rig.setting.peers)))
    size = len(members)
    for _ in range(5):
        counts = tuple(tuple(int(n) for n in rig.random.integers(0, 40, size)) for _ in members)
        _check(rig, members, Collective(CollectiveKind.ALL_TO_ALL_V, _float(rig), 0, counts=counts))


@groups_exact.case(
    "narrow-accumulates-wide",
    "collective.accumulate",
    needs=GROUP,
    devices=3,
    dtype=tuple(d for d in DType if d.is_narrow),
)
def _(rig: Rig, dtype: DType) -> None:
    """1 + e/2 + e/2 is 1 + e, where e is the type's step at 1; in the type itself it stays 1."""
    if dtype not in rig.info.dtypes:
        raise Unfit(f"the device has no {dtype.short}")
    call = Collective(CollectiveKind.ALL_REDUCE, dtype, 4)
    step = 2.0**-dtype.mantissa
    numpy = values(rig, dtype, 1).dtype
    sources = [np.full(4, x, numpy) for x in (1.0, step / 2, step / 2)]
    for got in perform(rig, crowd(rig, 3), call, sources):
        expect.same(got, np.full(4, 1 + step, numpy), "the sum on a rank")


@groups_exact.case("nan-and-infinity", "collective.exact", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    members, dtype = crowd(rig, 2), _float(rig)
    numpy = values(rig, dtype, 1).dtype
    sources = [
        np.array([np.nan, np.inf, -np.inf, np.inf, 1], numpy),
        np.array([1, np.inf, 1, -np.inf, np.nan], numpy),
    ]
    for reduce in (ReduceKind.SUM, ReduceKind.MIN, ReduceKind.MAX):
        call = Collective(CollectiveKind.ALL_REDUCE, dtype, 5, reduce)
        for got in perform(rig, members, call, sources):
            expect.same(got, combined(call, sources), f"the {reduce.value} on a rank")


@groups_exact.case("equal-bits", "collective.deterministic", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    if not rig.info.numeric.deterministic:
        raise Unfit("the device does not say that it is deterministic")
    members = crowd(rig, min(4, len(rig.setting.peers)))
    call = Collective(CollectiveKind.ALL_REDUCE, _float(rig), 501)
    sources = [values(rig, call.dtype, 501) for _ in members]
    first = perform(rig, members, call, sources)
    for _ in range(20):
        for again, once in zip(perform(rig, members, call, sources), first, strict=True):
            expect.same_bytes(again.tobytes(), once.tobytes(), "a repeated sum")


@groups_exact.case("ranks-agree", "collective.exact", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """Every rank of an all-reduce has the same bits, also where the order of a sum is free."""
    members = crowd(rig, min(4, len(rig.setting.peers)))
    call = Collective(CollectiveKind.ALL_REDUCE, _float(rig), 1001)
    results = perform(rig, members, call, [values(rig, call.dtype, 1001) for _ in members])
    for other in results[1:]:
        expect.same_bytes(other.tobytes(), results[0].tobytes(), "the sum on another rank")


@groups_exact.case("outside-untouched", "collective.exact", needs=GROUP, devices=2, kind=KINDS)
def _(rig: Rig, kind: CollectiveKind) -> None:
    """Sources stay as they are, and nothing beside the destination is written."""
    members, dtype = crowd(rig, 2), _float(rig)
    call = _call(rig, kind, dtype, 2, 5)
    width, wanted = dtype.nbytes, expected(call, _sources(rig, members, call))
    sources = _sources(rig, members, call)
    src = [rig.buffer(s, m.device) for s, m in zip(sources, members, strict=True)]
    sizes = [len(w) * width for w in wanted]
    dst = [
        rig.buffer(b"\xc5" * (n + 16 * width), m.device)
        for n, m in zip(sizes, members, strict=True)
    ]
    points = [
        m.call(call, d.region(8 * width, n), s.region())
        for m, d, n, s in zip(members, dst, sizes, src, strict=True)
    ]
    for m, d, s, n, point, data in zip(members, dst, src, sizes, points, sources, strict=True):
        rig.done(point, m.device)
        after, edge = rig.read(d, m.device), b"\xc5" * (8 * width)
        expect.same_bytes(after[: 8 * width] + after[8 * width + n :], 2 * edge, "the canaries")
        expect.same_bytes(rig.read(s, m.device), data.tobytes(), "the source afterwards")


@groups_exact.case("barrier", "collective.exact", needs=GROUP, devices=2)
def _(rig: Rig) -> None:
    """No member passes before the last one came."""
    members = crowd(rig, min(3, len(rig.setting.peers)))
    call = Collective(CollectiveKind.BARRIER, DType.U8, 0)
    empty = [rig.buffer(0, m.device).region() for m in members]
    early = [m.call(call, e, e) for m, e in zip(members[1:], empty[1:], strict=True)]
    for member, point in zip(members[1:], early, strict=True):
        expect.that(
            not member.device.wait([point], 0.02, True), "a member passed before the last one came"
        )
    last = members[0].call(call, empty[0], empty[0])
    for member, point in zip(members, [last, *early], strict=True):
        rig.done(point, member.device)


def _float(rig: Rig) -> DType:
    if DType.F32 not in rig.info.dtypes:
        raise Unfit("the device has no f32")
    return DType.F32


def _call(rig: Rig, kind: CollectiveKind, dtype: DType, ranks: int, count: int) -> Collective:
    """A call of that kind; the parts of an ALL_TO_ALL_V are random, up to `count`."""
    if kind is not CollectiveKind.ALL_TO_ALL_V:
        return Collective(kind, dtype, count)
    row = tuple(int(n) for n in rig.random.integers(0, count + 1, ranks))
    return Collective(kind, dtype, 0, counts=tuple(row[i:] + row[:i] for i in range(ranks)))


def _sources(rig: Rig, members: Sequence[Member], call: Collective) -> list[Array]:
    size = len(members)
    return [values(rig, call.dtype, source_count(call, r, size)) for r in range(size)]


def _check(rig: Rig, members: Sequence[Member], call: Collective, in_place: bool = False) -> None:
    sources = _sources(rig, members, call)
    got, wanted = perform(rig, members, call, sources, in_place), expected(call, sources)
    sums = call.kind in FOLDS and call.reduce not in (ReduceKind.MIN, ReduceKind.MAX)
    exact = not (sums and call.dtype.is_float)
    for rank, (g, w) in enumerate(zip(got, wanted, strict=True)):
        what = f"{call.kind.value} of {call.count} {call.dtype.short} on rank {rank}"
        if exact or not len(w):
            expect.same_bytes(g.tobytes(), w.tobytes(), what)
        else:
            part = tolerance(call, sources)
            if call.kind is CollectiveKind.REDUCE_SCATTER:
                part = part[rank * call.count : (rank + 1) * call.count]
            expect.near(g, w, part, what)
