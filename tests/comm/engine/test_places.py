"""A rank's place in a group is its process's, and nothing of a closed group stays in the store."""

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hal.core.errors import DeadlineExceeded, InvalidCall
from stack.comm.engine.links import Deadline, Links, Listeners
from stack.comm.engine.meeting import (
    MeetingPlace,
    _cards,
    _Missing,
    meet,
    take_place,
    values,
)
from stack.comm.group import Group
from stack.comm.store import Store
from tests.comm.engine.crew import crews
from tests.comm.engine.ranks import TOKEN, WAIT_S, running


@pytest.mark.slow
@pytest.mark.turns
def test_a_second_process_with_a_ranks_number_is_refused_and_harms_nobody():
    """While the others are awaited, and once the group has met."""
    with running(2) as ranks:
        first = ranks.ask(0, "os.getpid()")
        host = socket.gethostname()
        words = f"rank 0 is taken by process {first} on host {host}; this is process {os.getpid()}"
        address, key = ranks.ask(0, "(address, g.key)")
        store = Store(address, TOKEN, WAIT_S)
        with pytest.raises(InvalidCall, match=words):
            Group.join(store, address, key, 0, 2, WAIT_S)
        assert ranks.ask_all("g.all_reduce(np.ones(2)).tolist()") == [[2.0, 2.0]] * 2
        ranks.tell(0, "globals().update(g=Group.join(store, address, 'next', 0, 2, 30.0))")
        store.get("group/4:next/card/0")
        with pytest.raises(InvalidCall, match=words):
            Group.join(store, address, "next", 0, 2, WAIT_S)
        ranks.tell(1, "globals().update(g=Group.join(store, address, 'next', 1, 2, 30.0))")
        assert [ranks.hear(rank) for rank in (0, 1)] == [None, None]
        assert ranks.ask_all("g.all_reduce(np.ones(2)).tolist()") == [[2.0, 2.0]] * 2
        store.close()


def test_a_process_that_has_joined_is_refused_by_other_words():
    with crews(2) as [crew]:
        with pytest.raises(InvalidCall, match="rank 1 is taken: this process has joined the group"):
            Group.join(crew.store, crew.address, crew.key, 1, 2, 5.0)
        assert crew.do(lambda group: group.all_reduce(np.ones(1))[0]) == [2.0, 2.0]


@pytest.mark.slow
@pytest.mark.turns
def test_the_store_is_as_before_once_groups_are_closed():
    with crews((0, 1)) as [crew], ThreadPoolExecutor(2) as pool:
        before = crew.store.usage()
        assert (before.keys, before.clients) > (4, 1)

        def make_and_close(rank, number):
            where = crew.store, crew.address, f"one-of-many-{number}"
            with Group.join(*where, rank, 2, WAIT_S) as group:
                if number % 10 == 0:
                    group.barrier()

        for number in range(200):
            list(pool.map(make_and_close, range(2), [number] * 2, timeout=WAIT_S))
        after = crew.store.usage()
        assert (after.keys, after.nbytes) == (before.keys, before.nbytes)
        assert before.nbytes < before.limit_nbytes


def test_a_rank_that_gives_up_says_so_before_its_card_goes():
    """In between nobody could tell it from a rank that never came."""
    with crews(1) as [crew], crew.store.under("group/5:alone/").watch("") as watch:
        with pytest.raises(DeadlineExceeded, match=r"ranks \[0\] did not come"):
            Group.join(crew.store, crew.address, "alone", 1, 2, 0.2)
        seen = [watch.next(WAIT_S) for _ in range(3)]
        assert [(one.key, one.value is None) for one in seen] == [
            ("card/1", False),
            ("gave-up/1", False),
            ("card/1", True),
        ]


def test_a_rank_that_only_waits_for_one_that_has_ended_is_not_named():
    with crews(1) as [crew]:
        part = crew.store.under("ended/")
        part.set("card/1", b"")
        with pytest.raises(DeadlineExceeded, match=r"ranks \[0\] said nothing"):
            values(part, ["host/0", "host/1"], "said nothing", Deadline(0.1))
        part.clear()


def test_a_rank_whose_key_has_gone_again_is_named():
    """What a process wrote goes with it, also once others have seen that it was there."""
    with crews(1) as [crew]:
        part, late = crew.store.under("half/"), Deadline(1.0)
        seen = crew._pool.submit(values, part, ["host/0", "host/1"], "said nothing", late)
        part.set("host/0", b"0")
        part.delete("host/0")
        part.set("host/1", b"0")
        with pytest.raises(DeadlineExceeded, match=r"ranks \[0\] said nothing within 1 s"):
            seen.result(WAIT_S)
        part.clear()


@pytest.mark.slow
@pytest.mark.turns
def test_the_keys_of_a_process_that_is_killed_go_with_it():
    with running(2) as ranks:
        address = ranks.ask(0, "address")
        store = Store(address, TOKEN, WAIT_S)
        ranks.signal(0, signal.SIGKILL)
        ranks.signal(1, signal.SIGKILL)
        until_s = time.monotonic() + WAIT_S
        while store.usage().keys > 2 and time.monotonic() < until_s:
            time.sleep(0.02)
        assert store.usage().keys == 2  # that all have met
        store.close()


def test_a_rank_that_has_met_waits_for_one_that_another_rank_still_awaits():
    """Rank 2 has reached rank 0, and then stops. Were rank 0 to go on alone, it would miss what
    rank 1 says at every heartbeat only once it has met rank 2, too."""
    with crews(1) as [crew], ThreadPoolExecutor(2) as pool:
        place = MeetingPlace(crew.store, crew.address, "two-of-three")
        meetings = [pool.submit(meet, place, rank, 3, 2.0) for rank in (0, 1)]
        late, table = Deadline(WAIT_S), place.table
        listeners = Listeners(table, crew.address, 2, 3)
        hold = table.hold()
        take_place(table, hold, "card/2", 2, listeners.card(3), late)
        links = Links(table, 2, _cards(table, 2, 3, late), late)
        assert links.reach(0)
        hold.set("host/2", b"0", WAIT_S)
        for meeting in meetings:
            with pytest.raises(DeadlineExceeded, match=r"ranks \[2\] (have|did) not"):
                meeting.result(WAIT_S)
        links.close()
        listeners.close()
        hold.release()
        table.clear(WAIT_S)


def test_a_rank_that_gives_up_a_little_later_is_not_named():
    """Rank 1 reaches rank 0, which is stopped, later than rank 2 misses what rank 1 would say."""
    with crews(1) as [crew], ThreadPoolExecutor(1) as pool:
        place = MeetingPlace(crew.store, crew.address, "two-wait-for-one")
        table, late = place.table, Deadline(WAIT_S)
        held = [table.hold() for _ in range(2)]
        listeners = [Listeners(table, crew.address, rank, 3) for rank in range(2)]
        for rank in range(2):
            card = listeners[rank].card(3)
            take_place(table, held[rank], f"card/{rank}", rank, card, late)
        meeting = pool.submit(meet, place, 2, 3, 1.0)
        table.wait(["gave-up/2"], WAIT_S)
        table.set("gave-up/1", b"")
        with pytest.raises(
            DeadlineExceeded, match=r"ranks \[0\] came, but did not say who is near"
        ):
            meeting.result(WAIT_S)
        for listener, hold in zip(listeners, held, strict=True):
            listener.close()
            hold.release()
        table.clear(WAIT_S)


def test_a_rank_that_gives_up_while_it_is_looked_for_is_not_named(monkeypatch):
    """Rank 1 says that it gives up, and its card goes, right behind the first look at either."""
    with crews(1) as [crew]:
        table = MeetingPlace(crew.store, crew.address, "looked-for").table
        stays, goes, seen = table.hold(), table.hold(), []
        for rank, hold in ((0, stays), (1, goes), (2, stays)):
            hold.set(f"card/{rank}", b"", WAIT_S)
        stays.set("met/0", b"", WAIT_S)
        find = Store.find

        def look(store, key, *rest):
            found = find(store, key, *rest)
            if key in ("card/1", "gave-up/1") and not seen:
                seen.append(key)
                table.set("gave-up/1", b"")
                goes.release()
            return found

        monkeypatch.setattr(Store, "find", look)
        told = _Missing(table, [f"met/{rank}" for rank in range(3)], "have not met", 1.0)
        assert str(told) == "ranks [2] have not met within 1 s"
        assert seen
        stays.release()
        table.clear(WAIT_S)


def test_a_rank_that_has_gone_before_the_hosts_memory_comes_is_named():
    with crews(1) as [crew], ThreadPoolExecutor(1) as pool:
        place = MeetingPlace(crew.store, crew.address, "gone-before-memory")
        table, late = place.table, Deadline(WAIT_S)
        meeting = pool.submit(meet, place, 0, 2, WAIT_S)
        listeners, hold = Listeners(table, crew.address, 1, 2), table.hold()
        take_place(table, hold, "card/1", 1, listeners.card(2), late)
        links = Links(table, 1, _cards(table, 1, 2, late), late)
        assert links.reach(0)
        links.close()
        hold.set("host/1", b"0", WAIT_S)
        with pytest.raises(DeadlineExceeded, match="rank 1 has given up, and cannot be sent"):
            meeting.result(WAIT_S)
        listeners.close()
        hold.release()
        table.clear(WAIT_S)
