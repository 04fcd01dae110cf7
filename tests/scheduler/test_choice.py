"""The joint choice of hardware and size, against all combinations and against fixed rules."""

import itertools
import random
from dataclasses import replace

import pytest

from stack.scheduler import choice
from stack.scheduler.choice import Alternative, Chosen, Open, choose, worth


def mix(draw: random.Random, jobs: int, kinds: tuple[str, ...]) -> list[Open]:
    """Jobs that scale by Amdahl's law, each better on one kind than on the other."""
    opens = []
    for job in range(jobs):
        serial = draw.uniform(0.0, 0.2)
        speeds = {kind: draw.uniform(0.3, 3.0) for kind in kinds}
        sizes = draw.sample((1, 2, 4, 8, 16), draw.randint(1, 4))
        options = tuple(
            Alternative(kind, size, "data", speeds[kind] / (serial + (1 - serial) / size))
            for kind in kinds
            for size in sizes
        )
        opens.append(Open(job, options, draw.choice((1.0, 1.0, 2.0))))
    return opens


def best_of_all(jobs: list[Open], free: dict[str, int]) -> float:
    best = 0.0
    for options in itertools.product(*((None, *job.options) for job in jobs)):
        for kind in free:
            used = sum(o.devices for o in options if o is not None and o.kind == kind)
            if used > free[kind]:
                break
        else:
            total = sum(j.worth(o) for j, o in zip(jobs, options, strict=True))
            best = max(best, total)
    return best


def within(chosen: Chosen, free: dict[str, int]) -> bool:
    return all(
        sum(o.devices for o in chosen.values() if o.kind == kind) <= count
        for kind, count in free.items()
    )


@pytest.mark.parametrize("exact", [True, False])
def test_within_five_percent_of_all_combinations(monkeypatch, exact):
    if not exact:
        monkeypatch.setattr(choice, "EXACT", 0)
    for seed in range(25):
        draw = random.Random(seed)
        jobs = mix(draw, draw.randint(1, 4), ("a", "b"))
        free = {"a": draw.randint(1, 32), "b": draw.randint(0, 32)}
        chosen = choose(jobs, free)
        assert within(chosen, free)
        assert worth(jobs, chosen) >= 0.95 * best_of_all(jobs, free)


def fixed(jobs: list[Open], free: dict[str, int], kind: str, size: int) -> float:
    """First come, first served, every job with the same strategy: this kind and size where it can,
    else the nearest below."""
    left, total = dict(free), 0.0
    for job in jobs:
        for option in sorted(job.options, key=lambda o: (o.kind != kind, -o.devices)):
            if option.devices <= min(size, left.get(option.kind, 0)):
                left[option.kind] -= option.devices
                total += job.worth(option)
                break
    return total


def test_never_below_a_fixed_strategy_and_well_above_it_on_two_kinds():
    gains = []
    for seed in range(200):
        draw = random.Random(1000 + seed)
        kinds = ("a", "b") if seed % 2 else ("a",)
        jobs = mix(draw, draw.randint(3, 8), kinds)
        free = dict.fromkeys(kinds, draw.choice((8, 16, 32)))
        ours = worth(jobs, choose(jobs, free))
        best = max(fixed(jobs, free, k, s) for k in kinds for s in (1, 2, 4, 8, 16))
        assert ours >= best * (1 - 1e-12)
        if len(kinds) == 2:
            gains.append(ours / best)
    assert sum(gains) / len(gains) >= 1.10


def test_moving_counts_against_a_better_place():
    here, there = Alternative("a", 4, "data", 10.0), Alternative("b", 4, "data", 11.0)
    runs = Open(1, (here, there), has=here, moving=2.0)
    assert choose([runs], {"a": 4, "b": 4}) == {1: here}
    assert choose([replace(runs, moving=0.5)], {"a": 4, "b": 4}) == {1: there}
    assert choose([runs], {"a": 3, "b": 4}) == {1: there}


@pytest.mark.parametrize("exact", [True, False])
def test_who_runs_keeps_something_and_a_tie_changes_nothing(monkeypatch, exact):
    if not exact:
        monkeypatch.setattr(choice, "EXACT", 0)
    small, large = Alternative("a", 1, "", 1.0), Alternative("a", 4, "", 1.5)
    runs = Open(1, (small, large), has=large)
    better = Open(2, (Alternative("a", 4, "", 100.0),))
    assert choose([runs, better], {"a": 4}) == {1: large}
    assert choose([runs, better], {"a": 5}) == {1: small, 2: better.options[0]}
    same = Open(1, (small, Alternative("b", 1, "", 1.0)), has=small)
    assert choose([same], {"a": 1, "b": 1}) == {1: small}


def test_bounds_hold_beside_devices():
    one, two = Alternative("a", 1, "", 1.0), Alternative("a", 2, "", 2.0)
    jobs = [Open(number, (one, two), bounds=("q",)) for number in range(3)]
    chosen = choose(jobs, {"a": 8}, {("q", "a"): 3})
    assert sum(option.devices for option in chosen.values()) == 3
    assert choose(jobs, {"a": 8}, {("q", "a"): 0}) == {}


def test_an_option_says_what_is_wrong_with_it():
    with pytest.raises(ValueError, match="needs devices and a goodput"):
        Alternative("a", 0, "data", 1.0)
