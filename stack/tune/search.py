"""Which candidate is the fastest, found by successive halving within a budget of seconds.

Half of the budget builds candidates, in the order of the model's prediction. The rest times those
that work, in rounds in which everybody runs once beside candidate 0; after some rounds the slower
half leaves. A time counts relative to that of candidate 0 in the same round, so that a machine that
others use too disturbs all alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import field
from math import ceil, sqrt
from statistics import median
from typing import Protocol

from hal.core.errors import HalError
from hal.core.facts import dataclass
from stack.tune.orders import Answer, Refusal, Stage, Trial

ROUNDS = 3
"""Rounds between two halvings."""
FINAL = 24
"""Rounds that the last one runs beside candidate 0 alone."""
SURE = 2.6
"""Standard deviations by which rounds won must exceed rounds lost; luck gives that to one candidate
in two hundred that is no faster."""
BATCH_S = 2e-3
"""Seconds that the runs of one round take at least, so that a clock's tick does not count."""
MOST_REPEATS = 1000
HOPELESS = 3.0
"""A candidate is not timed again if its first run takes so many times the default's, and so many
times BATCH_S."""


Clock = Callable[[], float]
"""Seconds, as `time.monotonic` counts them."""


class Measures(Protocol):
    """What the search needs of a `Rig`."""

    def prepare(self, number: int, trial: Trial) -> Answer: ...

    def time(self, number: int, repeats: int) -> Answer: ...


@dataclass(slots=True)
class SearchResult:
    """What a search found out: the seconds of candidate 0; for each candidate that worked its times
    over that of candidate 0, none for one whose first run was hopeless; why others were refused;
    and the chosen one. The first `reached` candidates were looked at; those whose program another
    one has are in neither. `compared` tells that the budget was enough to time others beside
    candidate 0, if any is worth it."""

    seconds: float = 0.0
    ratios: dict[int, list[float]] = field(default_factory=dict)
    refused: dict[int, Refusal] = field(default_factory=dict)
    chosen: int = 0
    reached: int = 0
    compared: bool = False


def search(
    trials: Sequence[Callable[[], Trial]],
    rig: Measures,
    budget_s: float,
    clock: Clock = time.monotonic,
) -> SearchResult:
    """Try candidates, 0 first. Nothing is found but a refusal when 0 is refused itself.

    May take longer than the budget by what the order takes that is under way at its end. Raises
    MeasureError when the device fails without a candidate.
    """
    began = clock()
    contest = _Contest(rig, SearchResult(), lambda part: clock() - began > budget_s * part)
    contest.build(trials)
    contest.halve()
    contest.choose()
    return contest.found


def surely_faster(ratios: Sequence[float]) -> bool:
    """Whether a candidate beat candidate 0 in more rounds than luck explains (a sign test)."""
    won = sum(ratio < 1 for ratio in ratios)
    return bool(ratios) and 2 * won - len(ratios) >= SURE * sqrt(len(ratios))


class _Contest:
    def __init__(self, rig: Measures, found: SearchResult, spent: Callable[[float], bool]) -> None:
        self.found = found
        self._rig, self._spent = rig, spent
        self._first: dict[int, float] = {}
        self._alive: list[int] = []
        self._zero: list[float] = []

    def build(self, trials: Sequence[Callable[[], Trial]]) -> None:
        """Prepare candidates until half of the budget is spent."""
        seen: set[Hashable] = set()
        for number, render in enumerate(trials):
            if number and (self._spent(0.5) or 0 in self.found.refused):
                return
            self.found.reached = number + 1
            try:
                trial = render()
            except Exception as error:  # noqa: BLE001  a schedule that no rule chooses meets what
                # no test of the compiler did; its fault is reported like one of the device
                said = str(error) if isinstance(error, HalError) else repr(error)
                self.found.refused[number] = Refusal(Stage.BUILD, said)
                continue
            if (trial.source.text, trial.grid) not in seen:
                seen.add((trial.source.text, trial.grid))
                answer = self._rig.prepare(number, trial)
                if isinstance(answer, Refusal):
                    self.found.refused[number] = answer
                else:
                    self._first[number] = answer
                    self.found.ratios[number] = []
                    if number == 0:
                        self._note_zero(answer)

    def halve(self) -> None:
        """Rounds in which the slower half leaves, then some more for the last one."""
        limit_s = HOPELESS * max(self._first.get(0, 0.0), BATCH_S)
        self._alive = [n for n, first_s in self._first.items() if n and first_s <= limit_s]
        self.found.compared = self.found.reached > 1 and not (self._alive and self._spent(1))
        while self._alive and not self._spent(1):
            alone = len(self._alive) == 1
            self._rounds(FINAL if alone else ROUNDS)
            if alone:
                return
            self._order()
            if not self._spent(1):
                del self._alive[ceil(len(self._alive) / 2) :]

    def choose(self) -> None:
        """The fastest of those that never left, if it is surely faster than candidate 0."""
        self._order()
        sure = (n for n in self._alive if surely_faster(self.found.ratios[n]))
        self.found.chosen = next(sure, 0)

    def _order(self) -> None:
        timed = [n for n in self._alive if self.found.ratios.get(n)]
        self._alive = sorted(timed, key=lambda n: median(self.found.ratios[n]))

    def _rounds(self, count: int) -> None:
        for _ in range(count):
            if self._spent(1):
                return
            zero = self._time(0)
            if zero is None:
                return
            self._note_zero(zero)
            self.found.ratios[0].append(1.0)
            for number in self._alive:
                found = None if number in self.found.refused else self._time(number)
                if found is not None:
                    self.found.ratios[number].append(found / zero)

    def _time(self, number: int) -> float | None:
        repeats = ceil(BATCH_S / max(self._first[number], BATCH_S / MOST_REPEATS))
        answer = self._rig.time(number, repeats)
        if isinstance(answer, Refusal):
            self.found.refused[number] = answer
            self.found.ratios.pop(number, None)
            return None
        return answer

    def _note_zero(self, seconds: float) -> None:
        self._zero.append(seconds)
        self.found.seconds = median(self._zero)
