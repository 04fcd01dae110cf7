"""Whether ranks that should hold the same do, and who is wrong where they do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from hal.core.facts import dataclass

Array = np.ndarray[Any, Any]

COMPARE_EVERY = 16
"""After every so many steps ranks compare what they hold."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process, as SEAT.START, that holds something: a rank, or one that was and has ended, whose
    memory is still there."""

    member: str
    rank: int | None

    def __str__(self) -> str:
        return f"process {self.member}" if self.rank is None else f"rank {self.rank}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `holders` hold after a step: `held` is int64[holders, tensors], a checksum of each.
    `majority` are the rows of those that hold what more than half of them hold, None without such.
    `wrong` are holders that hold something else, each with the reason in words, which rank `teller`
    tells."""

    step: int
    holders: tuple[Holder, ...]
    held: Array
    majority: tuple[int, ...] | None
    wrong: tuple[tuple[Holder, str], ...]
    teller: int
    why: str

    @property
    def is_equal(self) -> bool:
        return bool((self.held == self.held[0]).all())


def compared(
    step: int,
    names: Sequence[str],
    holders: Sequence[Holder],
    held: Array,
    before: Comparison | None = None,
) -> Comparison:
    """Compare. `before` is a comparison of this step that had no majority, if it was computed again
    since: whoever held something else than all hold now was wrong."""
    rows = [tuple(row) for row in held.tolist()]
    (most, count), *_ = Counter(rows).most_common(1)
    size = len(rows)
    majority = tuple(r for r, row in enumerate(rows) if row == most) if 2 * count > size else None
    wrong: list[tuple[Holder, str]] = []
    if majority is not None:
        others = ", ".join(str(holders[r]) for r in majority)
        for holder, row in zip(holders, rows, strict=True):
            if row != most:
                wrong.append((holder, f"its {_named(names, row, most)} differs from {others}"))
    if before is not None and before.majority is None and count == size:
        again = zip(before.holders, before.held.tolist(), strict=True)
        found = [(holder, row) for holder, row in again if tuple(row) != most]
        beside = "" if len(found) == 1 else "; one of the ranks that did has passed it on"
        for holder, row in found if before.step == step else ():
            what = _named(names, row, most)
            wrong.append((holder, f"it held another {what} than was computed again{beside}"))
    accused = {holder.rank for holder, _ in wrong}
    ranks = [holder.rank for holder in holders if holder.rank is not None]
    teller = next((r for r in ranks if r not in accused), 0)
    differ = next((r for r, row in enumerate(rows) if row != rows[0]), 0)
    what = f"{_named(names, rows[0], rows[differ])} of {holders[0]} and {holders[differ]} differs"
    if count == size:
        what = "a loss is not finite"
    why = f"after step {step} {what}" + ("" if majority else ", and nobody knows who is right")
    return Comparison(step, tuple(holders), held, majority, tuple(wrong), teller, why)


def first_of(steps: Array) -> tuple[int, ...]:
    """The ranks whose number, int64[ranks], is the lowest that is not negative; none where all have
    it: then nobody was first."""
    found = np.flatnonzero(steps == steps[steps >= 0].min())
    return () if found.size == steps.size else tuple(found.tolist())


def _named(names: Sequence[str], one: Sequence[int], other: Sequence[int]) -> str:
    found = [name for name, a, b in zip(names, one, other, strict=True) if a != b]
    return found[0] + (f" (and {len(found) - 1} more)" if len(found) > 1 else "") if found else ""
