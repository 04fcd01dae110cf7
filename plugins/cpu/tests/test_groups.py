"""Groups of CPU devices: what the suite's group H has no case for."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.core.errors import (
    InvalidCall,
    OperationFailed,
    StaleHandle,
)
from hal.core.values import (
    AllocOptions,
    Collective,
    CollectiveKind,
    GroupSpec,
    Point,
)
from tests.held import descriptors, threads

PLAIN = AllocOptions()
keys = itertools.count()


def join(rigs, timeout_s=10.0, key=None, peers=None):
    """All members join at once; gives their groups by rank."""
    key = key or f"group {next(keys)}"
    peers = peers or tuple(rig.device.describe().name for rig in rigs)
    with ThreadPoolExecutor(len(rigs)) as pool:
        specs = [GroupSpec(key, rank, peers, timeout_s) for rank in range(len(rigs))]
        return list(
            pool.map(lambda e: e[0].device.create_group(e[1]), zip(rigs, specs, strict=True))
        )


def call_all(rigs, groups, call, sources, dst_nbytes=None):
    """Every member makes the call, in place without `dst_nbytes`; gives each one's destination."""
    src = [rig.upload(source) for rig, source in zip(rigs, sources, strict=True)]
    dst = src
    if dst_nbytes is not None:
        pairs = zip(rigs, dst_nbytes, strict=True)
        dst = [rig.device.alloc(nbytes, AllocOptions(zero=True)) for rig, nbytes in pairs]
    points = [
        rig.device.collective(g, call, d.region(), s.region(), rig.timeline, ())
        for rig, g, d, s in zip(rigs, groups, dst, src, strict=True)
    ]
    for rig, point in zip(rigs, points, strict=True):
        rig.wait(point)
    return [rig.download(d, sources[0].dtype) for rig, d in zip(rigs, dst, strict=True)]


def test_unequal_parts_in_place_are_sent_before_they_are_overwritten(four_rigs):
    rigs = four_rigs[:3]
    counts = ((0, 1000, 1), (1, 0, 1000), (1000, 1, 0))
    sources = [np.arange(1001, dtype=np.int32) + 5000 * rank for rank in range(3)]
    call = Collective(CollectiveKind.ALL_TO_ALL_V, DType.I32, 0, counts=counts)
    parts = [np.split(s, np.cumsum(row)[:-1]) for s, row in zip(sources, counts, strict=True)]
    for rank, got in enumerate(call_all(rigs, join(rigs), call, sources)):
        assert np.array_equal(got, np.concatenate([part[rank] for part in parts]))


def test_regions_that_a_rank_does_not_use_may_be_empty(pair):
    groups = join(pair)
    ones, empty = np.ones(6, np.float32), np.empty(0, np.float32)
    gather = Collective(CollectiveKind.GATHER, DType.F32, 6, root=1)
    assert (
        call_all(pair, groups, gather, [ones, ones * 2], [0, 48])[1].tolist() == [1] * 6 + [2] * 6
    )
    scatter = Collective(CollectiveKind.SCATTER, DType.F32, 3, root=0)
    for got in call_all(pair, groups, scatter, [ones, empty], [12, 12]):
        assert got.tolist() == [1] * 3
    broadcast = Collective(CollectiveKind.BROADCAST, DType.F32, 6, root=0)
    for got in call_all(pair, groups, broadcast, [ones, empty], [24, 24]):
        assert got.tolist() == [1] * 6
    reduce = Collective(CollectiveKind.REDUCE, DType.F32, 6, root=0)
    assert call_all(pair, groups, reduce, [ones, ones], [24, 0])[0].tolist() == [2] * 6


def failing(rig, point):
    with pytest.raises(OperationFailed) as caught:
        rig.device.wait((point,), 10, True)
    return caught.value.failure


def submit(rig, group, call, timeline=None):
    buffer = rig.device.alloc(call.count * call.dtype.nbytes, PLAIN)
    region = buffer.region()
    return rig.device.collective(group, call, region, region, timeline or rig.timeline, ())


WRONG_SIZES = [
    (Collective(CollectiveKind.GATHER, DType.F32, 4, root=1), 16, 16),
    (Collective(CollectiveKind.GATHER, DType.F32, 4, root=0), 0, 16),
    (Collective(CollectiveKind.SCATTER, DType.F32, 4, root=1), 16, 16),
    (Collective(CollectiveKind.ALL_REDUCE, DType.F32, 4, counts=((1, 1), (1, 1))), 16, 16),
    (Collective(CollectiveKind.ALL_TO_ALL_V, DType.F32, 4, counts=((1, 1), (1, 1))), 8, 8),
    (Collective(CollectiveKind.ALL_TO_ALL_V, DType.F32, 0, counts=((1, 1),)), 8, 8),
    (Collective(CollectiveKind.ALL_TO_ALL_V, DType.F32, 0, counts=((1, -1), (1, 1))), 8, 0),
    (Collective(CollectiveKind.ALL_TO_ALL_V, DType.F32, 0, counts=((1, 1), (1, 1))), 8, 12),
]
"""Calls, and the bytes of a destination and a source that do not fit them on rank 0 of two."""


def test_bad_calls_are_refused_and_do_not_count(pair):
    groups = join(pair)
    rig, group = pair[0], groups[0]
    buffer = rig.device.alloc(64, PLAIN).region()
    short = Collective(CollectiveKind.ALL_REDUCE, DType.F32, 10)
    with pytest.raises(InvalidCall, match="40"):
        rig.device.collective(group, short, buffer, buffer, rig.timeline, ())
    rootless = Collective(CollectiveKind.BROADCAST, DType.F32, 16, root=2)
    with pytest.raises(InvalidCall):
        rig.device.collective(group, rootless, buffer, buffer, rig.timeline, ())
    call = Collective(CollectiveKind.ALL_REDUCE, DType.F32, 16)
    with pytest.raises(StaleHandle):
        pair[1].device.collective(group, call, buffer, buffer, pair[1].timeline, ())
    foreign = (Point(pair[1].timeline, 1),)
    with pytest.raises(StaleHandle):
        rig.device.collective(group, call, buffer, buffer, rig.timeline, foreign)
    for wrong, dst, src in WRONG_SIZES:
        regions = [rig.device.alloc(nbytes, PLAIN).region() for nbytes in (dst, src)]
        with pytest.raises(InvalidCall, match="collective"):
            rig.device.collective(group, wrong, *regions, rig.timeline, ())
    sources = [np.ones(16, np.float32)] * 2
    for got in call_all(pair, groups, call, sources, [64, 64]):
        assert (got == 2).all()


@pytest.mark.parametrize(
    ("go", "words"),
    [
        (lambda rig, group: rig.device.close(), {"closed"}),
        (lambda rig, group: rig.device.free(group), {"left the group"}),
        # whoever looks amid a reset sees that, and behind it that its groups are left
        (lambda rig, group: rig.device.reset(), {"left the group", "the device was reset"}),
    ],
)
def test_a_member_that_goes_is_named_at_once(pair, go, words):
    groups = join(pair, timeout_s=300.0)
    call = Collective(CollectiveKind.ALL_REDUCE, DType.F32, 4)
    point = submit(pair[0], groups[0], call)
    go(pair[1], groups[1])
    message = failing(pair[0], point).message
    assert "rank 1 (cpu:1)" in message
    assert any(word in message for word in words)


@pytest.mark.slow
def test_a_thousand_groups_leave_nothing_open(pair):
    before = descriptors(), threads()
    with ThreadPoolExecutor(2) as pool:
        for number in range(1000):
            specs = [GroupSpec(f"one of {number}", r, ("cpu:0", "cpu:1"), 60.0) for r in (0, 1)]
            groups = list(pool.map(lambda r, s: r.device.create_group(s), pair, specs))
            for rig, group in zip(pair, groups, strict=True):
                rig.device.free(group)
    until_s = time.monotonic() + 100  # a thread that was joined may still be on its way out
    while threads() - before[1] and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not descriptors() - before[0]
    assert not threads() - before[1]
    with pytest.raises(StaleHandle):
        pair[0].device.free(groups[0])
