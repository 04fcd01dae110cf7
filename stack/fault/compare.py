"""Whether ranks that should hold the same do, and who is wrong where they do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What ranks hold after a step: `held` is int64[ranks, tensors], a checksum of each. `majority`
    are the ranks that hold what more than half of them hold, None without such. `wrong` are ranks
    that hold something else, each with the reason in words, which rank `teller` tells."""

    step: int
    held: Array
    majority: tuple[int, ...] | None
    wrong: tuple[tuple[int, str], ...]
    teller: int
    why: str

    @property
    def is_equal(self) -> bool:
        return bool((self.held == self.held[0]).all())


def compared(
    step: int, names: Sequence[str], held: Array, before: Comparison | None = None
) -> Comparison:
    """Compare. `before` is a comparison of this step that had no majority, if it was computed again
    since: whoever held something else than all hold now was wrong."""
    rows = [tuple(row) for row in held.tolist()]
    (most, count), *_ = Counter(rows).most_common(1)
    size = len(rows)
    majority = tuple(r for r, row in enumerate(rows) if row == most) if 2 * count > size else None
    wrong: list[tuple[int, str]] = []
    if majority is not None:
        others = ", ".join(map(str, majority))
        for r, row in enumerate(rows):
            if row != most:
                text = f"its {_named(names, row, most)} differs from that of ranks {others}"
                wrong.append((r, text))
    if before is not None and before.majority is None and count == size:
        found = [(r, row) for r, row in enumerate(before.held.tolist()) if tuple(row) != most]
        beside = "" if len(found) == 1 else "; one of the ranks that did has passed it on"
        for r, row in found if before.step == step else ():
            what = _named(names, row, most)
            wrong.append((r, f"it held another {what} than was computed again{beside}"))
    accused = {r for r, _ in wrong}
    teller = next((r for r in range(size) if r not in accused), 0)
    differ = next((r for r, row in enumerate(rows) if row != rows[0]), 0)
    what = f"{_named(names, rows[0], rows[differ])} of ranks 0 and {differ} differs"
    if count == size:
        what = "a loss is not finite"
    why = f"after step {step} {what}" + ("" if majority else ", and nobody knows who is right")
    return Comparison(step, held, majority, tuple(wrong), teller, why)


def first_of(steps: Array) -> tuple[int, ...]:
    """The ranks whose number, int64[ranks], is the lowest that is not negative; none where all have
    it: then nobody was first."""
    found = np.flatnonzero(steps == steps[steps >= 0].min())
    return () if found.size == steps.size else tuple(found.tolist())


def _named(names: Sequence[str], one: Sequence[int], other: Sequence[int]) -> str:
    found = [name for name, a, b in zip(names, one, other, strict=True) if a != b]
    return found[0] + (f" (and {len(found) - 1} more)" if len(found) > 1 else "") if found else ""
