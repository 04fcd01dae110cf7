"""A rank of another host that says what no rank says, and somebody on the way who changes bytes:
the group ends by an error that names who it was, and no memory is touched."""

import struct
import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from hal.core.errors import OutOfMemory
from stack.comm.engine import links
from stack.comm.engine.failures import BrokenRank, ConnectionTampered, LateRank
from stack.comm.engine.library import lib
from tests.comm.engine.crew import crews
from tests.comm.engine.forger import LIFE, MESSAGES, PROGRAMS, beat, call, forged, message
from tests.comm.relay import Relay

HEAD_NBYTES, TAG_NBYTES = 16, 16
F32 = np.float32
DATA = np.arange(4, dtype=F32).tobytes()


def guarded(count):
    """An array, and the bytes behind it."""
    room = np.full(count + 4096, 7, F32)
    return room[:count], room[count:]


def test_what_an_honest_rank_sends_is_received():
    with forged() as (group, forger):
        forger.say(MESSAGES, message(0, 4, DATA) + message(1, 0, b"", tag=3))
        assert group.receive(np.zeros(4, F32), 1).tolist() == [0, 1, 2, 3]
        assert group.receive(np.zeros(0, F32), 1, 3).size == 0


def test_a_rank_of_another_host_lends_nothing():
    with forged() as (group, forger):
        place = struct.pack("<qq", 1, 0)
        forger.say(MESSAGES, message(0, 1 << 20, place, nbytes=len(place)))
        with pytest.raises(BrokenRank, match="rank 1 said what no rank says: a message whose len"):
            group.receive(np.zeros(1 << 20, F32), 1)


@pytest.mark.parametrize("nbytes", [4096, -40, 1 << 40, 15, 20, 0, -(1 << 63), (1 << 63) - 1])
@pytest.mark.parametrize("tag", [5, 7])
def test_a_length_that_is_not_that_of_the_elements_is_refused(nbytes, tag):
    with forged() as (group, forger):
        array, behind = guarded(4)
        forger.say(MESSAGES, message(0, 4, bytes(4096), tag=7, nbytes=nbytes))
        with pytest.raises(BrokenRank, match="rank 1 said what no rank says: a message whose len"):
            group.receive(array, 1, tag)
        assert (behind == 7).all()
        assert forger.heard()[:2] == (lib.HE_NONSENSE, 1)


def test_a_message_that_nobody_wants_and_that_is_too_large_to_keep_is_the_senders_fault():
    with forged() as (group, forger):
        forger.say(MESSAGES, message(0, 1 << 38, b"", tag=7, nbytes=1 << 40))
        with pytest.raises(
            BrokenRank, match=r"rank 1 sends message 0 .* nobody receives"
        ) as raised:
            group.receive(np.zeros(4, F32), 1, 5)
        assert raised.value.rank == 1


@pytest.mark.parametrize(
    "frame",
    [
        message(0, -1, b""),
        message(0, 1 << 62, b""),
        message(0, 4, DATA, dtype=13),
        message(0, 4, DATA, dtype=-1),
        message(0, 4, DATA, root=1),
        message(0, 4, DATA, kind=lib.HE_ALL_REDUCE),
        message(0, 4, DATA, kind=99),
        message(1, 4, DATA),
        message(-1, 4, DATA),
    ],
)
def test_a_head_that_no_rank_writes_is_refused(frame):
    with forged() as (group, forger):
        forger.say(MESSAGES, frame)
        with pytest.raises(BrokenRank, match="rank 1 said what no rank says") as raised:
            group.receive(np.zeros(4, F32), 1)
        assert raised.value.rank == 1


@pytest.mark.parametrize("kind", [lib.HE_SEND, lib.HE_RECV, -1, 99, lib.HE_ALL_REDUCE])
def test_a_step_of_a_program_that_no_rank_sends_is_refused(kind):
    with forged() as (group, forger):
        forger.say(PROGRAMS, message(0, 1, bytes(64), kind=kind, root=-1, nbytes=-8))
        with pytest.raises(BrokenRank, match="rank 1 said what no rank says"):
            group.all_reduce(np.zeros(1))


@pytest.mark.parametrize(
    "said",
    [
        beat(failed=1, code=0),  # waited for ever
        beat(failed=1, code=2),
        beat(failed=lib.HE_FORKED),
        beat(failed=lib.HE_LAST_CODE + 1),
        beat(failed=lib.HE_ENDED, rank=2),
        beat(failed=lib.HE_ENDED, told_by=-1),
        beat(failed=lib.HE_NONSENSE, detail=lib.HE_LAST_WRONG + 1),
        beat(failed=lib.HE_LATE, detail=2),
        beat(presence=2),
        beat(last=call(-2)),
        beat(last=call(0, kind=lib.HE_RECV + 1)),
        *(beat(kind=kind) for kind in (1, 2, 3, 4, -1)),  # memory of another host
    ],
)
def test_a_sign_of_life_that_no_rank_gives_is_refused(said):
    with forged() as (group, forger):
        forger.say(LIFE, said)
        with pytest.raises(BrokenRank, match="rank 1 said what no rank says") as raised:
            group.barrier()
        assert raised.value.rank == 1
        assert forger.heard()[:2] == (lib.HE_NONSENSE, 1)


def test_a_failure_that_a_rank_tells_is_believed():
    with forged() as (group, forger):
        forger.say(LIFE, beat(failed=lib.HE_LATE, rank=1, told_by=1))
        with pytest.raises(LateRank, match="rank 1 did not come"):
            group.barrier()


def altered(record):
    return record[:-20] + bytes([record[-20] ^ 1]) + record[-19:]


LANES = {LIFE: beat(), PROGRAMS: message(0, 1, DATA), MESSAGES: message(0, 4, DATA)}


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("how", ["altered", "unsigned", "swapped", "left out", "head", "longer"])
def test_bytes_that_were_not_sent_so_are_refused(lane, how):
    with forged() as (group, forger):
        one, two = forger.sealed(lane, LANES[lane]), forger.sealed(lane, LANES[lane])
        forger.write(lane, {
            "altered": altered(one),
            "unsigned": one[:-TAG_NBYTES] + bytes(TAG_NBYTES),
            "swapped": two + one,
            "left out": two,
            "head": b"\xff" * HEAD_NBYTES + one,
            "longer": struct.pack("<QQ", 1 << 40, lane == LIFE) + one[HEAD_NBYTES:],
        }[how])  # fmt: skip
        with pytest.raises(
            ConnectionTampered, match="between ranks 1 and 0 was tampered"
        ) as raised:
            group.receive(np.zeros(4, F32), 1) if lane == MESSAGES else group.barrier()
        assert raised.value.rank == 1
        assert forger.heard()[:3] == (lib.HE_TAMPERED, 1, 0)


@pytest.mark.parametrize("lane", [LIFE, MESSAGES])
def test_a_record_that_comes_again_is_refused(lane):
    with forged() as (group, forger):
        record = forger.sealed(lane, LANES[lane])
        forger.write(lane, record + record)
        later = [group.later.receive(np.zeros(4, F32), 1) for _ in range(2)]
        with pytest.raises(ConnectionTampered):
            later[1].wait(100)


@contextmanager
def between_hosts(monkeypatch, purposes):
    """Ranks of two hosts, and the relays that their connections for these purposes go through."""
    relays = []
    before = links.Links._call

    def through_relay(self, other, purpose):
        cards = self._cards
        if purpose in purposes:
            relays.append(OnTheWay(cards[other].port).__enter__())
            self._cards = [replace(card, port=relays[-1].port) for card in cards]
        before(self, other, purpose)
        self._cards = cards

    monkeypatch.setattr(links.Links, "_call", through_relay)
    try:
        with crews((0, 1)) as [crew]:
            yield crew, relays
    finally:
        for relay in relays:
            relay.__exit__()


class OnTheWay(Relay):
    """Changes a bit of what goes through once it is `armed`, in the middle of what comes then."""

    armed = False

    def _passed(self, data):
        if not self.armed or len(data) < 100:
            return data
        self.armed = False
        at = len(data) // 2
        return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


@pytest.mark.parametrize("purpose", ["life", "programs", "messages"])
def test_a_byte_that_is_changed_between_two_hosts_ends_the_group_on_both(monkeypatch, purpose):
    with between_hosts(monkeypatch, [purpose]) as (crew, [relay]):
        assert crew.do(lambda g: g.all_reduce(np.ones(50_000))[0]) == [2.0, 2.0]
        relay.armed = True

        def use(group):
            for _ in range(2000):
                if purpose == "messages":
                    other = 1 - group.rank
                    coming = group.later.receive(np.ones(9), other)
                    group.later.send(np.ones(9), other).wait(100)
                    coming.wait(100)
                else:
                    group.all_reduce(np.ones(50_000))
                    threading.Event().wait(0.01 if purpose == "life" else 0)

        def fail(group):
            with pytest.raises(ConnectionTampered, match="tampered with") as raised:
                use(group)
            return raised.value

        errors = crew.do(fail)
        assert [error.rank for error in errors] == [1, 0]
        assert {error.failure.kind.value for error in errors} == {"data-corruption"}


def test_more_memory_than_there_is_is_refused_at_once_with_what_there_is():
    with crews(2) as [crew]:

        def ask(group):
            with pytest.raises(
                OutOfMemory, match=r"no 1099511627776 bytes .* can have [0-9]+$"
            ) as raised:
                group.empty(1 << 40, np.uint8)
            with pytest.raises(OutOfMemory):
                group.empty(1 << 62)
            return raised.value, group.all_reduce(group.empty(3))[0]

        for error, total in crew.do(ask):
            assert error.requested == 1 << 40
            assert 0 < error.available < 1 << 40
            assert total == 0
