"""Rows of i64 that grow evenly: where elements lie, and which of them there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import add, mul

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack.compiler.text.llvm.addresses import clamped, constant_of, piece_mask
from stack.compiler.text.llvm.tiles import TileValues, columns, rows
from stack.compiler.text.llvm.types import vector

_MOST, _LIMIT = float(1 << 40), float(1 << 62)
"""No array has as many elements; and what does not overflow."""


def line_of(t: TileValues, index: Node) -> tuple[str, int] | None:
    """The first of i64 indices in a row that grow by the same step, and the step."""
    if columns(index.shape) == 1:
        return t.scalar(index), 0
    if index.op == "arange":
        return "0", 1
    if index.op in ("broadcast", "reshape"):
        return line_of(t, index.srcs[0])
    if index.op not in ("add", "mul"):
        return None
    left, right = (line_of(t, x) for x in index.srcs)
    if left is None or right is None:
        return None
    if index.op == "add":
        return t.out.put(f"add i64 {left[0]}, {right[0]}"), left[1] + right[1]
    factor = _number(index.srcs[1])
    if factor is None:
        return None
    return t.out.put(f"mul i64 {left[0]}, {factor}"), left[1] * factor


def _number(n: Node) -> int | None:
    """The constant that all elements are."""
    while n.op == "broadcast":
        (n,) = n.srcs
    return constant_of(n)


def compared(t: TileValues, n: Node, piece: int) -> str | None:
    """A piece of a comparison in a row of positions that grow by one with one number, as one of the
    lanes' own numbers, which are half as wide; None where it is none, or might overflow."""
    width = t.widths(n)[piece]
    if width == 1 or rows(n.shape) != 1 or n.srcs[0].dtype is not DType.I64:
        return None
    if not all(_extent(t, x) < _LIMIT for x in n.srcs):
        return None
    left, right = (line_of(t, x) for x in n.srcs)
    if left is None or right is None or {left[1], right[1]} != {0, 1}:
        return None
    # Lanes for which first + i < end, or for which end < first + i fails, are the first ones.
    rising, (first, _), (end, _) = (True, left, right) if left[1] else (False, right, left)
    more = int((n.op == "le") == rising)
    count = t.out.put(f"add i64 {t.out.put(f'sub i64 {end}, {first}')}, {more}")
    mask = piece_mask(t, clamped(t, count, columns(n.shape)), piece * t.lanes, width)
    if rising:
        return mask
    return t.out.put(f"xor {vector('i1', width)} {mask}, splat (i1 true)")


def _extent(t: TileValues, n: Node) -> float:
    """What numbers of elements, which are made of indices and sizes, are less than in absolute
    value; infinite for what else there is."""
    if n.op == "const":
        return abs(float(n["value"])) + 1
    if n.op in ("program_id", "num_programs", "scalar") or n in t.env.ranges:
        return _MOST
    if n.op == "arange":
        return float(columns(n.shape))
    parts = [_extent(t, x) for x in n.srcs]
    return _EXTENTS[n.op](*parts) if n.op in _EXTENTS else math.inf


_EXTENTS: Mapping[str, Callable[..., float]] = {
    **dict.fromkeys(("add", "sub"), add),
    **dict.fromkeys(("min", "max"), max),
    **dict.fromkeys(("broadcast", "reshape"), float),
    "mul": mul,
    "div": lambda a, b: a,
    "rem": lambda a, b: a,
}
