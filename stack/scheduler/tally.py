"""Counts of devices by kind."""

from __future__ import annotations

from dataclasses import field

from hal.core.facts import dataclass


@dataclass(slots=True, eq=False)
class Tally:
    """Devices by kind: what jobs occupy, how much of that they are about to leave, and what was
    promised to jobs that wait for others to leave."""

    occupied: dict[str, int] = field(default_factory=dict)
    leaving: dict[str, int] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)

    def now(self, kind: str) -> int:
        """Occupied at this time."""
        return self.occupied.get(kind, 0)

    def later(self, kind: str) -> int:
        """Occupied once those who leave have left and all promises are kept."""
        now = self.occupied.get(kind, 0)
        if self.leaving or self.promised:
            return now - self.leaving.get(kind, 0) + self.promised.get(kind, 0)
        return now

    def most(self, kind: str) -> int:
        """Occupied now or later, whichever is more."""
        now = self.occupied.get(kind, 0)
        if self.leaving or self.promised:
            return max(now, now - self.leaving.get(kind, 0) + self.promised.get(kind, 0))
        return now

    def add(self, other: Tally, sign: int) -> None:
        """Count another's devices in, or with sign -1 out."""
        occupied = self.occupied
        for kind, amount in other.occupied.items():
            occupied[kind] = occupied.get(kind, 0) + sign * amount
        if other.leaving or other.promised:
            _add(self.leaving, other.leaving, sign)
            _add(self.promised, other.promised, sign)


def _add(mine: dict[str, int], theirs: dict[str, int], sign: int) -> None:
    for kind, amount in theirs.items():
        mine[kind] = mine.get(kind, 0) + sign * amount
