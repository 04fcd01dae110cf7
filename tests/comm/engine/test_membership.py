"""Groups that go on with those who are left, or with more."""

import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hal.core.errors import DeadlineExceeded, InvalidCall
from stack.comm.engine.failures import PeerLost
from stack.comm.engine.links import LIFE, Card, Deadline, Links
from stack.comm.engine.segment import segment_of
from stack.comm.group import Group
from stack.comm.store import Store, StoreServer
from stack.comm.world import World
from tests.comm.engine.crew import TOKEN, crews
from tests.comm.engine.ranks import running

LONG = "[g.all_reduce(x) for x in [g.empty(1 << 20)] for _ in range(10**6)][0].size"
SHRINK = "[globals().update(g=g.shrink()), (g.rank, g.size, g.all_reduce(np.ones(9))[3])][1]"


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("victim", [0, 2])
def test_survivors_of_a_kill_go_on(victim):
    with running(3) as ranks:
        others = [r for r in range(3) if r != victim]
        for rank in range(3):
            ranks.tell(rank, LONG)
        ranks.signal(victim, signal.SIGKILL)
        for rank in others:
            assert f"rank {victim} has ended" in ranks.fails(rank).text
        assert ranks.ask_all(SHRINK, others) == [(0, 2, 2.0), (1, 2, 2.0)]
        ranks.signal(others[0], signal.SIGKILL)
        ranks.tell(others[1], "g.barrier()")
        assert "rank 0 has ended" in ranks.fails(others[1]).text
        assert ranks.ask(others[1], SHRINK) == (0, 1, 1.0)


@pytest.mark.slow
@pytest.mark.turns
def test_a_rank_that_was_stopped_is_left_out_and_told():
    with running(3, deadline_s=20.0) as ranks:
        for rank in (0, 1):
            ranks.tell(rank, LONG)
        ranks.signal(2, signal.SIGSTOP)
        for rank in (0, 1):
            assert "rank 2 has said nothing" in ranks.fails(rank).text
        assert ranks.ask_all(SHRINK, (0, 1)) == [(0, 2, 2.0), (1, 2, 2.0)]
        ranks.signal(2, signal.SIGCONT)
        ranks.tell(2, SHRINK)
        assert "ranks [0, 1] went on without this rank" in ranks.fails(2).text


def test_all_go_on_after_an_abort():
    with crews(3) as [crew]:
        crew.groups[1].abort()

        def run(group):
            with group.shrink() as smaller:
                return smaller.rank, smaller.all_reduce(np.ones(2))[0]

        assert crew.do(run) == [(0, 3.0), (1, 3.0), (2, 3.0)]


def test_a_rank_that_does_not_come_is_left_out():
    with crews(3, deadline_s=2.0) as [crew]:
        crew.groups[0].abort()

        def run(group):
            if group.rank == 2:
                return None
            with group.shrink() as smaller:
                return smaller.rank, smaller.all_reduce(np.ones(2))[0]

        assert crew.do(run) == [(0, 2.0), (1, 2.0), None]
        with pytest.raises(PeerLost, match=r"ranks \[0, 1\] went on without this rank"):
            crew.groups[2].shrink()


def test_a_group_grows():
    with crews(3) as [crew]:
        crew.groups.pop().close()

        def run(rank):
            if rank < 2:
                return crew.groups[rank].grow("grown", 3)
            return Group.join(crew.store, crew.address, "grown", 2, 3, 10.0)

        crew.groups = [f.result(100) for f in [crew._pool.submit(run, r) for r in range(3)]]
        assert [a[0] for a in crew.do(lambda g: g.all_reduce(np.ones(2)))] == [3.0] * 3
        with pytest.raises(InvalidCall, match="3 ranks does not grow to 2"):
            crew.groups[0].grow("smaller", 2)


def test_the_ranks_of_a_job_find_each_other():
    with StoreServer(TOKEN) as server, ThreadPoolExecutor(2) as pool:
        address = f"127.0.0.1:{server.port}"

        def run(rank):
            world = World(rank, 2, rank, 2, "here", "cpu:0", address, TOKEN, "job-1", 10.0)
            with Group.of(world) as group:
                return group.all_reduce(np.ones(3)).tolist()

        assert [f.result(100) for f in [pool.submit(run, r) for r in range(2)]] == [[2.0] * 3] * 2


def test_a_lowest_rank_that_gives_up_is_named_to_those_who_wait_for_its_memory():
    card = Card(1, 2, 7, "host", "boot", "local", "127.0.0.1", 1, "token")
    links = Links(Store("127.0.0.1:1", TOKEN, 20.0), 1, [card, card], Deadline(20.0))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        links._links[0, LIFE] = ours, b""
        ours.send(b"what it does not read any more")
        theirs.close()
        with pytest.raises(DeadlineExceeded, match="rank 0 has given up"):
            segment_of(links, 1, (0, 0), [card, card], Deadline(20.0))
