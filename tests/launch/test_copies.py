"""A host's state goes into the memory of another host's agent, whole or not at all."""

import os
import selectors
import socket
import time

import pytest

from hal.net.loop import turn
from stack.fault.generations import Memory
from stack.launch import copies
from stack.launch.copies import PIECE_NBYTES, Copies, Giver
from stack.launch.keeping import order_of
from tests.draw import stream

HERE = "127.0.0.1"
LONG_S = 30


class Pair:
    """An agent that gives, and one that holds, in one loop."""

    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.held = Copies(self.selector, "secret", HERE)
        self.said = []
        self.givers = []

    def giver(self, token="secret", address=None):
        address = address or self.held.address
        self.givers.append(
            Giver(self.selector, token, address, lambda *said: self.said.append(said))
        )
        return self.givers[-1]

    def run(self, count):
        """Until so much was said."""
        until_s = time.monotonic() + LONG_S
        while len(self.said) < count:
            assert time.monotonic() < until_s, self.said
            turn(self.selector, 0.05)
            for giver in self.givers:
                giver.look()
        return self.said


@pytest.fixture
def pair(monkeypatch):
    for limit in ("STALLED_S", "_CONNECT_S"):  # a busy machine may do nothing for seconds
        monkeypatch.setattr(copies, limit, LONG_S)
    made = Pair()
    yield made
    for giver in made.givers:
        giver.close()
    made.held.close()
    made.held.forget()
    made.selector.close()


@pytest.fixture
def filled(rng):
    """Makes the memory of a generation."""
    all_made = []

    def make(epoch, step, nbytes):
        memory = Memory.made(5, nbytes)
        memory.begin(7, b"plain", nbytes, 3)[:] = bytearray(rng.randbytes(nbytes))
        memory.end(step, epoch)
        all_made.append(memory)
        return memory

    yield make
    for memory in all_made:
        os.close(memory.descriptor)


@pytest.fixture
def rng():
    return stream("copies")


def test_what_is_given_is_there_bit_for_bit(pair, filled, rng):
    giver = pair.giver()
    given = [filled(2, step, rng.randrange(3 * PIECE_NBYTES)) for step in range(4)]
    for i, memory in enumerate(given):
        giver.give(os.dup(memory.descriptor))
        assert pair.run(i + 1)[-1] == ((2, i), "")
        orders = sorted(map(order_of, pair.held.memories))
        assert orders == [(2, step) for step in range(max(0, i - 1), i + 1)]
        found = Memory(max(pair.held.memories, key=order_of)).whole()
        wanted = memory.whole()
        assert (found.step, found.layout, found.kind, found.plain) == (i, 7, 3, b"plain")
        assert found.tensors.tobytes() == wanted.tensors.tobytes()
    pair.held.forget()
    assert pair.held.memories == []


def test_what_has_changed_on_the_way_is_not_there(pair, filled):
    giver = pair.giver()
    old, new = (filled(1, step, 8 * PIECE_NBYTES) for step in (4, 5))
    giver.give(os.dup(old.descriptor))
    pair.run(1)
    giver.give(os.dup(new.descriptor))
    new.begin(7, b"other", PIECE_NBYTES, 3)  # its rank writes there meanwhile
    later = filled(2, 5, PIECE_NBYTES)
    giver.give(os.dup(later.descriptor))
    said = pair.run(3)
    assert said[1] == ((1, 5), "it has changed")
    assert said[2] == ((2, 5), "")
    assert max(map(order_of, pair.held.memories)) == (2, 5)


def test_ranks_may_agree_on_what_is_on_its_way(pair, filled):
    giver = pair.giver()
    memory = filled(1, 5, PIECE_NBYTES)
    giver.give(os.dup(memory.descriptor))
    memory.end(5, 2, agreed=True)
    assert pair.run(1) == [((2, 5), "")]
    assert Memory(pair.held.memories[0]).is_agreed


def test_a_stranger_gives_nothing(pair, filled):
    giver = pair.giver(token="another secret")
    giver.give(os.dup(filled(1, 5, 100).descriptor))
    ((order, why),) = pair.run(1)
    assert order == (1, 5)
    assert "refuses this process" in why
    assert pair.held.memories == []


def test_who_takes_nothing_gets_nothing_more(monkeypatch, pair, filled):
    """Also who is not there."""
    monkeypatch.setattr(copies, "STALLED_S", 0.2)
    with socket.create_server((HERE, 0)) as silent:
        giver = pair.giver(address=f"{HERE}:{silent.getsockname()[1]}")
        giver.give(os.dup(filled(1, 5, 100).descriptor))
        assert "took nothing for 0.2 s" in pair.run(1)[0][1]
        giver.give(os.dup(filled(1, 6, 100).descriptor))
        assert pair.run(2)[1][0] == (1, 6)


def test_a_holder_that_ends_is_told_of(pair, filled):
    giver = pair.giver()
    giver.give(os.dup(filled(1, 5, 100).descriptor))
    pair.run(1)
    pair.held._source.close()
    giver.give(os.dup(filled(1, 6, 100).descriptor))
    order, why = pair.run(2)[1]
    assert order == (1, 6)
    assert why
