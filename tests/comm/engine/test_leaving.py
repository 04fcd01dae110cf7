"""What a rank has sent or begun before it leaves still counts, however late its bytes come."""

import gc
import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from stack.comm.engine import links
from stack.comm.engine.failures import PeerLost
from stack.comm.engine.links import LIFE
from tests.comm.engine.crew import crews
from tests.comm.engine.ranks import running
from tests.comm.relay import TURN_S, Relay

LONG_S = 20
A_LOOK_S = 0.2
"""Long enough for a rank to look at least once whether the other one is there; nothing depends on
it but that a wrong engine is found out."""
FEW = 200
"""Signs of life: more than a test has time for, fewer than ranks without rest send in a look."""


class CountingRelay(Relay):
    """Counts how often something passes."""

    passed = 0

    def _move(self, link):
        self.passed += 1
        super()._move(link)


@contextmanager
def two_hosts(monkeypatch):
    """Ranks 0 and 1 of two hosts, and what their data and their signs of life go through."""
    relays = {}
    call = links.Links._call

    def through_relay(self, other, purpose):
        cards, is_life = self._cards, purpose == LIFE
        if is_life not in relays:
            relays[is_life] = CountingRelay(cards[other].port).__enter__()
        self._cards = [replace(card, port=relays[is_life].port) for card in cards]
        call(self, other, purpose)
        self._cards = cards

    monkeypatch.setattr(links.Links, "_call", through_relay)
    try:
        with crews((0, 1)) as [crew]:
            yield *crew.groups, relays[False], relays[True]
    finally:
        for relay in relays.values():
            relay.__exit__()


def hold(relay):
    relay.holding = True
    threading.Event().wait(2 * TURN_S)  # a turn of it that has begun goes on


def gone(group, rank):
    """Until the group knows that the rank has left."""
    heard = threading.Event()
    for _ in range(int(LONG_S / 0.01)):
        if rank in group._member.lost():
            return
        heard.wait(0.01)
    raise AssertionError(f"rank {rank} was not heard to leave")


@pytest.mark.parametrize("n", [1, 100_000])
def test_a_message_that_comes_after_the_good_bye_is_received(monkeypatch, n):
    with two_hosts(monkeypatch) as (here, there, relay, _):
        hold(relay)
        there.send(np.arange(n), 0)
        there.close()
        gone(here, 1)
        work = here.later.receive(np.zeros(n, np.int64), 1)
        threading.Event().wait(A_LOOK_S)
        relay.holding = False
        assert work.wait(LONG_S)[-1] == n - 1
        with pytest.raises(PeerLost, match="rank 1 has left the group before message"):
            here.receive(np.zeros(n, np.int64), 1)


def test_a_call_whose_last_bytes_come_after_the_good_bye_is_done(monkeypatch):
    with two_hosts(monkeypatch) as (here, there, relay, _):
        hold(relay)
        there.broadcast(np.arange(1000), 1)
        there.close()
        gone(here, 1)
        work = here.later.broadcast(np.zeros(1000, np.int64), 1)
        threading.Event().wait(A_LOOK_S)
        relay.holding = False
        assert work.wait(LONG_S)[-1] == 999
        with pytest.raises(PeerLost, match="rank 1 has left the group before call 1: broadcast"):
            here.broadcast(np.zeros(1000, np.int64), 1)


@pytest.mark.parametrize("hosts", [(0, 0), (0, 1)])
def test_what_a_rank_has_begun_before_it_leaves_still_ends(hosts):
    n = 4_000_000  # more than fits between the two
    left = threading.Event()
    with crews(hosts) as [crew]:

        def run(group):
            if group.rank == 1:
                works = [
                    group.later.receive(np.zeros(n, np.int64), 0),
                    group.later.all_reduce(np.ones(n, np.int64)),
                    group.later.send(np.full(n, 7), 0, 1),
                ]
                group.close()
                left.set()
                return [work.wait(LONG_S)[-1] for work in works]
            assert left.wait(LONG_S)
            group.send(np.arange(n), 1)
            total = group.all_reduce(np.ones(n, np.int64))
            got = group.receive(np.zeros(n, np.int64), 1, 1)
            with pytest.raises(PeerLost, match="rank 1 has left the group"):
                group.barrier()
            return [n - 1, total[-1], got[-1]]

        assert crew.do(run) == [[n - 1, 2, 7]] * 2


def test_what_a_rank_has_sent_is_received_though_it_leaves_a_message_behind():
    n = 30_000  # more than comes before it is asked for
    with crews((0, 1)) as [crew]:
        here = crew.groups[0]
        left_behind = here.later.send(np.ones(4), 1)
        threading.Event().wait(A_LOOK_S)
        there = crew.groups.pop()
        sent = there.later.send(np.arange(n), 0)
        threading.Event().wait(A_LOOK_S)
        there.close()
        del sent, there  # now its connections end
        gc.collect()
        gone(here, 1)
        threading.Event().wait(A_LOOK_S)
        assert here.receive(np.zeros(n, np.int64), 1)[-1] == n - 1
        left_behind.wait(LONG_S)


def test_two_that_leave_do_not_answer_each_other_without_end(monkeypatch):
    with two_hosts(monkeypatch) as (here, there, data, life):
        hold(data)
        groups = here, there
        works = [g.later.all_reduce(np.ones(4)) for g in groups]
        for group in groups:
            group.close()
        threading.Event().wait(A_LOOK_S)
        assert life.passed < FEW
        data.holding = False
        assert [work.wait(LONG_S)[-1] for work in works] == [2, 2]


def test_a_process_that_ends_does_no_more_of_what_it_had_begun():
    with running(2) as ranks:
        ranks.tell(0, "g.receive(np.zeros(8), 1)")
        ranks.tell(1, "(g.later.receive(np.zeros(8), 0), g.close(), os._exit(0))")
        assert "rank 1 has left the group before message 0" in ranks.fails(0).text
