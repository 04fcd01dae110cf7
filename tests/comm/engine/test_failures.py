"""Ranks that die, stop, come late, or say something else: the others name them."""

import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hal.core.errors import DeadlineExceeded
from stack.comm.engine.failures import CallMismatch, GroupAborted, LateRank, PeerLost
from stack.comm.group import Group
from tests.comm.engine.crew import crews
from tests.comm.engine.ranks import running, watched
from tests.held import descriptors

LONG = "[g.all_reduce(x) for x in [g.empty(1 << 20)] for _ in range(10**6)][0].size"
PRIVATE = "[g.all_reduce(x) for x in [np.zeros(1 << 20)] for _ in range(10**6)][0].size"


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("code", [LONG, PRIVATE, "g.barrier()"])
def test_a_killed_rank_is_named_to_all(victim, code):
    with running(3) as ranks:
        others = [r for r in range(3) if r != victim]
        for rank in others if code == "g.barrier()" else range(3):
            ranks.tell(rank, code)
        time.sleep(0.05)
        ranks.signal(victim, signal.SIGKILL)
        for rank in others:
            failed = ranks.fails(rank)
            assert failed.kind == "PeerLost"
            assert f"the process of rank {victim} has ended" in failed.text
        for rank in others:  # for good
            ranks.tell(rank, "g.barrier()")
            assert f"rank {victim} has ended" in ranks.fails(rank).text


SIZES = """[
    int(end, 16) - int(begin, 16) for line in open('/proc/self/maps') if 'memfd:hal-shared' in line
    for begin, end in [line.split()[0].split('-')]
]""".replace("\n", "")


def test_what_a_rank_frees_after_a_failure_stays_mapped_by_ranks_that_may_still_read_it():
    with running(2) as ranks:
        ranks.ask_all("[globals().update(x=g.empty(1 << 15)), g.all_reduce(x).size]")
        ranks.ask(0, "[g.abort(), globals().pop('x').size, globals().update(y=g.empty(1 << 16))]")
        until_s = time.monotonic() + 100
        while 1 << 18 not in ranks.ask(1, SIZES) and time.monotonic() < until_s:
            time.sleep(0.01)  # what is told last has come last
        assert sorted(ranks.ask(1, SIZES)) == [1 << 17, 1 << 17, 1 << 18]


def no_watchers():
    """Why ranks cannot watch each other's threads; empty where they can."""
    try:
        os.close(os.pidfd_open(threading.get_native_id(), os.O_EXCL))
    except OSError as error:
        return f"the kernel has no descriptors of threads: {error}"
    return ""


KEEP_SOCKETS = """[
    [os.set_inheritable(int(fd), True) for fd in os.listdir('/proc/self/fd')
     if 'socket:' in os.path.realpath('/proc/self/fd/' + fd)],
    __import__('subprocess').Popen(['sleep', '60'], close_fds=False).pid
][1]""".replace("\n", "")


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.skipif(bool(no_watchers()), reason=no_watchers())
def test_the_end_of_a_rank_is_heard_before_its_connections_end():
    with running(3) as ranks:
        until_s = time.monotonic() + 100
        while any(watched(p.pid) < 2 for p in ranks.processes) and time.monotonic() < until_s:
            time.sleep(0.01)
        child = ranks.ask(1, KEEP_SOCKETS)
        try:
            for rank in (0, 2):
                ranks.tell(rank, "g.barrier()")
            ranks.signal(1, signal.SIGKILL)
            for rank in (0, 2):
                assert "the process of rank 1 has ended" in ranks.fails(rank).text
            assert ranks.ask_all("g.shrink().size", (0, 2)) == [2, 2]
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.turns
def test_a_stopped_rank_is_named_to_all_and_learns_it():
    with running(3, deadline_s=20.0) as ranks:
        for rank in (0, 2):
            ranks.tell(rank, LONG)
        ranks.signal(1, signal.SIGSTOP)
        for rank in (0, 2):
            assert "rank 1 has said nothing for 2 s" in ranks.fails(rank).text
        ranks.signal(1, signal.SIGCONT)
        ranks.tell(1, "[g.barrier() for _ in range(2)]")
        assert "this rank has said nothing for 2 s" in ranks.fails(1).text


@pytest.mark.slow
@pytest.mark.turns
def test_a_rank_that_is_busy_in_python_is_not_lost():
    keep = "__import__('sys').setswitchinterval(60), t := time.monotonic()"
    busy = "all(time.monotonic() < t + 3 for _ in iter(int, 1))"  # silent for 2 s is lost
    with running(2, deadline_s=20.0) as ranks:
        ranks.tell(0, "g.all_reduce(np.ones(1))[0]")
        ranks.tell(1, f"[{keep}, {busy}, g.all_reduce(np.ones(1))[0]][-1]")
        assert [ranks.hear(r) for r in range(2)] == [2.0, 2.0]


def test_a_late_rank_is_named_with_its_last_call():
    with crews(3, deadline_s=2.0) as [crew]:

        def run(group):
            group.all_reduce(np.ones(4, np.float32))
            if group.rank == 1:
                for _ in range(1000):
                    time.sleep(0.01)
                    if group.failure is not None:
                        break
                return group.failure
            with pytest.raises(LateRank) as raised:
                group.reduce(np.ones(8, np.int16), root=2)
            return raised.value

        for rank, error in enumerate(crew.do(run)):
            who = "this rank" if rank == 1 else "rank 1"
            text = f"{who} did not come to call 1: reduce (sum) of 8 i16, root 2 within 2 s"
            assert text in str(error)
            assert "its last call is call 0: all-reduce (sum) of 4 f32, done" in str(error)
            assert error.rank == 1


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (lambda g: g.barrier(), lambda g: g.all_reduce(np.ones(3)), "all-reduce (sum) of 3 f64"),
        (lambda g: g.broadcast(np.ones(3), 0), lambda g: g.broadcast(np.ones(3), 1), "root 1"),
        (lambda g: g.all_reduce(np.ones(10**6)), lambda g: g.all_reduce(np.ones(3)), "1000000 f64"),
        (
            lambda g: g.all_gather(np.ones(2 + g.rank), counts=[2, 3, 4]),
            lambda g: g.all_gather(np.ones(2 + g.rank), counts=[2, 4, 4]),
            "digest",
        ),
    ],
)
def test_different_calls_are_named_on_all_ranks(ours, theirs, words):
    with crews(3) as [crew]:

        def run(group):
            with pytest.raises(CallMismatch) as raised:
                (ours if group.rank < 2 else theirs)(group)
            return raised.value

        for error in crew.do(run):
            assert words in str(error)
            assert 2 in error.ranks


def test_abort_is_local_and_idempotent_and_wakes_a_waiting_rank():
    with crews(2) as [crew]:
        one, two = crew.groups
        threading.Timer(0.1, lambda: [one.abort(), one.abort()]).start()
        with pytest.raises(GroupAborted, match="this rank has aborted"):
            one.barrier()
        with pytest.raises(GroupAborted, match="rank 0 has aborted"):
            two.barrier()
        assert "aborted" in str(two.failure)


def test_a_rank_that_has_left_is_missed_only_where_it_is_needed():
    with crews(2) as [crew]:

        def run(group):
            total = group.all_reduce(np.ones(70_000))[0]
            if group.rank == 1:
                group.close()
                return total
            with pytest.raises(PeerLost, match="rank 1 has left the group before call 1: barrier"):
                group.barrier()
            return total

        assert crew.do(run) == [2.0, 2.0]


def test_missing_ranks_are_named():
    text = r"ranks \[1, 2\] did not come within 0.3 s"
    with crews(1) as [crew], pytest.raises(DeadlineExceeded, match=text):
        Group.join(crew.store, crew.address, "alone", 0, 3, 0.3)


def test_a_rank_that_gave_up_may_come_again():
    with crews(1) as [crew], ThreadPoolExecutor(1) as pool:
        where = crew.store, crew.address, "again"
        with pytest.raises(DeadlineExceeded, match=r"ranks \[1\] did not come"):
            Group.join(*where, 0, 2, 0.1)
        with pytest.raises(DeadlineExceeded, match=r"ranks \[0\] did not come"):
            Group.join(*where, 1, 2, 0.1)
        other = pool.submit(Group.join, *where, 1, 2, 10.0)
        with Group.join(*where, 0, 2, 10.0) as group, other.result(100) as peer:
            assert (group.rank, peer.rank) == (0, 1)


MEMORIES = ("/memfd:hal-group", "/memfd:hal-shared")


def shared():
    """The memories of groups that are mapped: devices, which other tests have, map their own."""
    names = [
        line.split(maxsplit=5)[5:] for line in Path("/proc/self/maps").read_text().splitlines()
    ]
    return sum(name[0].startswith(MEMORIES) for name in names if name)


def more(before=None):
    """The descriptors that have come since, and how many memories are shared, once threads of
    closed groups have ended: then there are none, if that comes to be."""
    until_s = time.monotonic() + 100
    found = None
    while found != (set(), 0) and time.monotonic() < until_s:
        time.sleep(0.02)
        now = descriptors()
        found = now - (now if before is None else before), shared()
    return found


def use_groups():
    with crews(3) as [crew]:
        crew.do(lambda g: g.all_reduce(g.empty(10_000))[0])
        crew.do(lambda g: g.later.all_reduce(g.empty(10_000)).wait(10)[0])
        crew.groups[1].abort()


def test_a_group_between_hosts_leaves_nothing_for_the_collector():
    def use():
        with crews((0, 0, 1)) as [crew]:
            crew.do(lambda g: g.all_reduce(np.ones(10))[0])
            crew.groups[1].abort()

    use()
    gc.collect()
    gc.disable()
    try:
        assert more() == (set(), 0)
        before = descriptors()
        use()
        assert more(before) == (set(), 0)
    finally:
        gc.enable()


def test_groups_leave_no_descriptor_and_no_memory():
    use_groups()  # the first one starts what stays, such as the descriptor that wakes the watch
    gc.collect()
    assert more() == (set(), 0)
    before = descriptors()
    for _ in range(3):
        use_groups()
    gc.collect()
    assert more(before) == (set(), 0)
