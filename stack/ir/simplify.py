"""Algebraic simplification of graphs by the one rewriting engine."""

from __future__ import annotations

from collections.abc import Sequence

from hal.tile.node import Node
from stack.ir.rewrite import Rows, rewrite
from stack.ir.simplify_arithmetic import CASTS, CHOICES, FOLDS, LAWS
from stack.ir.simplify_movement import MOVES
from stack.ir.simplify_reduce import REDUCTIONS

ROWS: Rows = (*FOLDS, *CASTS, *LAWS, *CHOICES, *MOVES, *REDUCTIONS)
"""Every simplification."""


def simplify(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """Graphs of the same meaning with less work: types stay, values stay to the bit but for the
    order of sums."""
    return rewrite(outputs, ROWS)
