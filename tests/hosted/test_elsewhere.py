"""Groups of hosted devices whose members are in several processes."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import pytest

from hal.core.dtypes import DType
from hal.core.values import Collective, CollectiveKind, ReduceKind
from hal.hosted.elsewhere import Elsewhere
from hal.hosted.lock import LOCK
from hal.hosted.wire import words_of
from hal_conformance.collectives import expected
from tests.draw import sample
from tests.hosted.members import drawn

Kind = CollectiveKind
SUM = Collective(Kind.ALL_REDUCE, DType.F32, 16)
PATIENCE_S = 60.0
_keys = count()


class Ear:
    """Whom links belong to: what it hears, in order."""

    def __init__(self):
        self.events = []

    def came(self):
        self.events.append("came")

    def heard(self, message, descriptors):
        self.events.append(message["say"])

    def went(self, ranks):
        self.events.append(("went", ranks))

    def part(self):
        self.events.append("part")


def until(ear, event):
    end_s = time.monotonic() + PATIENCE_S
    while event not in ear.events:
        assert time.monotonic() < end_s
        time.sleep(0.001)


RUBBISH = (
    b"3", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"say": []}', b'{"say": "hello"}',
    b'{"say": "hello", "process": "x", "peers": [], "ranks": 5}', b'{"say": "here", "rank": 1}',
    b'{"say": "away", "rank": 0}', b'{"say": "disagrees", "text": "no"}',
)  # fmt: skip


def test_what_no_process_of_a_group_says_ends_its_own_link_alone():
    key, ears = f"test-{os.getpid()}-{next(_keys)}", (Ear(), Ear())
    one, other = (Elsewhere(key, ("tiny:0", "tiny:1"), ear) for ear in ears)
    with LOCK:
        one.add(0)
    for rubbish in RUBBISH:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.settimeout(PATIENCE_S)
            stranger.connect(one._address(0))
            stranger.send(rubbish)
            assert stranger.recv(1) == b"", rubbish[:60]
    assert ears[0].events == []
    with LOCK:
        other.add(1)
    for ear in ears:
        until(ear, "came")
    with LOCK:
        one.close()
        other.close()


def test_the_last_words_of_who_ends_with_something_unread_are_heard():
    """The system tells of the end before it gives what was said."""
    key, ears = f"test-{os.getpid()}-{next(_keys)}", (Ear(), Ear())
    pair = [Elsewhere(key, ("tiny:0", "tiny:1"), ear) for ear in ears]
    with LOCK:
        for rank, one in enumerate(pair):
            one.add(rank)
    for ear in ears:
        until(ear, "came")
    with LOCK:  # in which nobody reads
        pair[0].tell({"say": "unread"})
        pair[1].tell({"say": "last words"})
        pair[1].close()
    until(ears[0], ("went", [1]))
    assert ears[0].events == ["came", "last words", ("went", [1])]
    with LOCK:
        pair[0].close()


class Child:
    """A process with some ranks of a group."""

    def __init__(self, **job):
        self.ranks = job["ranks"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.hosted.members", json.dumps(job)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def line(self):
        assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], "it says nothing"
        return self.process.stdout.readline().strip()

    def say(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")

    def begin(self, call):
        self.say("go", words_of(call))


@contextmanager
def children(*places, timeout_s=30.0, each=None, size=0, **more):
    """A process for each list of ranks; `each` is what the job of one differs in."""
    key = f"test-{os.getpid()}-{next(_keys)}"
    job = {"key": key, "size": size or sum(map(len, places)), "timeout_s": timeout_s}
    job |= more
    job["peers"] = [f"tiny:{rank}" for rank in range(job["size"])]
    made = []
    try:
        for ranks in places:
            made.append(Child(**{**job, "ranks": ranks, **(each or {}).get(len(made), {})}))
        assert [child.line() for child in made] == ["ready"] * len(made)
        for child in made:
            child.say("join")
        yield made
    finally:
        for child in made:
            child.process.kill()
            child.process.communicate(timeout=PATIENCE_S)


def results(made, call):
    """What each rank has of a call."""
    for child in made:
        child.begin(call)
    found = {}
    for child in made:
        found |= zip(child.ranks, json.loads(child.line()), strict=True)
    return [found[rank] for rank in sorted(found)]


def calls(size):
    """Each kind, and each type that reductions differ in."""
    rows = tuple(tuple((3 * i + j) % 5 for j in range(size)) for i in range(size))
    for kind in Kind:
        if kind is Kind.ALL_TO_ALL_V:
            yield Collective(kind, DType.I32, 0, counts=rows)
        elif kind in (Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER):
            for dtype in DType:
                if dtype.bits < 8:
                    continue
                for reduce in ReduceKind:
                    if (dtype, reduce) != (DType.BOOL, ReduceKind.AVG):
                        yield Collective(kind, dtype, 13, reduce, size - 1)
        else:
            yield Collective(kind, DType.F32, 13, root=size - 1)
    yield Collective(Kind.ALL_REDUCE, DType.F32, 0)
    yield Collective(Kind.ALL_GATHER, DType.U8, 150_000)


PLACES = [([0], [1]), ([0, 3], [1, 2]), ([1], [0, 2], [3])]


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("places", sample("where ranks are", PLACES, 1), ids=str)
def test_each_kind_gives_what_the_contract_says(places):
    with children(*places) as made:
        assert [child.line() for child in made] == ["joined"] * len(made)
        size = sum(map(len, places))
        for call in calls(size):
            wanted = expected(call, [drawn(call, rank, size) for rank in range(size)])
            for found, want in zip(results(made, call), wanted, strict=True):
                assert found == want.tobytes().hex(), call


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("places", [([0], [1], [2]), ([2, 1], [0])], ids=str)
def test_a_driver_that_joins_processes_does_what_it_takes_and_the_host_the_rest(places, tmp_path):
    with children(*places, seats=["a", "b", "c"], shelf=str(tmp_path)) as made:
        assert [child.line() for child in made] == ["joined"] * len(made)
        total = sum(drawn(SUM, rank, 3) for rank in range(3))
        assert results(made, SUM) == [(total + 1).tobytes().hex()] * 3
        assert results(made, replace(SUM, root=1)) == [total.tobytes().hex()] * 3
        assert results(made, SUM) == [(total + 1).tobytes().hex()] * 3


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("seats", [["a", "b", "a"], ["a", "", "c"]], ids=str)
def test_a_driver_joins_nobody_where_ranks_share_a_device_or_one_does_not_join(seats, tmp_path):
    with children([0], [1], [2], seats=seats, shelf=str(tmp_path)) as made:
        assert [child.line() for child in made] == ["joined"] * 3
        total = sum(drawn(SUM, rank, 3) for rank in range(3))
        assert results(made, SUM) == [total.tobytes().hex()] * 3


@pytest.mark.slow
@pytest.mark.turns
def test_a_process_that_is_killed_in_a_call_of_the_driver_is_named_at_once(tmp_path):
    job = {"seats": ["a", "stuck", "c"], "shelf": str(tmp_path)}
    with children([0], [1], [2], timeout_s=300.0, **job) as made:
        assert [child.line() for child in made] == ["joined"] * 3
        for child in made:
            child.begin(SUM)
        assert not select.select([made[0].process.stdout], [], [], 0.2)[0], "it did not wait"
        made[1].process.send_signal(signal.SIGKILL)
        for child in (made[0], made[2]):
            assert "failed peer-lost rank 1 (tiny:1) is gone: its process has" in child.line()


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("killed", sample("who is killed", [0, 1], 1))
def test_a_killed_process_is_named_at_once(killed):
    with children([0], [1], [2], timeout_s=300.0) as made:
        assert [child.line() for child in made] == ["joined"] * 3
        results(made, SUM)
        others = [child for child in made if child is not made[killed]]
        for child in others:
            child.begin(SUM)
        made[killed].process.send_signal(signal.SIGKILL)
        for child in others:
            said = child.line()
            assert f"failed peer-lost rank {killed} (tiny:{killed}) is gone: its process" in said


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("stopped", sample("who does not come", [0, 2], 1))
def test_a_process_that_does_not_come_is_named_at_the_deadline(stopped):
    with children([0], [1], [2], timeout_s=3.0) as made:
        assert [child.line() for child in made] == ["joined"] * 3
        made[stopped].process.send_signal(signal.SIGSTOP)
        others = [child for child in made if child is not made[stopped]]
        for child in others:
            child.begin(SUM)
        for child in others:
            assert f"call 0: ranks [{stopped}] did not come in 3.0 s" in child.line()


@pytest.mark.slow
@pytest.mark.turns
def test_ranks_that_never_join_are_named():
    with children([0], [2], size=4, timeout_s=1.0) as made:
        for child in made:
            assert "ranks [1, 3] did not join in 1.0 s" in child.line()


@pytest.mark.slow
@pytest.mark.turns
def test_members_that_name_other_peers_are_refused():
    other = {"peers": ["tiny:0", "tiny:1", "tiny:7"]}
    with children([0], [1], size=3, each={1: other}) as made:
        for child in made:
            assert child.line().startswith("refused InvalidCall group")


@pytest.mark.slow
@pytest.mark.turns
def test_a_rank_that_another_process_has_is_refused():
    with children([0], [0], size=2, timeout_s=3.0) as made:
        said = sorted(child.line() for child in made)
        assert "rank 0 has joined already" in said[1]
        assert "ranks [1] did not join" in said[0]


@pytest.mark.slow
@pytest.mark.turns
def test_calls_that_differ_fail_on_all():
    with children([0], [1], [2]) as made:
        assert [child.line() for child in made] == ["joined"] * 3
        for child, number in zip(made, (16, 16, 9), strict=True):
            child.begin(Collective(Kind.ALL_REDUCE, DType.F32, number))
        for child in made:
            said = child.line()
            assert "failed aborted call 0 is all-reduce of" in said
            assert "16 f32" in said
            assert "9 f32" in said


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("seats", [["", ""], ["a", "stuck"]], ids=["waits", "driver"])
def test_an_abort_reaches_who_waits_here_and_elsewhere(seats, tmp_path):
    """Also in a call that the driver has begun."""
    with children([0], [1], timeout_s=300.0, seats=seats, shelf=str(tmp_path)) as made:
        assert [child.line() for child in made] == ["joined"] * 2
        if "stuck" in seats:
            made[1].begin(SUM)
        made[0].say("abort", words_of(SUM), 0.5)
        assert "enough" in made[0].line()
        if "stuck" not in seats:
            made[1].begin(SUM)
            assert "rank 0 (tiny:0) is gone: " in made[1].line()


@pytest.mark.slow
@pytest.mark.turns
def test_a_process_that_ends_well_takes_nothing_from_calls_that_are_done():
    with children([0], [1], timeout_s=300.0) as made:
        assert [child.line() for child in made] == ["joined"] * 2
        for _ in range(3):
            results(made, SUM)
        made[0].say("exit")
        made[0].process.wait(PATIENCE_S)
        made[1].begin(SUM)
        assert "rank 0 (tiny:0) is gone: its process has ended" in made[1].line()
