"""Every kind of collective against numpy."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from hal_plugin_cpu.plugin import open_device
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.values import (
    AllocOptions,
    Collective,
    CollectiveKind,
    GroupSpec,
    OpenOptions,
    ReduceKind,
)

NUMPY = {
    dtype: np.dtype(dtype.short.replace("f", "float").replace("u", "uint"))
    for dtype in (DType.F64, DType.F32, DType.F16, DType.U64, DType.U32, DType.U16, DType.U8)
} | {d: np.dtype("int" + d.short[1:]) for d in DType if d.kind == "i"}
NUMPY |= {DType.BF16: np.dtype(ml_dtypes.bfloat16), DType.BOOL: np.dtype(bool)}
SHORT = (DType.F16, DType.BF16)
MOST = 8
keys = itertools.count()


class Crowd:
    """Members in this process."""

    sizes = (1, 2, 3, 4, 8)

    def __init__(self, devices):
        self.devices = devices
        self.timelines = [device.create_timeline(False) for device in devices]
        self.groups = {size: self.join(size) for size in self.sizes}

    def join(self, size):
        peers = tuple(f"cpu:{rank}" for rank in range(size))
        key = f"kinds {next(keys)}"
        with ThreadPoolExecutor(size) as pool:
            specs = [GroupSpec(key, rank, peers, 20.0) for rank in range(size)]
            members = zip(self.devices[:size], specs, strict=True)
            return list(pool.map(lambda e: e[0].create_group(e[1]), members))

    def call(self, call, sources, dst_nbytes, in_place):
        """The bytes of each rank's destination."""
        calls = [
            self._submit(rank, group, call, source, nbytes, in_place)
            for rank, (group, source, nbytes) in enumerate(
                zip(self.groups[len(sources)], sources, dst_nbytes, strict=True)
            )
        ]
        return [
            self._result(rank, point, given, taken)
            for rank, (point, given, taken) in enumerate(calls)
        ]

    def _submit(self, rank, group, call, source, nbytes, in_place):
        device, timeline = self.devices[rank], self.timelines[rank]
        taken = device.alloc(source.nbytes, AllocOptions())
        device.copy(taken.region(), source.tobytes(), timeline, ())
        given = taken if in_place else device.alloc(nbytes, AllocOptions(zero=True))
        point = device.collective(group, call, given.region(), taken.region(), timeline, ())
        return point, given, taken

    def _result(self, rank, point, given, taken):
        device = self.devices[rank]
        assert device.wait((point,), 20, True)
        out = bytearray(given.nbytes)
        device.wait((device.copy(out, given.region(), self.timelines[rank], ()),), 20, True)
        for buffer in {given, taken}:
            device.free(buffer)
        return bytes(out)


@pytest.fixture(scope="module")
def crowd():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HAL_CPU_DEVICES", str(MOST))
        devices = [open_device(i, OpenOptions(settings={"threads": "1"})) for i in range(MOST)]
        yield Crowd(devices)
        for device in devices:
            device.close()


def values(rng, dtype, count):
    if dtype is DType.BOOL:
        return rng.integers(0, 2, count).astype(bool)
    if dtype.is_float:
        return (rng.standard_normal(count) * 2).astype(NUMPY[dtype])
    info = np.iinfo(NUMPY[dtype])
    return rng.integers(info.min, info.max, count, NUMPY[dtype], endpoint=True)


def in_pairs(parts, fold):
    """(a + b) + (c + d), ...; what makes no whole pair is added last."""
    if len(parts) == 1:
        return parts[0]
    half = 1 << (len(parts) - 1).bit_length() - 1
    return fold(in_pairs(parts[:half], fold), in_pairs(parts[half:], fold))


def combined(call, sources):
    """Neighbours first, then pairs of pairs; short floats in float32, rounded once."""
    dtype, reduce = call.dtype, call.reduce
    wide = np.dtype(np.float32) if dtype in SHORT else NUMPY[dtype]
    parts = [source.astype(wide) for source in sources]
    if dtype is DType.BOOL:
        either = reduce in (ReduceKind.SUM, ReduceKind.MAX)
        return (np.any if either else np.all)(np.stack(parts), axis=0)
    folds = {
        ReduceKind.PROD: np.multiply,
        ReduceKind.MIN: np.minimum,
        ReduceKind.MAX: np.maximum,
    }
    with np.errstate(all="ignore"):
        total = in_pairs(parts, folds.get(reduce, np.add))
        if reduce is ReduceKind.AVG and dtype.is_float:
            total = total / wide.type(len(parts))
        elif reduce is ReduceKind.AVG:
            exact = [abs(int(x)) // len(parts) * (1 if x >= 0 else -1) for x in total]
            total = np.array(exact, wide)
        return total.astype(NUMPY[dtype])


def parts_of(call, sources):
    """Table of what rank i has for rank j."""
    size = len(sources)
    counts = call.counts or [[call.count] * size] * size
    return [np.split(s, np.cumsum(row)[:-1]) for s, row in zip(sources, counts, strict=True)]


def expected(call, sources):
    """Each rank's destination; None where it is not touched."""
    size, root, kind = len(sources), call.root, call.kind
    ranks, n = range(size), call.count
    if kind is CollectiveKind.ALL_REDUCE:
        return [combined(call, sources)] * size
    if kind is CollectiveKind.REDUCE:
        return [combined(call, sources) if r == root else None for r in ranks]
    if kind is CollectiveKind.REDUCE_SCATTER:
        whole = combined(call, sources)
        return [whole[r * n : (r + 1) * n] for r in ranks]
    if kind is CollectiveKind.BROADCAST:
        return [sources[root]] * size
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER):
        every = kind is CollectiveKind.ALL_GATHER
        return [np.concatenate(sources) if every or r == root else None for r in ranks]
    if kind is CollectiveKind.SCATTER:
        return [sources[root][r * n : (r + 1) * n] for r in ranks]
    if kind is CollectiveKind.BARRIER:
        return [None] * size
    table = parts_of(call, sources)
    return [np.concatenate([table[i][j] for i in ranks]) for j in ranks]


def taken(call, rank, size):
    """The elements of a rank's source."""
    if call.kind is CollectiveKind.ALL_TO_ALL_V:
        return sum(call.counts[rank])
    every = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL, CollectiveKind.SCATTER)
    return call.count * (size if call.kind in every else 1)


def given_nbytes(call, rank, size):
    if call.kind is CollectiveKind.ALL_TO_ALL_V:
        return sum(row[rank] for row in call.counts) * call.dtype.nbytes
    every = (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL, CollectiveKind.GATHER)
    return call.count * call.dtype.nbytes * (size if call.kind in every else 1)


def same_size(call, size):
    takes = [taken(call, rank, size) * call.dtype.nbytes for rank in range(size)]
    return takes == [given_nbytes(call, rank, size) for rank in range(size)]


def check(crowd, call, size, in_place, seed):
    rng = np.random.default_rng(seed)
    sources = [values(rng, call.dtype, taken(call, rank, size)) for rank in range(size)]
    in_place = in_place and same_size(call, size)
    nbytes = [given_nbytes(call, rank, size) for rank in range(size)]
    got = crowd.call(call, sources, nbytes, in_place)
    for rank, want in enumerate(expected(call, sources)):
        if want is None:
            want = sources[rank] if in_place else np.zeros(nbytes[rank], np.uint8)
        assert got[rank] == want.tobytes(), (rank, call)


def draw_call(data, size):
    kind, dtype = data.draw(st.sampled_from(CollectiveKind)), data.draw(st.sampled_from(DType))
    reduce = data.draw(st.sampled_from(ReduceKind))
    if dtype is DType.BOOL and reduce is ReduceKind.AVG:
        reduce = ReduceKind.SUM
    root = data.draw(st.integers(0, size - 1))
    if kind is CollectiveKind.ALL_TO_ALL_V:
        row = st.lists(st.sampled_from([0, 1, 5, 1031]), min_size=size, max_size=size)
        counts = data.draw(st.lists(row, min_size=size, max_size=size))
        return Collective(kind, dtype, 0, reduce, root, tuple(map(tuple, counts)))
    return Collective(kind, dtype, data.draw(st.sampled_from([0, 1, 7, 1024, 1031])), reduce, root)


@pytest.mark.slow
@settings(deadline=None, max_examples=300, suppress_health_check=list(HealthCheck))
@given(data=st.data(), in_place=st.booleans(), seed=st.integers(0, 999))
def test_every_kind_equals_numpy(crowd, data, in_place, seed):
    size = data.draw(st.sampled_from(crowd.sizes))
    check(crowd, draw_call(data, size), size, in_place, seed)


@pytest.mark.parametrize("kind", [CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL])
def test_a_call_longer_than_a_piece_equals_numpy(crowd, kind):
    check(crowd, Collective(kind, DType.F32, 70_001), 3, False, 1)
    check(crowd, Collective(kind, DType.BF16, 140_001), 2, True, 2)


def test_unequal_parts_in_place_are_sent_before_they_are_overwritten(crowd):
    counts = ((0, 1000, 1), (1, 0, 1000), (1000, 1, 0))
    check(crowd, Collective(CollectiveKind.ALL_TO_ALL_V, DType.I32, 0, counts=counts), 3, True, 3)


def test_regions_that_a_rank_does_not_use_may_be_empty(crowd):
    ones = np.ones(6, np.float32)
    empty = np.empty(0, np.float32)
    gather = Collective(CollectiveKind.GATHER, DType.F32, 6, root=1)
    assert crowd.call(gather, [ones, ones * 2], [0, 48], False)[1] == (
        np.concatenate([ones, ones * 2]).tobytes()
    )
    scatter = Collective(CollectiveKind.SCATTER, DType.F32, 3, root=0)
    assert crowd.call(scatter, [ones, empty], [12, 12], False) == [ones[:3].tobytes()] * 2
    broadcast = Collective(CollectiveKind.BROADCAST, DType.F32, 6, root=0)
    assert crowd.call(broadcast, [ones, empty], [24, 24], False) == [ones.tobytes()] * 2
    reduce = Collective(CollectiveKind.REDUCE, DType.F32, 6, root=0)
    assert crowd.call(reduce, [ones, ones], [24, 0], False)[0] == (ones * 2).tobytes()


@pytest.mark.parametrize(
    ("call", "dst", "src"),
    [
        (Collective(CollectiveKind.GATHER, DType.F32, 4, root=1), 16, 16),
        (Collective(CollectiveKind.GATHER, DType.F32, 4, root=0), 0, 16),
        (Collective(CollectiveKind.SCATTER, DType.F32, 4, root=1), 16, 16),
        (Collective(CollectiveKind.ALL_REDUCE, DType.F32, 4, counts=((1, 1), (1, 1))), 16, 16),
        (Collective(CollectiveKind.ALL_TO_ALL_V, DType.F32, 4, counts=((1, 1), (1, 1))), 8, 8),
        (Collective(CollectiveKind.ALL_TO_ALL_V, DType.F32, 0, counts=((1, 1),)), 8, 8),
        (Collective(CollectiveKind.ALL_TO_ALL_V, DType.F32, 0, counts=((1, -1), (1, 1))), 8, 0),
        (Collective(CollectiveKind.ALL_TO_ALL_V, DType.F32, 0, counts=((1, 1), (1, 1))), 8, 12),
    ],
)
def test_sizes_and_counts_that_do_not_fit_are_refused_and_do_not_count(crowd, call, dst, src):
    device, group = crowd.devices[0], crowd.groups[2][0]
    regions = [device.alloc(n, AllocOptions()).region() for n in (dst, src)]
    with pytest.raises(InvalidCall, match="collective"):
        device.collective(group, call, *regions, crowd.timelines[0], ())
    check(crowd, Collective(CollectiveKind.ALL_REDUCE, DType.I64, 3), 2, False, 4)
