"""Short calls: what comes in one line, how ranks wait for it, and messages that need no queue."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from stack.comm.engine.failures import CallMismatch
from stack.comm.engine.library import lib
from stack.comm.group import Group
from stack.comm.store import Store, StoreServer
from tests.comm.engine.crew import crews

BRIEF_NBYTES = 40
"""Data of so many bytes comes in the line of its call, longer data beside it."""
CORES = sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(CORES) < 2, reason="one core")
@pytest.mark.parametrize(
    ("cores", "crowded"),
    [
        ([{0}, {1}], [False, False]),
        ([{0}, {0}], [True, True]),
        ([{0, 1}, {0, 1}], [False, False]),
        ([{0}, {0}, {1}], [True, True, False]),
        ([{0, 1}, {0}, {1}], [True, True, True]),
    ],
)
def test_ranks_look_long_where_each_has_a_core(cores, crowded):
    def run(rank):
        # of this thread alone
        os.sched_setaffinity(0, {CORES[place] for place in cores[rank]})
        store = Store(address, "of-a-test", 30.0)  # which the group closes
        with Group.join(store, address, "cores", rank, len(cores), 30.0) as group:
            group.barrier()
            spin_ns = lib.he_spin_ns(group._member.native)
            group.barrier()
            return spin_ns

    with StoreServer("of-a-test") as server, ThreadPoolExecutor(len(cores)) as threads:
        address = f"127.0.0.1:{server.port}"
        found = list(threads.map(run, range(len(cores))))
    assert [ns < 10_000 for ns in found] == crowded


@pytest.mark.parametrize("size", [2, 3])
def test_short_calls_of_every_kind_and_length(size):
    def run(group):
        rank, wrong = group.rank, []
        for n in (0, 1, 2, 3, BRIEF_NBYTES // 4 // size, BRIEF_NBYTES // 4, 11, 12, 100):
            whole = np.arange(n * size, dtype=np.float32)
            part = whole[rank * n : (rank + 1) * n]
            parts = whole.reshape(size, n)
            root = n % size
            got = {
                "all_reduce": group.all_reduce(part.copy()),
                "all_gather": group.all_gather(part, np.zeros_like(whole)),
                "reduce_scatter": group.reduce_scatter(whole, out=np.zeros(n, np.float32)),
                "all_to_all": group.all_to_all(whole + 1000 * rank, np.zeros_like(whole)),
                "broadcast": group.broadcast(part.copy(), root),
                "scatter": group.scatter(whole, root, np.zeros(n, np.float32)),
                "gather": group.gather(part, root),
            }
            expected = {
                "all_reduce": parts.sum(0, dtype=np.float32),
                "all_gather": whole,
                "reduce_scatter": part * size,
                "all_to_all": np.concatenate([part + 1000 * r for r in range(size)]),
                "broadcast": parts[root],
                "scatter": part,
                "gather": whole if rank == root else part[:0],
            }
            wrong += [(n, k) for k in got if not np.array_equal(got[k].reshape(-1), expected[k])]
        return wrong

    with crews(size) as [crew]:
        assert crew.do(run) == [[]] * size


@pytest.mark.parametrize(
    "other",
    [
        lambda group, a: group.all_reduce(np.zeros(3, np.float32)),
        lambda group, a: group.all_reduce(np.zeros(2, np.int32)),
        lambda group, a: group.all_reduce(a, name="another"),
        lambda group, a: group.broadcast(a, 0),
        lambda group, a: group.all_reduce(np.zeros(100_000, np.float32)),
    ],
)
def test_short_calls_that_differ_are_told_on_both_ranks(other):
    def run(group):
        array = np.zeros(2, np.float32)
        group.all_reduce(array)
        with pytest.raises(CallMismatch):
            other(group, array) if group.rank else group.all_reduce(array)
        return True

    with crews(2) as [crew]:
        assert crew.do(run) == [True, True]


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u1", "?"])
def test_blocking_messages_go_round(dtype):
    def run(group):
        ok = True
        for n in (0, 1, 7, 5_000, 300_000, 3):
            mine = (np.arange(n) % 5 > group.rank).astype(dtype)
            theirs = np.zeros(n, dtype)
            if group.rank == 0:
                group.send(mine, 1, n)
            group.receive(theirs, 1 - group.rank, n)
            if group.rank == 1:
                group.send(mine, 0, n)
            ok &= np.array_equal(theirs, (np.arange(n) % 5 > 1 - group.rank).astype(dtype))
        return ok

    with crews(2) as [crew]:
        assert crew.do(run) == [True, True]


def test_a_blocking_receive_leaves_what_has_another_tag():
    def run(group):
        if group.rank == 0:
            for tag in (1, 2, 3):
                group.send(np.full(2, tag, np.float32), 1, tag)
            return []
        return [group.receive(np.zeros(2, np.float32), 0, tag)[0] for tag in (3, 1, 2)]

    with crews(2) as [crew]:
        assert crew.do(run)[1] == [3.0, 1.0, 2.0]


def test_a_deadline_that_is_set_later_counts_for_short_messages():
    def run(group):
        group.deadline_s = 0.2
        if group.rank == 0:
            with pytest.raises(Exception, match=r"within 0\.2 s"):
                group.receive(np.zeros(1, np.float32), 1)
        return True

    with crews(2) as [crew]:
        assert crew.do(run) == [True, True]
