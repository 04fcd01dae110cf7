"""What is kept of a rank's state, and what a newcomer takes from those who have ended."""

import os

import numpy as np
import pytest

from stack.fault.generations import Generations, Memory, last_of

NBYTES = 256


@pytest.fixture
def made():
    """Makes generations of ranks, and opens what they hold as another process does."""
    all_made = []

    def make():
        all_made.append(Generations())
        return all_made[-1]

    yield make
    for kept in all_made:
        for descriptor in kept.descriptors:
            os.close(descriptor)


def keep(kept, *steps):
    for step in steps:
        kept.begin(7, b"%d" % step, NBYTES)[:] = step % 256
        kept.end(step)


def held(kept):
    return [Memory(descriptor) for descriptor in kept.descriptors]


def test_the_agreed_one_outlives_all_that_come_after(made):
    kept = made()
    keep(kept, 0)
    kept.enter(1, 0)
    kept.agree()
    keep(kept, *range(1, 10))
    assert kept.agreed().step == 0
    assert (kept.agreed().tensors == 0).all()
    assert kept.order == (1, 9)
    assert kept.at(8).plain == b"8"
    kept.enter(2, 8)  # somebody had not done the last one
    assert (kept.order, kept.at(9)) == ((2, 8), None)
    kept.agree()
    assert kept.agreed().step == 8
    keep(kept, 9, 10)
    kept.enter(3, 8)
    assert (kept.order, kept.agreed().step) == ((3, 8), 8)
    assert len(kept.descriptors) == 3


def test_what_all_have_is_the_oldest_of_the_last_epoch(made):
    ranks = [made() for _ in range(3)]
    for kept, steps in zip(ranks, (4, 3, 9), strict=True):
        keep(kept, 0)
        kept.enter(1, 0)
        keep(kept, *range(1, steps + 1))
    assert last_of(map(held, ranks)) == (1, 3)
    for kept in ranks[:2]:  # the third one has ended
        kept.enter(2, 3)
    keep(ranks[0], 4, 5)
    keep(ranks[1], 4)
    assert last_of(map(held, ranks)) == (2, 4)
    assert last_of([]) == (-1, -1)


def test_a_newcomer_takes_what_all_have_that_were_ranks_last(made):
    one, other, newcomer = made(), made(), made()
    for kept in (one, other, newcomer):
        keep(kept, 0)
    for kept, newest in ((one, 6), (other, 5)):
        kept.enter(1, 0)
        keep(kept, *range(1, newest + 1))
    keep(newcomer, 30)  # of its own, and of no epoch
    assert newcomer.adopt([held(one), held(other)])
    assert newcomer.order == (1, 5)
    assert newcomer.newest().plain == b"5"
    assert (newcomer.newest().tensors == np.uint8(5)).all()
    assert not newcomer.adopt([held(one)])  # the others know what counts
    assert not newcomer.adopt([])


def test_the_agreed_one_comes_from_those_who_have_ended(made):
    one, newcomer = made(), made()
    keep(one, 3)
    one.enter(1, 3)
    one.agree()
    keep(one, 4, 5)
    keep(newcomer, 0)
    newcomer.adopt([held(one)])
    newcomer.adopt_agreed(held(one))
    assert (newcomer.order, newcomer.agreed().step) == ((1, 5), 3)
    assert newcomer.agreed().plain == b"3"


def test_what_was_on_disk_counts_where_nobody_was_a_rank(made):
    old, newcomer = made(), made()
    keep(old, 300)
    keep(newcomer, 0)
    assert newcomer.adopt([held(old)])
    assert newcomer.order == (0, 300)
    newcomer.enter(4, 300)
    assert not newcomer.adopt([held(old)])
