"""Collectives among hosted devices of one process."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.core.errors import (
    DeadlineExceeded,
    Failure,
    FailureKind,
    OperationFailed,
    Scope,
    Unsupported,
)
from hal.core.values import Collective, CollectiveKind, Fault, GroupSpec, Point, ReduceKind

SUM = Collective(CollectiveKind.ALL_REDUCE, DType.F32, 16)


def together(functions):
    """The results of functions that need each other, each called in its own thread."""
    results = [None] * len(functions)

    def call(index):
        results[index] = functions[index]()

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def join(benches, key, timeout_s=5.0):
    peers = tuple(bench.device.name for bench in benches)
    specs = [GroupSpec(key, rank, peers, timeout_s) for rank in range(len(peers))]
    pairs = zip(benches, specs, strict=True)
    return together([lambda b=b, s=s: b.device.create_group(s) for b, s in pairs])


def submit(bench, group, call, waits=()):
    region = bench.buffer.region()
    return bench.device.collective(group, call, region, region, bench.timeline(), waits)


def write(bench, values):
    data = np.asarray(values).tobytes()
    bench.wait(bench.device.copy(bench.buffer.region(), data, bench.timeline(), ()))


def cause(bench, point):
    with pytest.raises(OperationFailed) as caught:
        bench.wait(point)
    return caught.value.failure


def test_all_ranks_get_the_sum(benches):
    groups = join(benches, "sum")
    values = np.arange(48, dtype=np.float32).reshape(3, 16)
    for bench, row in zip(benches, values, strict=True):
        write(bench, row)
    points = [submit(b, g, SUM) for b, g in zip(benches, groups, strict=True)]
    for bench, point in zip(benches, points, strict=True):
        assert bench.wait(point)
        np.testing.assert_array_equal(np.frombuffer(bench.content(), np.float32), values.sum(0))


def test_the_average_of_integers_is_cut_off_towards_zero(benches):
    groups = join(benches, "average")
    call = Collective(CollectiveKind.ALL_REDUCE, DType.I32, 16, ReduceKind.AVG)
    for bench, value in zip(benches, (-5, -4, -2), strict=True):
        write(bench, np.full(16, value, np.int32))
    points = [submit(b, g, call) for b, g in zip(benches, groups, strict=True)]
    assert all(b.wait(p) for b, p in zip(benches, points, strict=True))
    assert set(np.frombuffer(benches[2].content(), np.int32)) == {-3}


def test_members_that_disagree_all_fail(benches):
    groups = join(benches[:2], "disagree")
    other = Collective(CollectiveKind.ALL_REDUCE, DType.I32, 16)
    points = [submit(b, g, c) for b, g, c in zip(benches, groups, (SUM, other), strict=False)]
    for bench, group, point in zip(benches, groups, points, strict=False):
        failure = cause(bench, point)
        assert failure.scope is Scope.PEER
        assert "f32" in failure.message
        assert "i32" in failure.message
        assert bench.device.async_error(group) == failure


def test_a_member_that_does_not_come_is_named(benches):
    # Longer than it takes this thread to submit the second one's part
    groups = join(benches, "late", timeout_s=0.2)
    points = [submit(b, g, SUM) for b, g in zip(benches[:2], groups, strict=False)]
    for bench, point in zip(benches, points, strict=False):
        failure = cause(bench, point)
        assert (failure.kind, failure.scope) == (FailureKind.PEER_LOST, Scope.PEER)
        assert "ranks [2]" in failure.message


def test_a_lost_device_fails_the_call_on_its_peers_at_once_and_they_shrink(benches):
    groups = join(benches, "lost", timeout_s=60.0)
    points = [submit(b, g, SUM) for b, g in zip(benches[:2], groups, strict=False)]
    gone = Failure(FailureKind.DEVICE_LOST, Scope.DEVICE, "tiny:2", "fill", "gone")
    benches[2].device.inject(Fault(gone, "fill"))
    benches[2].fill(1, benches[2].timeline())
    assert all(
        "rank 2 (tiny:2)" in cause(b, p).message for b, p in zip(benches, points, strict=False)
    )
    survivors = together(
        [
            lambda b=b, g=g: b.device.shrink(g, (0, 1))
            for b, g in zip(benches[:2], groups, strict=False)
        ]
    )
    points = [submit(b, g, SUM) for b, g in zip(benches, survivors, strict=False)]
    assert all(b.wait(p) for b, p in zip(benches, points, strict=False))


def test_abort_fails_the_calls_of_one_member_wherever_they_are(benches):
    groups = join(benches[:2], "abort", timeout_s=60.0)
    bench, gate = benches[0], benches[0].timeline(host_driven=True)
    arrived, held = submit(bench, groups[0], SUM), submit(bench, groups[0], SUM, [Point(gate, 1)])
    stop = Failure(FailureKind.ABORTED, Scope.PEER, "tiny:0", "abort", "enough")
    bench.device.abort(groups[0], stop)
    bench.device.abort(groups[0], replace(stop, message="again"))
    assert cause(bench, arrived) == cause(bench, held) == stop
    assert bench.device.async_error(groups[0]) == stop
    assert benches[1].device.async_error(groups[1]) is None


def test_a_group_without_all_its_members_is_not_made(bench):
    spec = GroupSpec("alone", 0, ("tiny:0", "tiny:1"), 0.02)
    with pytest.raises(DeadlineExceeded, match=r"ranks \[1\] did not join"):
        bench.device.create_group(spec)


def test_calls_that_wait_on_one_timeline_fail_together_where_a_member_gives_up(benches):
    bench = benches[0]
    (group,) = join([bench], "gives up")
    gate = bench.device.create_timeline(True)
    region, timeline = bench.buffer.region(), bench.timeline()
    waits = (Point(gate, 1),)
    points = [
        bench.device.collective(group, SUM, region, region, timeline, waits) for _ in range(3)
    ]
    lost = Failure(FailureKind.ABORTED, Scope.PEER, bench.device.name, "test", "given up")
    bench.device.abort(group, lost)
    bench.device.signal(gate, 1, None)
    assert cause(bench, points[-1]) == lost
    late = [submit(bench, group, SUM) for _ in range(3)]
    assert cause(bench, late[-1]) == lost
    write(bench, np.zeros(16, np.float32))  # the session's thread is well


def test_unequal_parts_are_refused_and_not_taken_for_equal_ones(benches):
    pair = benches[:2]
    groups = join(pair, "parts")
    call = Collective(CollectiveKind.ALL_GATHER, DType.F32, 0, parts=(0, 16))
    with pytest.raises(Unsupported, match=r"in unequal parts \(0, 16\)"):
        submit(pair[0], groups[0], call)
