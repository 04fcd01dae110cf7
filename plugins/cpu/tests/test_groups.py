import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.core.errors import (
    DeadlineExceeded,
    FailureKind,
    InvalidCall,
    OperationFailed,
    Scope,
    StaleHandle,
    Unsupported,
)
from hal.core.values import (
    AllocOptions,
    Collective,
    CollectiveKind,
    Fault,
    GroupSpec,
    Point,
    ReduceKind,
)

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


def call_all(rigs, groups, call, sources, dst_nbytes, in_place=False):
    """Every member makes the call; gives each one's destination."""
    src = [rig.upload(source) for rig, source in zip(rigs, sources, strict=True)]
    dst = (
        src if in_place else [rig.device.alloc(dst_nbytes, AllocOptions(zero=True)) for rig in rigs]
    )
    points = [
        rig.device.collective(g, call, d.region(), s.region(), rig.timeline, ())
        for rig, g, d, s in zip(rigs, groups, dst, src, strict=True)
    ]
    for rig, point in zip(rigs, points, strict=True):
        rig.wait(point)
    return [rig.download(d, sources[0].dtype) for rig, d in zip(rigs, dst, strict=True)]


@pytest.fixture(scope="module")
def ring(four_rigs):
    """Rigs and groups of 1 to 4 members."""
    return {size: (four_rigs[:size], join(four_rigs[:size])) for size in (1, 2, 3, 4)}


def test_nan_wins_in_min_and_max(ring):
    rigs, groups = ring[3]
    sources = [np.array(v, np.float32) for v in ([1, np.nan, 3], [np.nan, 2, 1], [4, 5, 6])]
    for reduce in (ReduceKind.MIN, ReduceKind.MAX):
        call = Collective(CollectiveKind.ALL_REDUCE, DType.F32, 3, reduce)
        for got in call_all(rigs, groups, call, sources, 12):
            assert np.isnan(got[:2]).all()
            assert got[2] == (1 if reduce is ReduceKind.MIN else 6)


def test_a_barrier_waits_for_all(ring):
    rigs, groups = ring[2]
    gate = rigs[0].device.create_timeline(True)
    call = Collective(CollectiveKind.BARRIER, DType.U8, 0)
    empty = [rig.device.alloc(0, PLAIN).region() for rig in rigs]
    waits = ((Point(gate, 1),), ())
    points = [
        rig.device.collective(g, call, e, e, rig.timeline, w)
        for rig, g, e, w in zip(rigs, groups, empty, waits, strict=True)
    ]
    assert not rigs[1].device.wait((points[1],), 0.05, True)
    rigs[0].device.signal(gate, 1, None)
    for rig, point in zip(rigs, points, strict=True):
        rig.wait(point)
        assert [span.name for span in rig.device.timestamps(point)] == ["collective"]


def test_collectives_are_ordered_with_other_work(ring, texts):
    rigs, groups = ring[4]
    cells = [rig.upload(np.full(5000, rank, np.int64)) for rank, rig in enumerate(rigs)]
    bound = [
        rig.device.bind(rig.load(texts["increment"], "increment", "bi"), (cell, 1))
        for rig, cell in zip(rigs, cells, strict=True)
    ]
    call = Collective(CollectiveKind.ALL_REDUCE, DType.I64, 5000)
    expected = np.arange(4)
    for _ in range(20):
        for rig, group, cell, launch in zip(rigs, groups, cells, bound, strict=True):
            rig.device.launch(launch, (5000, 1, 1), rig.timeline, ())
            rig.device.collective(group, call, cell.region(), cell.region(), rig.timeline, ())
        expected = np.full(4, (expected + 1).sum())
    for rig, cell in zip(rigs, cells, strict=True):
        assert (rig.download(cell, np.int64) == expected[0]).all()


def failing(rig, point):
    with pytest.raises(OperationFailed) as caught:
        rig.device.wait((point,), 10, True)
    return caught.value.failure


def submit(rig, group, call, timeline=None):
    buffer = rig.device.alloc(call.count * call.dtype.nbytes, PLAIN)
    region = buffer.region()
    return rig.device.collective(group, call, region, region, timeline or rig.timeline, ())


def test_a_mismatch_fails_on_every_member_and_names_both_calls(pair):
    groups = join(pair)
    calls = [
        Collective(CollectiveKind.ALL_REDUCE, DType.F32, 10),
        Collective(CollectiveKind.ALL_REDUCE, DType.F32, 11),
    ]
    points = [submit(rig, g, c) for rig, g, c in zip(pair, groups, calls, strict=True)]
    for rig, group, point in zip(pair, groups, points, strict=True):
        cause = failing(rig, point)
        assert "of 10 f32" in cause.message
        assert "of 11 f32" in cause.message
        assert cause.scope is Scope.PEER
        assert rig.device.async_error(group) == cause


def test_a_missing_member_fails_the_call_by_its_deadline(pair):
    groups = join(pair, timeout_s=0.1)
    call = Collective(CollectiveKind.ALL_REDUCE, DType.F32, 10)
    cause = failing(pair[0], submit(pair[0], groups[0], call))
    assert cause.kind is FailureKind.PEER_LOST
    assert "ranks [1]" in cause.message
    assert pair[0].device.async_error(groups[0]) is cause
    assert pair[1].device.async_error(groups[1]) is None
    other = pair[0].device.create_timeline(False)
    assert failing(pair[0], submit(pair[0], groups[0], call, other)) is cause


def test_abort_fails_unfinished_calls_at_once_and_only_here(pair, failure):
    groups = join(pair)
    call = Collective(CollectiveKind.ALL_REDUCE, DType.F32, 10)
    point = submit(pair[0], groups[0], call)
    cause = failure(FailureKind.ABORTED, Scope.PEER)
    threading.Timer(0.02, pair[0].device.abort, (groups[0], cause)).start()
    assert failing(pair[0], point) is cause
    pair[0].device.abort(groups[0], failure())
    assert pair[0].device.async_error(groups[0]) is cause
    assert pair[1].device.async_error(groups[1]) is None


def test_shrink_goes_on_without_the_failed_member(four_rigs):
    rigs = four_rigs[:3]
    groups = join(rigs, timeout_s=0.1)
    call = Collective(CollectiveKind.ALL_REDUCE, DType.I32, 2)
    lines = [rig.device.create_timeline(False) for rig in rigs]
    survivors = (2, 0)
    for rank in survivors:
        failing(rigs[rank], submit(rigs[rank], groups[rank], call, lines[rank]))
    with ThreadPoolExecutor(2) as pool:
        smaller = list(pool.map(lambda r: rigs[r].device.shrink(groups[r], survivors), survivors))
    assert [(g.rank, g.size) for g in smaller] == [(0, 2), (1, 2)]
    left = [rigs[rank] for rank in survivors]
    sources = [np.array([1, 2], np.int32), np.array([10, 20], np.int32)]
    for got in call_all(left, smaller, call, sources, 8):
        assert got.tolist() == [11, 22]
    with pytest.raises(InvalidCall):
        rigs[0].device.shrink(groups[0], (1, 2))


def test_joining_names_who_is_missing_and_who_disagrees(pair):
    names = ("cpu:0", "cpu:1")
    with pytest.raises(DeadlineExceeded, match=r"\[1\]"):
        pair[0].device.create_group(GroupSpec("lonely", 0, names, 0.05))
    with ThreadPoolExecutor(2) as pool:
        specs = [GroupSpec("odd", 0, names, 5), GroupSpec("odd", 1, ("cpu:9", "cpu:1"), 5)]
        futures = [pool.submit(r.device.create_group, s) for r, s in zip(pair, specs, strict=True)]
        for future in futures:
            with pytest.raises(InvalidCall, match="cpu:9"):
                future.result(20)
    with pytest.raises(InvalidCall):
        pair[0].device.create_group(GroupSpec("not me", 1, names, 0.05))
    with pytest.raises(Unsupported):
        pair[0].device.create_group(GroupSpec("far", 0, ("cpu:0", "gpu:0"), 0.05))


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
    sources = [np.ones(16, np.float32)] * 2
    for got in call_all(pair, groups, call, sources, 64):
        assert (got == 2).all()


def test_an_injected_failure_hits_one_member(pair, failure):
    groups = join(pair, timeout_s=0.1)
    planted = failure(FailureKind.LINK_DOWN, Scope.LINK)
    pair[0].device.inject(Fault(planted, "collective"))
    call = Collective(CollectiveKind.ALL_REDUCE, DType.F32, 4)
    points = [submit(rig, group, call) for rig, group in zip(pair, groups, strict=True)]
    assert failing(pair[0], points[0]) is planted
    assert failing(pair[1], points[1]).kind is FailureKind.PEER_LOST


def lose(rig, cause):
    rig.device.inject(Fault(cause, "fill"))
    rig.device.fill(rig.device.alloc(8, PLAIN).region(), b"\0", rig.timeline, ())


def test_losing_a_member_fails_the_others_long_before_their_deadline(pair, failure):
    groups = join(pair, timeout_s=300.0)
    call = Collective(CollectiveKind.ALL_REDUCE, DType.F32, 4)
    point = submit(pair[0], groups[0], call)
    lose(pair[1], failure(FailureKind.DEVICE_LOST, Scope.DEVICE))
    cause = failing(pair[0], point)
    assert (cause.kind, cause.scope) == (FailureKind.PEER_LOST, Scope.PEER)
    assert "rank 1 (cpu:1) has lost its device" in cause.message
    assert "planted" in cause.message
    pair[1].device.reset()
    with pytest.raises(StaleHandle):
        pair[1].device.collective(groups[1], call, None, None, None, ())


@pytest.mark.parametrize(
    ("go", "word"),
    [
        (lambda rig, group: rig.device.close(), "closed"),
        (lambda rig, group: rig.device.free(group), "left the group"),
        (lambda rig, group: rig.device.reset(), "left the group"),
    ],
)
def test_a_member_that_goes_is_named_at_once(pair, go, word):
    groups = join(pair, timeout_s=300.0)
    call = Collective(CollectiveKind.ALL_REDUCE, DType.F32, 4)
    point = submit(pair[0], groups[0], call)
    go(pair[1], groups[1])
    message = failing(pair[0], point).message
    assert "rank 1 (cpu:1)" in message
    assert word in message


def test_a_member_that_leaves_does_its_calls_first(pair):
    groups = join(pair)
    gate = pair[1].device.create_timeline(True)
    call = Collective(CollectiveKind.ALL_REDUCE, DType.F32, 4)
    point = submit(pair[0], groups[0], call)
    cell = pair[1].device.alloc(16, PLAIN).region()
    waits = (Point(gate, 1),)
    pair[1].device.collective(groups[1], call, cell, cell, pair[1].timeline, waits)
    pair[1].device.free(groups[1])
    assert not pair[0].device.wait((point,), 0.05, True)
    pair[1].device.signal(gate, 1, None)
    pair[0].wait(point)


def test_calls_of_two_groups_cross_on_timelines_of_their_own(pair):
    one, two = join(pair), join(pair)
    call = Collective(CollectiveKind.ALL_REDUCE, DType.F32, 4)
    lines = [[rig.device.create_timeline(False) for _ in range(2)] for rig in pair]
    for _ in range(20):
        points = [
            (rig, submit(rig, group[rank], call, lines[rank][k]))
            for rank, rig in enumerate(pair)
            for k, group in [(0, one), (1, two)][:: 1 if rank else -1]
        ]
    for rig, point in points:
        rig.wait(point)


def open_here():
    """The descriptors and the threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


@pytest.mark.slow
def test_a_thousand_groups_leave_nothing_open(pair):
    before = open_here()
    with ThreadPoolExecutor(2) as pool:
        for number in range(1000):
            specs = [GroupSpec(f"one of {number}", r, ("cpu:0", "cpu:1"), 60.0) for r in (0, 1)]
            groups = list(pool.map(lambda r, s: r.device.create_group(s), pair, specs))
            for rig, group in zip(pair, groups, strict=True):
                rig.device.free(group)
    until_s = time.monotonic() + 20  # a thread that was joined may still be on its way out
    while open_here() > before and time.monotonic() < until_s:
        time.sleep(0.01)
    assert open_here() <= before
    with pytest.raises(StaleHandle):
        pair[0].device.free(groups[0])


def test_peers_copy_both_ways(pair):
    here, there = pair
    source = here.upload(np.arange(300_000, dtype=np.uint8))
    target = there.device.alloc(300_000, PLAIN)
    here.wait(here.device.copy(target.region(), source.region(), here.timeline, ()))
    assert np.array_equal(there.download(target, np.uint8), np.arange(300_000, dtype=np.uint8))
    back = here.device.alloc(1000, PLAIN)
    here.wait(here.device.copy(back.region(), target.region(256, 1000), here.timeline, ()))
    assert np.array_equal(here.download(back, np.uint8), np.arange(1000, dtype=np.uint8))
    there.device.free(target)
    with pytest.raises(StaleHandle):
        here.device.copy(back.region(), target.region(0, 1000), here.timeline, ())


def test_a_peers_buffer_lives_until_the_copy(pair):
    here, there = pair
    gate = here.device.create_timeline(True)
    source = there.upload(np.full(3 << 20, 5, np.uint8))
    target = here.device.alloc(3 << 20, PLAIN)
    point = here.device.copy(target.region(), source.region(), here.timeline, (Point(gate, 1),))
    there.device.free(source)
    assert there.device.stats("").live_buffers == 1
    here.device.signal(gate, 1, None)
    here.wait(point)
    assert there.device.stats("").live_buffers == 0
    assert (here.download(target, np.uint8) == 5).all()
