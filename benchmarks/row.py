"""A row of the table: a claim, what was measured, what it is measured against, and the bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class BenchmarkError(Exception):
    """A measurement could not be made; the text says why."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What must hold: the ratio is at least `ratio`, or our value is at most `limit`."""

    ratio: float | None = None
    limit: float | None = None

    def holds(self, ours: float, ratio: float | None) -> bool | None:
        """Whether it holds; None when there is no ratio to judge."""
        if self.limit is not None:
            return ours <= self.limit
        return None if ratio is None or self.ratio is None else ratio >= self.ratio

    def __str__(self) -> str:
        return f"at most {self.limit:g}" if self.limit is not None else f"ratio {self.ratio:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """`ours` and `peer` are medians in `unit`; None for what is absent, which `note` explains.

    `more_is_better` tells the ratio's direction: it is always how many times as good as the peer
    ours is. A row without a bar informs.
    """

    claim: str
    unit: str
    ours: float | None
    peer: float | None = None
    peer_name: str = ""
    bar: Bar | None = None
    more_is_better: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        if not self.ours or not self.peer:
            return None
        return self.ours / self.peer if self.more_is_better else self.peer / self.ours

    @property
    def status(self) -> str:
        """`ok` or `missed` by the bar, `absent` without a measurement, `info` without a bar."""
        if self.ours is None:
            return "absent"
        if self.bar is None:
            return "info"
        held = self.bar.holds(self.ours, self.ratio)
        return {True: "ok", False: "missed", None: "absent"}[held]

    def as_json(self) -> dict[str, Any]:
        return {
            "claim": self.claim,
            "ours": self.ours,
            "peer": self.peer,
            "peer_name": self.peer_name,
            "unit": self.unit,
            "ratio": self.ratio,
            "bar": None if self.bar is None else str(self.bar),
            "status": self.status,
            "note": self.note,
        }
