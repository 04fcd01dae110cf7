"""A way in which ranks along one axis of a mesh compute an operator together."""

from __future__ import annotations

from collections.abc import Mapping

from hal.core.facts import dataclass
from hal.tile.node import Node
from stack.parallel.placement import Placement

Candidates = Mapping[Node, Mapping[Placement, None]]
"""The placements that are thought of for each value, in an order of their own."""


@dataclass(frozen=True, slots=True)
class Way:
    """The operands' placements, what the result then has, and the linked axis of which each rank
    computes its part: its length, `major`, and whether that is in zigzag order."""

    operands: tuple[Placement, ...]
    result: Placement
    share: tuple[int, int, bool] | None = None
