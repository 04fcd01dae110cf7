"""Rules for leaves and elementwise operators."""

from __future__ import annotations

from collections.abc import Mapping

from hal.tile.node import Node
from hal.tile.ops import ELEMENTWISE
from stack.compiler.text.llvm import arith
from stack.compiler.text.llvm.tiles import Rule, TileValues
from stack.compiler.text.llvm.types import constant, splat_constant


def _const(t: TileValues, n: Node, row: int, piece: int) -> str:
    scalar, width = t.register(n, piece)
    return splat_constant(scalar, constant(n.dtype, n["value"]), width)


def _arange(t: TileValues, n: Node, row: int, piece: int) -> str:
    scalar, width = t.register(n, piece)
    first = piece * t.lanes
    if width == 1:
        return constant(n.dtype, first)
    lanes = ", ".join(f"{scalar} {constant(n.dtype, first + i)}" for i in range(width))
    return f"<{lanes}>"


def _elementwise(t: TileValues, n: Node, row: int, piece: int) -> str:
    width = t.widths(n)[piece]
    return arith.define(t.out, n, width, [t.piece(s, row, piece) for s in n.srcs])


PIECES: Mapping[str, Rule] = {
    "const": _const,
    "arange": _arange,
    **dict.fromkeys(ELEMENTWISE, _elementwise),
}
"""Rules of pieces."""


def _const_element(t: TileValues, n: Node, row: int, column: int) -> str:
    return constant(n.dtype, n["value"])


def _arange_element(t: TileValues, n: Node, row: int, column: int) -> str:
    return constant(n.dtype, column)


def _cast_element(t: TileValues, n: Node, row: int, column: int) -> str:
    (x,) = n.srcs
    return arith.define(t.out, n, 1, [t.element(x, row, column)])


ELEMENTS: Mapping[str, Rule] = {
    "const": _const_element,
    "arange": _arange_element,
    "cast": _cast_element,
}
"""Rules of single elements."""
