"""What is registered with a driver, and what it has back when its device is idle."""

from __future__ import annotations

import mmap
import random
import threading
import time

import pytest

from hal.hosted.idle import Spent
from hal.hosted.pins import Pins

PAGE = mmap.PAGESIZE


class Registered:
    """A driver's register: it refuses pages that it has, as drivers do."""

    def __init__(self) -> None:
        self.runs: dict[int, int] = {}

    def add(self, start: int, end: int) -> None:
        assert start % PAGE == end % PAGE == 0
        assert start < end
        if any(start < e and s < end for s, e in self.runs.items()):
            raise OSError("already registered")
        self.runs[start] = end

    def drop(self, start: int) -> None:
        del self.runs[start]

    def covers(self, address: int, nbytes: int) -> bool:
        return all(
            any(s <= at < e for s, e in self.runs.items())
            for at in (*range(address, address + nbytes, PAGE), address + nbytes - 1)
        )


def test_memories_that_share_pages_are_all_reached_until_the_last_is_dropped() -> None:
    rng, driver = random.Random(0), Registered()
    pins = Pins(driver.add, driver.drop)
    at, memories = 5 * PAGE + 100, []
    for _ in range(60):  # one after another, as an allocator gives them
        nbytes = rng.choice((1, 1000, PAGE, PAGE + 1, 5 * PAGE - 8))
        memories.append((at, nbytes))
        at += nbytes + rng.choice((0, 16, 3 * PAGE))
    memories += memories[::7]  # some twice
    live = []
    for memory in memories:
        live.append((memory, pins.add(*memory)))
        if rng.random() < 0.4:
            pins.drop(live.pop(rng.randrange(len(live)))[1])
        assert all(driver.covers(*m) for m, _ in live)
    for _, runs in live:
        pins.drop(runs)
    assert not driver.runs


def test_a_part_of_a_registered_memory_is_registered() -> None:
    driver = Registered()
    pins = Pins(driver.add, driver.drop)
    whole = pins.add(100, 10 * PAGE)
    part = pins.add(3 * PAGE + 5, 4 * PAGE)
    pins.drop(whole)
    assert driver.covers(3 * PAGE + 5, 4 * PAGE)
    pins.drop(part)
    assert not driver.runs


def test_a_refusal_leaves_nothing_behind() -> None:
    driver = Registered()
    pins = Pins(driver.add, driver.drop)
    driver.add(4 * PAGE, 5 * PAGE)  # by somebody else
    with pytest.raises(OSError, match="already"):
        pins.add(100, 10 * PAGE)
    assert list(driver.runs) == [4 * PAGE]


def test_what_is_spent_goes_back_when_nothing_runs() -> None:
    idle, given = [False], []
    spent = Spent(lambda: idle[0])
    for i in range(3):
        spent.add(lambda i=i: given.append(i))
    spent.tidy()
    assert not given
    spent.tidy(time.monotonic() + 0.01)
    assert not given
    idle[0] = True
    spent.tidy()
    assert given == [0, 1, 2]


def test_nothing_spent_goes_back_in_another_s_turn() -> None:
    spent, given = Spent(lambda: True), list[int]()
    spent.add(lambda: given.append(1))
    tidying = threading.Thread(target=spent.tidy, daemon=True)
    with spent.turn:
        tidying.start()
        tidying.join(0.02)
        assert not given
    tidying.join(60)
    assert given == [1]
