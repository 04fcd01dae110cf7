"""Who is slow, told from the ranks' own times."""

import pytest

from stack.launch.pace import Pace
from tests.draw import stream


def named(times, parts=(1, 1, 1, 1)):
    """Who is named at which step, of rows of the ranks' times; the ranks tell them in any order."""
    pace, found, rng = Pace(len(parts)), [], stream("paces")
    for step, row in enumerate(times):
        for rank in rng.sample(range(len(parts)), len(parts)):
            found += pace.step(rank, step, row[rank], parts[rank])
    return [(slow.rank, slow.step) for slow in found]


def noisy(steps, factors, scale=1.0, rng=None):
    """Own times with the tail that a busy machine gives: half of them up to 1.6 times as long."""
    rng = rng or stream("paces")
    return [
        [scale * f * (1 + rng.choice((0.0, 0.6)) * rng.random()) for f in factors]
        for _ in range(steps)
    ]


@pytest.mark.parametrize("slow", range(4))
def test_a_rank_that_takes_half_as_long_again_is_named_within_20_steps(slow):
    factors = [1.5 if rank == slow else 1.0 for rank in range(4)]
    times = [[1.0] * 4] * 50 + [factors] * 20
    ((rank, step),) = named(times)
    assert rank == slow
    assert 50 < step < 70


def test_nobody_is_named_in_a_thousand_clean_steps():
    assert named(noisy(1000, [1.0] * 4)) == []


def test_it_is_named_again_once_it_was_well():
    rows = ([[1.0, 2.0, 1.0]] * 30 + [[1.0] * 3] * 30) * 2
    assert [rank for rank, _ in named(rows, (1, 1, 1))] == [1, 1]


def test_ranks_with_more_parts_take_longer():
    """A part takes 1 s, a step 0.4 s more, whoever has how many parts."""
    for parts in ((1, 1, 2), (1, 2), (1, 2, 2), (2, 3)):
        assert named([[0.4 + n for n in parts]] * 40, parts) == []
        slowed = [[(0.4 + n) * (2.5 if rank == 0 else 1) for rank, n in enumerate(parts)]] * 40
        assert [rank for rank, _ in named(slowed, parts)] == [0]


def test_a_step_of_which_a_rank_knows_nothing_says_nothing():
    assert named([[1.0, None, 1.5]] * 100, (1, 1, 1)) == []


def test_two_ranks_and_one():
    assert [rank for rank, _ in named([[1.0, 1.5]] * 30, (1, 1))] == [1]
    assert named([[1.0]] * 30, (1,)) == []
