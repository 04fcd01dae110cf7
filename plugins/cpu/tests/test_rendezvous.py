"""Members look for each other in any order, and each may end as soon as it has met the others."""

from __future__ import annotations

import contextlib
import itertools
import os
import random

import pytest
from hal_plugin_cpu.rendezvous import Rendezvous

from hal.core.errors import InvalidCall
from hal.core.values import GroupSpec

_keys = itertools.count()


def _specs(size: int) -> list[GroupSpec]:
    key = f"rendezvous-{os.getpid()}-{next(_keys)}"
    return [GroupSpec(key, rank, ("cpu:0",) * size, 5.0) for rank in range(size)]


def _leave(member: Rendezvous) -> set[int]:
    """End as a killed process does, right after the meeting; the ranks that were met."""
    links, memory = member.take()
    for link in links.values():
        link.close()
    os.close(memory)
    member.__exit__(None, None, None)
    return set(links)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("seed", range(40))
def test_whoever_ends_after_the_meeting_leaves_nobody_waiting(size: int, seed: int) -> None:
    order = random.Random(seed)
    wake = os.eventfd(0, os.EFD_NONBLOCK)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, wake)
        looking = {
            spec.rank: stack.enter_context(Rendezvous(spec))
            for spec in order.sample(_specs(size), size)
        }
        met = {}
        for _ in range(4000):
            rank = order.choice(sorted(looking))
            looking[rank].turn(0.0, wake)
            if looking[rank].complete:
                met[rank] = _leave(looking.pop(rank))
            if not looking:
                break
    assert met == {rank: set(range(size)) - {rank} for rank in range(size)}


def test_who_gives_up_before_all_are_there_may_come_again() -> None:
    zero, one, two = _specs(3)
    wake = os.eventfd(0, os.EFD_NONBLOCK)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, wake)
        first = stack.enter_context(Rendezvous(zero))
        with Rendezvous(one) as second:
            for _ in range(3):
                second.turn(0.01, wake)
                first.turn(0.01, wake)
        looking = {0: first} | {
            spec.rank: stack.enter_context(Rendezvous(spec)) for spec in (one, two)
        }
        for _ in range(4000):
            for member in looking.values():
                member.turn(0.0, wake)
            if all(member.complete for member in looking.values()):
                break
        met = {rank: _leave(member) for rank, member in looking.items()}
    assert met == {0: {1, 2}, 1: {0, 2}, 2: {0, 1}}


def test_a_rank_is_taken_once() -> None:
    zero, _ = _specs(2)
    with Rendezvous(zero), pytest.raises(InvalidCall, match="rank 0 has joined already"):
        Rendezvous(zero).__enter__()
