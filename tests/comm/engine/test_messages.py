"""Messages between two ranks, inside a host and between hosts."""

import mmap
import random
import re
import threading

import numpy as np
import pytest

from hal.core.errors import DeadlineExceeded, InvalidCall
from stack.comm.engine.failures import CallMismatch, GroupAborted, LateRank, PeerLost
from tests.comm.engine.crew import crews


@pytest.fixture(scope="module", params=[(0, 0, 0), (0, 1, 2), (0, 0, 1)])
def crew(request):
    with crews(request.param) as [made]:
        yield made


def test_messages_arrive_in_their_order(crew):
    sizes = [1, 0, 7, 100_000, 3]

    def run(group):
        if group.rank == 0:
            for n in sizes:
                group.send(np.arange(n, dtype=np.float32), 1)
            return []
        if group.rank == 1:
            return [group.receive(np.zeros(n, np.float32), 0).tolist() for n in sizes]
        return []

    assert crew.do(run)[1] == [np.arange(n, dtype=np.float32).tolist() for n in sizes]


def test_all_may_send_before_they_receive(crew):
    n = 300_000  # more than any buffer between them

    def run(group):
        sends = [
            group.later.send(np.full(n, group.rank, np.int16), r)
            for r in range(3)
            if r != group.rank
        ]
        got = {r: np.zeros(n, np.int16) for r in range(3) if r != group.rank}
        receives = [group.later.receive(got[r], r) for r in got]
        group.barrier()  # goes on beside them
        for work in sends + receives:
            work.wait(100)
        return {r: (a.min(), a.max()) for r, a in got.items()}

    for rank, got in enumerate(crew.do(run)):
        assert got == {r: (r, r) for r in range(3) if r != rank}


def large(group, n, shared):
    return group.empty(n, np.float64) if shared else np.zeros(n)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("n", [131_072, 600_001])  # just so large, and what is written past caches
def test_large_messages_of_memory_that_others_map_arrive_whole(n):
    """Between all pairs in both directions side by side, and again in the same memory."""

    def run(group, sent, taken):
        others = [r for r in range(3) if r != group.rank]
        out = {r: large(group, n, sent) for r in others}
        got = {r: large(group, n, taken) for r in others}
        for turn in range(2):
            for r in others:
                out[r][:] = np.arange(n) + 10 * group.rank + r + turn
            works = [group.later.send(out[r], r) for r in others]
            works += [group.later.receive(got[r], r) for r in others]
            for work in works:
                work.wait(100)
            for r in others:
                np.testing.assert_array_equal(got[r], np.arange(n) + 10 * r + group.rank + turn)
        return True

    with crews(3) as [crew]:
        for shared in ((True, True), (True, False), (False, True)):
            assert crew.do(lambda group, shared=shared: run(group, *shared)) == [True] * 3


ATTACH = 2 << 20
"""Private messages of so many bytes are copied from process to process once one has come."""


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("nbytes", [ATTACH - 1, ATTACH, ATTACH + 65])
def test_large_private_messages_arrive_whole(nbytes):
    """Both ways at once, several under way, at odd places, into private and mapped memory; what a
    rank has sent it may write."""

    def run(group):
        other = 1 - group.rank
        # Memory once for all turns: each large part that numpy asks for costs the thread sanitizer
        # four times as much
        room, taken = (np.zeros(nbytes + 64, np.uint8) for _ in range(2))
        mapped, wanted = group.empty(nbytes + 64, np.uint8), np.empty(nbytes, np.uint8)
        for turn in range(3):
            sent = room[turn : turn + nbytes]
            fill(sent, 250 + group.rank - turn)
            works = [group.later.send(sent, other, tag) for tag in (0, 1, 0)]
            got = [memory[7 * turn : 7 * turn + nbytes] for memory in (taken, mapped)]
            works += [group.later.receive(into, other, tag) for tag, into in enumerate(got)]
            works += [group.later.receive(np.empty(nbytes, np.uint8), other)]
            results = [work.wait(100) for work in works][3:]
            room[:] = 255
            fill(wanted, 250 + other - turn)
            for result in results:
                np.subtract(result, wanted, out=result)
                assert not result.any()
        return True

    def fill(memory, period):
        whole = nbytes // period * period
        count = np.arange(period, dtype=np.uint8)
        memory[:whole].reshape(-1, period)[...] = count
        memory[whole:] = count[: nbytes - whole]

    with crews(2) as [crew]:
        assert crew.do(run) == [True] * 2


@pytest.mark.slow
@pytest.mark.turns
def test_a_private_message_that_is_kept_is_read_before_its_sender_goes_on():
    n = ATTACH // 8

    def run(group):
        if group.rank == 0:
            sent = np.arange(float(n))
            group.send(sent, 1)
            group.send(sent, 1, 7)
            sent[:] = -1
            group.send(np.ones(1), 1, 8)
            return True
        group.receive(np.zeros(n), 0)
        group.receive(np.zeros(1), 0, 8)
        np.testing.assert_array_equal(group.receive(np.zeros(n), None, 7), np.arange(float(n)))
        return True

    with crews(2) as [crew]:
        assert crew.do(run) == [True] * 2


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(
    "fill",
    [
        lambda group, array: (group.receive if group.rank else group.send)(array, 1 - group.rank),
        lambda group, array: group.broadcast(array, 0),
    ],
    ids=["message", "broadcast"],
)
def test_memory_is_its_own_again_once_a_call_has_failed(fill):
    """Another rank may be writing in this one's process when the group ends."""
    ones = np.ones(16 * ATTACH, np.uint8)

    def run(group, array, after_s):
        own = array if group.rank else ones
        fill(group, ones if group.rank == 0 else ones.copy())
        if group.rank:
            threading.Timer(after_s, group.abort).start()
        with pytest.raises(GroupAborted):
            [fill(group, own) for _ in range(10_000)]
        if group.rank:
            array[::4096] = 77  # of each page, which is written sooner than the page is
        return True

    for trial in range(8):
        # Pages that nobody has touched take those who write there longer
        array = np.frombuffer(mmap.mmap(-1, ones.size), np.uint8)
        with crews(2) as [crew]:
            delay_s = (1 + 3 * trial) * 1e-3
            assert crew.do(lambda group, a=array, s=delay_s: run(group, a, s)) == [True] * 2
        assert (array[::4096] == 77).all()


def test_large_messages_are_kept_until_their_tag_is_wanted(crew):
    """What is lent can be written once it is kept, and small ones keep their order behind it."""
    n = 200_000

    def run(group):
        if group.rank == 0:
            lent = group.empty(n, np.float64)
            lent[:] = np.arange(n)
            group.send(lent, 1, 7)
            lent[:] = -1
            group.send(np.ones(1), 1, 8)
        if group.rank != 1:
            return 0
        group.receive(np.zeros(1), 0, 8)
        got = group.receive(group.empty(n, np.float64), None, 7)
        np.testing.assert_array_equal(got, np.arange(n))
        return got.size

    assert crew.do(run)[1] == n


def test_large_messages_that_differ_are_named():
    with crews(2) as [crew]:

        def run(group):
            pass_on = group.receive if group.rank else group.send
            with pytest.raises(CallMismatch) as raised:
                pass_on(group.empty(200_000 + group.rank, np.float64), 1 - group.rank)
            return str(raised.value)

        for text in crew.do(run):
            assert "message 0 to rank 1 of 200000 f64" in text
            assert "message 0 to rank 1 of 200001 f64" in text


def test_a_large_message_ends_with_its_group():
    with crews(2, deadline_s=2.0) as [crew], pytest.raises(LateRank, match="rank 1 did not come"):
        crew.groups[0].send(crew.groups[0].empty(200_000, np.float64), 1)
    with crews(2) as [crew]:
        waiting = crew.groups[0].later.send(crew.groups[0].empty(200_000, np.float64), 1)
        crew.groups[1].close()
        with pytest.raises(PeerLost, match="rank 1 has left"):
            waiting.wait(100)


def test_a_message_that_nobody_sends_is_pending(crew):
    def run(group):
        if group.rank:
            group.barrier()
            return group.send(np.ones(2), 0)[0] if group.rank == 2 else 1.0
        waiting = group.later.receive(np.zeros(2), 2)
        assert not waiting.done
        with pytest.raises(DeadlineExceeded):
            waiting.wait(0.01)
        group.barrier()
        return waiting.wait(100)[0]

    assert crew.do(run) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("hosts", [(0, 0), (0, 1)])
def test_different_messages_are_named(hosts):
    with crews(hosts) as [crew]:

        def run(group):
            if group.rank == 0:
                group.later.send(np.ones(3, np.int32), 1)
            with pytest.raises(CallMismatch) as raised:
                group.receive(np.zeros(4, np.int32), 1 - group.rank)
            return str(raised.value)

        for text in crew.do(run):
            assert "message 0 to rank 1 of 4 i32" in text
            assert "message 0 to rank 1 of 3 i32" in text


@pytest.mark.parametrize("hosts", [(0, 0), (0, 1)])
def test_a_message_fails_with_its_group(hosts):
    for end, kind in (("abort", GroupAborted), ("close", PeerLost)):
        with crews(hosts) as [crew]:
            waiting = crew.groups[0].later.receive(np.zeros(3), 1)
            getattr(crew.groups[1], end)()
            with pytest.raises(kind, match="rank 1 has"):
                waiting.wait(100)
    text = "rank 1 did not come to message 0 to rank 0 of 3 f64"
    with crews(hosts, deadline_s=2.0) as [crew], pytest.raises(LateRank, match=text):
        crew.groups[0].receive(np.zeros(3), 1)


@pytest.mark.parametrize("seed", range(4))
def test_messages_match_by_tag_whatever_the_order(crew, seed):
    choose = random.Random(seed)
    sent = [(choose.randrange(4), choose.choice([0, 1, 50, 90_000])) for _ in range(30)]
    order = sorted(range(30), key=lambda i: (choose.random(), i))
    firsts = {tag: [i for i, (t, _) in enumerate(sent) if t == tag] for tag in range(4)}
    wanted = [firsts[sent[i][0]].pop(0) for i in order]  # of one tag in the order of sending

    def run(group):
        if group.rank == 0:
            works = [group.later.send(np.full(n, i), 1, tag) for i, (tag, n) in enumerate(sent)]
            return [work.wait(100).size for work in works]
        if group.rank == 2:
            return []
        outs = [np.full(sent[i][1], -1) for i in wanted]
        half = [
            group.receive(out, 0, sent[i][0]) for out, i in zip(outs[:15], wanted, strict=False)
        ]
        rest = zip(outs[15:], wanted[15:], strict=True)
        later = [group.later.receive(out, 0, sent[i][0]) for out, i in rest]
        return [a.tolist() for a in half] + [work.wait(100).tolist() for work in later]

    got = crew.do(run)[1]
    assert got == [[i] * sent[i][1] for i in wanted]


@pytest.mark.parametrize("hosts", [(0, 0), (0, 1)])
def test_a_message_that_was_kept_is_compared_too(hosts):
    with crews(hosts) as [crew]:

        def run(group):
            if group.rank == 0:
                group.send(np.ones(3), 1, 7)
                group.send(np.ones(1), 1)
                return ""
            group.receive(np.zeros(1), 0)  # keeps the other one
            with pytest.raises(CallMismatch) as raised:
                group.receive(np.zeros(4), 0, 7)
            return str(raised.value)

        said = crew.do(run)[1]
    assert "of 3 f64, tag 7" in said
    assert "of 4 f64, tag 7" in said


def test_ranks_meet_once_they_have_what_they_were_sent(crew):
    def run(group):
        got = np.zeros(1)
        for number in range(3):
            if group.rank == 0:
                group.send(np.full(1, float(number)), 1, 5)
            elif group.rank == 1:
                group.receive(got, 0, 5)
            group.meet("a test")
        return got.item()

    assert crew.do(run) == [0, 2, 0]


@pytest.mark.parametrize("hosts", [(0, 0), (0, 1)])
@pytest.mark.parametrize("sends", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_a_rank_that_meets_alone_is_named(hosts, sends, kept):
    """Where the other one awaits a message of it, or sends one, also one that was kept."""
    with crews(hosts) as [crew]:

        def run(group):
            if kept:  # by rank 0
                if group.rank:
                    group.send(np.ones(2), 0, 9)
                    group.send(np.ones(1), 0)
                else:
                    group.receive(np.zeros(1), 1)
            with pytest.raises(CallMismatch) as raised:
                alone(group)
            return str(raised.value)

        def alone(group):
            if group.rank == 0:
                group.meet("a test")
            elif sends:
                group.send(np.ones(3), 0, 7)
                group.receive(np.zeros(1), 0)
            else:
                group.receive(np.zeros(3), 0, 7)

        for text in crew.do(run):
            assert "that it has come to a test" in text, text
            assert re.search("rank [01] makes message . to rank [01] of [123] f64", text), text


def test_a_tag_is_a_number_that_fits(crew):
    for tag in (-1, 1 << 31):
        with pytest.raises(InvalidCall, match=f"a tag from 0 to 2\\*\\*31 - 1, not {tag}"):
            crew.groups[0].send(np.ones(1), 1, tag)


def test_a_rank_sends_to_others_only(crew):
    for peer in (0, 3):
        with pytest.raises(InvalidCall, match=f"rank {peer} is no other rank of a group of 3"):
            crew.groups[0].send(np.ones(1), peer)


def test_a_receive_from_anybody_takes_what_comes_first(crew):
    """Of its tag; others' messages and other tags are kept for those who want them."""
    n = 90_000

    def run(group):
        if group.rank == 1:
            for tag in (4, 9, 4):  # the second one is wanted last
                group.later.send(np.full(n, 10.0 * tag), 0, tag)
        group.barrier()
        if group.rank == 2:
            group.send(np.full(n, 2.0), 0, 4)
        if group.rank:
            return group.barrier().tolist()
        works = [group.later.receive(np.zeros(n), None, 4) for _ in range(2)]
        got = [(work.wait(100)[-1], work.peer) for work in works]
        works = [
            group.later.receive(np.zeros(n), source, tag) for source, tag in ((None, 4), (1, 9))
        ]
        got += [(work.wait(100)[-1], work.peer) for work in works]
        group.barrier()
        return got

    got = crew.do(run)[0]
    assert sorted(got[:3]) == [(2.0, 2), (40.0, 1), (40.0, 1)]
    assert got[3] == (90.0, 1)


@pytest.mark.parametrize("seed", range(3))
def test_receives_take_messages_in_the_order_in_which_they_were_begun(crew, seed):
    """Whether they name the rank or not; they come while others are begun and taken."""
    n, choose = 400, random.Random(seed)
    sources = [choose.choice((None, 1)) for _ in range(n)]

    def run(group):
        if group.rank == 1:
            group.barrier()
            for i in range(n):
                group.send(np.array([float(i)]), 0)
        elif group.rank == 2:
            group.barrier()
        else:
            works = [group.later.receive(np.zeros(1), source) for source in sources[: n // 2]]
            group.barrier()
            works += [group.later.receive(np.zeros(1), source) for source in sources[n // 2 :]]
            return [work.wait(100)[0] for work in works]
        return []

    assert crew.do(run)[0] == [float(i) for i in range(n)]


@pytest.mark.parametrize("seed", range(3))
def test_what_all_send_is_received_from_anybody_once(crew, seed):
    choose = random.Random(seed)
    size_of = (1, 80, 70_000)  # by tag, as a receive must know it
    sent = {r: [choose.randrange(3) for _ in range(20)] for r in (1, 2)}
    wanted = sent[1] + sent[2]
    choose.shuffle(wanted)

    def run(group):
        if group.rank:
            works = [
                group.later.send(np.full(size_of[tag], 100.0 * group.rank + i), 0, tag)
                for i, tag in enumerate(sent[group.rank])
            ]
            return [work.wait(100).size for work in works]
        works = [group.later.receive(np.zeros(size_of[tag]), None, tag) for tag in wanted]
        return [(work.wait(100)[-1], work.peer) for work in works]

    got = list(zip(crew.do(run)[0], wanted, strict=True))
    for rank, tags in sent.items():
        for tag in range(3):
            values = [value for (value, peer), t in got if (peer, t) == (rank, tag)]
            assert values == [100.0 * rank + i for i, t in enumerate(tags) if t == tag]


@pytest.mark.parametrize("hosts", [(0, 0, 0), (0, 1, 1)])
def test_a_receive_from_anybody_ends_with_its_group(hosts):
    with crews(hosts) as [crew]:
        waiting = crew.groups[0].later.receive(np.zeros(3), None)
        crew.groups[1].close()
        with pytest.raises(DeadlineExceeded):
            waiting.wait(0.1)  # rank 2 is still there
        crew.groups[2].close()
        with pytest.raises(PeerLost, match="has left the group before message 0 from any rank"):
            waiting.wait(100)
    text = "has waited 2 s in vain for message 0 from any rank of 3 f64, tag 4"
    with crews(hosts, deadline_s=2.0) as [crew]:
        with pytest.raises(LateRank, match=text) as raised:
            crew.groups[0].receive(np.zeros(3), None, 4)
        assert raised.value.rank == 0
        with pytest.raises(LateRank, match="rank 0 has waited"):
            crew.groups[1].receive(np.zeros(3), None, 4)


def test_nobody_receives_from_anybody_alone():
    with crews(1) as [crew], pytest.raises(InvalidCall, match="nobody to receive from"):
        crew.groups[0].receive(np.zeros(3), None)
