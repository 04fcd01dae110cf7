"""The search over candidates whose times are known, on a clock that they move."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hal.core.errors import Unsupported
from hal.core.values import LLVM_IR, KernelSource
from stack.tune.orders import Refusal, Stage, Trial
from stack.tune.search import FINAL, search, surely_faster

BUILD_S = 0.1


@dataclass
class Scripted:
    """A device on which candidate i takes seconds[i], give or take `noise`; None: it is refused."""

    seconds: list[float | None]
    noise: float = 0.0
    fails_later: frozenset[int] = frozenset()
    now: float = 0.0
    prepared: list[int] = field(default_factory=list)
    random: Random = field(default_factory=lambda: Random(0))

    def prepare(self, number, trial):
        self.prepared.append(number)
        self.now += BUILD_S
        if self.seconds[number] is None:
            return Refusal(Stage.BUILD, "as scripted")
        return self.seconds[number]

    def time(self, number, repeats):
        if number in self.fails_later:
            return Refusal(Stage.LAUNCH, "later")
        each = self.seconds[number] * (1 + self.noise * self.random.uniform(-1, 1))
        self.now += each * repeats
        return each

    def search(self, budget_s=60.0, trials=None):
        trials = trials or [lambda n=n: trial(n) for n in range(len(self.seconds))]
        return search(trials, self, budget_s, lambda: self.now)


def trial(number):
    return Trial(KernelSource(LLVM_IR, str(number), "k", ()), (1, 1, 1), ())


TIMES = st.one_of(st.none(), st.floats(1e-6, 1e-2))


@given(st.floats(1e-5, 1e-2), st.lists(TIMES, max_size=20))
def test_the_fastest_is_chosen(default, others):
    seconds = [default, *others]
    found = Scripted(seconds).search()
    assert set(found.refused) == {n for n, s in enumerate(seconds) if s is None}
    best = min(s for s in seconds if s is not None)
    assert seconds[found.chosen] == pytest.approx(best)


@given(st.integers(0, 2**32))
def test_noise_alone_seldom_makes_a_choice_and_never_a_slow_one(seed):
    device = Scripted([1e-3, 1.3e-3, 0.5e-3, 1.0e-3, 1.5e-3], 0.2, random=Random(seed))
    assert device.search().chosen == 2


def test_the_budget_bounds_building_and_timing():
    device = Scripted([1e-3] * 100)
    found = device.search(4.0)
    assert device.now < 4.5
    assert 15 < len(device.prepared) < 25
    assert device.prepared == list(range(len(device.prepared)))
    assert set(found.ratios) == set(device.prepared)
    assert found.reached == len(device.prepared)
    assert found.compared


def test_a_spent_budget_leaves_the_rules_schedule():
    found = Scripted([1e-3, 1e-4]).search(0.0)
    assert (found.chosen, found.reached, found.compared) == (0, 1, False)


def test_a_refused_default_ends_the_search():
    device = Scripted([None, 1e-3])
    found = device.search()
    assert (device.prepared, found.chosen, found.ratios) == ([0], 0, {})


def test_what_fails_while_it_is_timed_is_refused():
    found = Scripted([1e-3, 1e-4, 5e-4], fails_later=frozenset({1})).search()
    assert found.refused[1].reason == "later"
    assert 1 not in found.ratios
    assert found.chosen == 2


def test_a_default_that_fails_later_ends_the_search():
    found = Scripted([1e-3, 1e-4], fails_later=frozenset({0})).search()
    assert (set(found.refused), found.chosen) == ({0}, 0)


def test_equal_programs_are_tried_once_and_hopeless_ones_not_timed():
    device = Scripted([1e-3, 1e-3, 1.0, 1e-4])
    trials = [lambda n=n: trial(n) for n in (0, 0, 2, 3)]
    found = device.search(trials=trials)
    assert device.prepared == [0, 2, 3]
    assert found.ratios[2] == []
    assert found.chosen == 3
    assert len(found.ratios[3]) >= FINAL


@pytest.mark.parametrize("error", [Unsupported("no such tile"), KeyError("no such tile")])
def test_a_candidate_that_cannot_be_written_is_refused(error):
    def unwritable():
        raise error

    found = Scripted([1e-3, 0.0, 1e-4]).search(
        trials=[lambda: trial(0), unwritable, lambda: trial(2)]
    )
    assert found.refused[1].stage is Stage.BUILD
    assert "no such tile" in found.refused[1].reason
    assert found.chosen == 2


def test_more_rounds_than_luck_explains_decide():
    assert surely_faster([0.9] * 11 + [1.5])
    assert not surely_faster([0.9] * 10 + [1.5] * 2)
    assert surely_faster([0.9] * 23 + [1.5] * 7)
    assert not surely_faster([0.1] * 6)
    assert not surely_faster([])
