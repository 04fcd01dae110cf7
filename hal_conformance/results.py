"""From results to a verdict: counts, the level reached, and one row per case over all seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hal_conformance.case import Level
from hal_conformance.judge import Outcome, Result

RED = frozenset({Outcome.FAIL, Outcome.XPASS, Outcome.CRASH, Outcome.HANG})
"""The outcomes that make a run fail."""

_WORST = (
    Outcome.HANG,
    Outcome.CRASH,
    Outcome.FAIL,
    Outcome.XPASS,
    Outcome.XFAIL,
    Outcome.PASS,
    Outcome.UNSUPPORTED,
)


def summary(results: Iterable[Result]) -> dict[str, int]:
    """How many results have each outcome."""
    outcomes = [result.outcome for result in results]
    return {outcome.value: outcomes.count(outcome) for outcome in Outcome}


def green(results: Iterable[Result]) -> bool:
    """Whether nothing is red."""
    return all(result.outcome not in RED for result in results)


def level_reached(outcomes: Iterable[tuple[str, str]]) -> Level | None:
    """The highest level of which a case passed and at or below which none is red.

    Takes each case's level and outcome as a report has them ("L0", "pass").
    """
    pairs = tuple(outcomes)
    red = {outcome.value for outcome in RED}
    reached = None
    for level in Level:
        mine = {outcome for name, outcome in pairs if name == str(level)}
        if mine & red:
            break
        if Outcome.PASS.value in mine:
            reached = level
    return reached


def over_seeds(results: Sequence[Result]) -> tuple[Result, ...]:
    """One row per case: its worst result, in the order of the first seed."""
    by_id: dict[str, list[Result]] = {}
    for result in results:
        by_id.setdefault(result.id, []).append(result)
    return tuple(_worst(same) for same in by_id.values())


def by_seed(results: Iterable[Result]) -> Mapping[int, tuple[Result, ...]]:
    """The results of each seed."""
    found: dict[int, list[Result]] = {}
    for result in results:
        found.setdefault(result.seed, []).append(result)
    return {seed: tuple(same) for seed, same in sorted(found.items())}


def _worst(same: Sequence[Result]) -> Result:
    worst = min(same, key=lambda result: _WORST.index(result.outcome))
    seconds = sum(result.seconds for result in same)
    told = len(same) > 1 and worst.outcome in RED
    detail = f"with seed {worst.seed}: {worst.detail}" if told else worst.detail
    return replace(worst, seconds=seconds, detail=detail)
