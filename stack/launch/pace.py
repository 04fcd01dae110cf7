"""Which rank is slow, told from the time that ranks take for their own part of each step."""

from __future__ import annotations

from collections import deque
from statistics import median

from hal.core.facts import dataclass

SLOWER = 1.3
"""A rank is slow that takes so many times as long as its peers, in the median ..."""
WINDOW, OFTEN = 16, 12
"""... and takes longer than that in so many of the last steps. Other work on the machine delays now
one rank, now another: to be the late one by chance in 12 steps of 16 is rare."""
_WELL = 4
"""Named again only once it was slow in no more than so many of them."""
_FIRST = 2
"""Steps of an epoch that do not count: caches are cold after a recovery."""


@dataclass(frozen=True, slots=True)
class Slow:
    """Rank `rank` took `ratio` times as long as its peers, up to step `step`."""

    rank: int
    step: int
    ratio: float


class Pace:
    """The pace of the `size` ranks of an epoch."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._steps: dict[int, dict[int, tuple[float | None, int]]] = {}
        self._seen = 0
        self._ratios: list[deque[float]] = [deque(maxlen=WINDOW) for _ in range(size)]
        self._named: set[int] = set()

    def step(self, rank: int, step: int, own_s: float | None, parts: int) -> list[Slow]:
        """A rank has done a step, for whose `parts` it took `own_s` seconds, without waiting for
        others; None where that is not known, and the step says nothing. Gives who is slow now and
        was not before."""
        times = self._steps.setdefault(step, {})
        times[rank] = own_s, parts
        if len(times) < self._size or self._size < 2:
            return []
        self._steps = {n: every for n, every in self._steps.items() if n > step}
        known = {r: (s, parts) for r, (s, parts) in times.items() if s is not None}
        if len(known) < self._size:
            return []
        self._seen += 1
        if self._seen <= _FIRST:
            return []
        return [slow for r in range(self._size) if (slow := self._look(r, step, known))]

    def _look(self, rank: int, step: int, times: dict[int, tuple[float, int]]) -> Slow | None:
        own_s, own = times[rank]
        # More parts take at most so many times as long; fewer, with what each step costs, as long
        allowed = (s * max(1.0, own / parts) for r, (s, parts) in times.items() if r != rank)
        others_s = median(allowed)
        ratios = self._ratios[rank]
        ratios.append(own_s / others_s if others_s > 0 else 1.0)
        often = sum(ratio > SLOWER for ratio in ratios)
        if often <= _WELL:
            self._named.discard(rank)
        if often < OFTEN or rank in self._named:
            return None
        self._named.add(rank)
        return Slow(rank, step, median(ratios))
