"""Rows of i64 that grow evenly: where elements lie, and which of them there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import add, mul

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack.compiler.text.indices import constant_of
from stack.compiler.text.llvm.addresses import clamped, piece_mask
from stack.compiler.text.llvm.arith import convert
from stack.compiler.text.llvm.tiles import TileValues, columns, rows
from stack.compiler.text.llvm.types import vector

_MOST, _LIMIT = float(1 << 40), float(1 << 62)
"""No array has as many elements; and what does not overflow."""

_NARROW = 1 << 31
"""What no sum or product of 32 bits may reach to stand for one of 64."""

_FAR = 1 << 16
"""The most that positions grow by for 32 bits to hold those of a row."""


def line_of(t: TileValues, index: Node, row: int) -> tuple[str, int] | None:
    """The first of i64 indices in a row of a tile that grow by the same step, and the step."""
    step = _step(t, index)
    return None if step is None else (_first(t, index, row), step)


def _step(t: TileValues, index: Node) -> int | None:
    if columns(index.shape) == 1:
        return 0
    if index.op == "arange":
        return 1
    if index.op == "cast":
        exact = index.dtype is DType.I64 and index.srcs[0].dtype is DType.I32
        return _step(t, index.srcs[0]) if exact and _extent(t, index.srcs[0]) < _NARROW else None
    if index.op not in ("add", "mul", "broadcast", "reshape"):
        return None
    if index.op == "reshape" and columns(index.shape) != columns(index.srcs[0].shape):
        return None
    if index not in t.env.steps:
        left, *right = (_step(t, x) for x in index.srcs)
        if left is not None and index.op == "mul":
            factor = constant_of(index.srcs[1])
            left = None if factor is None else left * factor
        elif left is not None and right:
            left = None if right[0] is None else left + right[0]
        t.env.steps[index] = left
    return t.env.steps[index]


def _first(t: TileValues, index: Node, row: int = 0) -> str:
    """The first index of a line."""
    row = row if rows(index.shape) > 1 else 0
    if columns(index.shape) == 1:
        one = t.element(index, row, 0) if rows(index.shape) > 1 else t.scalar(index)
        return convert(t.out, one, index.dtype, DType.I64, 1)
    if index.op == "arange":
        return "0"
    if index.op in ("broadcast", "reshape", "cast"):
        return _first(t, index.srcs[0], row)

    def make() -> str:
        first = _first(t, index.srcs[0], row)
        other = constant_of(index.srcs[1]) if index.op == "mul" else _first(t, index.srcs[1], row)
        return t.out.put(f"{index.op} i64 {first}, {other}")

    return t.once(("first", index, row), make)


def compared(t: TileValues, n: Node, piece: int) -> str | None:
    """A piece of a comparison in a row of positions that grow evenly with one number, as one of the
    lanes' own numbers, which are half as wide; None where it is none, or might overflow."""
    width = t.widths(n)[piece]
    if width == 1 or rows(n.shape) != 1 or n.srcs[0].dtype is not DType.I64:
        return None
    a, b = n.srcs
    steps = _step(t, a), _step(t, b)
    if None in steps or not max(_extent(t, a), _extent(t, b)) < _LIMIT:
        return None
    least, step = sorted(s or 0 for s in steps)
    if least != 0 or not 1 <= step <= _FAR:
        return None
    # Lanes for which first + i * step < end, or for which end < first + i * step fails, are the
    # first ones.
    rising = steps[0] == step
    first, end = (_first(t, a), _first(t, b)) if rising else (_first(t, b), _first(t, a))
    more = int((n.op == "le") == rising)
    count = t.out.put(f"add i64 {t.out.put(f'sub i64 {end}, {first}')}, {more}")
    lanes = clamped(t, count, columns(n.shape) * step)
    if step > 1:
        lanes = t.out.put(f"udiv i32 {t.out.put(f'add i32 {lanes}, {step - 1}')}, {step}")
    mask = piece_mask(t, lanes, piece * t.lanes, width)
    if rising:
        return mask
    return t.out.put(f"xor {vector('i1', width)} {mask}, splat (i1 true)")


def equal(t: TileValues, n: Node, piece: int) -> str | None:
    """As `compared`, of `eq` and `ne`, where positions grow by one: a number that is at none of the
    lanes is taken for the one behind the last."""
    width = t.widths(n)[piece]
    if width == 1 or rows(n.shape) != 1 or n.srcs[0].dtype is not DType.I64:
        return None
    number, line = n.srcs if _step(t, n.srcs[1]) == 1 else n.srcs[::-1]
    if (_step(t, number), _step(t, line)) != (0, 1) or not _extent(t, line) < _LIMIT:
        return None
    apart = t.out.put(f"sub i64 {_first(t, number)}, {_first(t, line)}")
    lane = t.out.elementwise("umin", "i64", 1, apart, str(columns(n.shape)))
    numbers = ", ".join(f"i32 {piece * t.lanes + i}" for i in range(width))
    place = t.splat("i32", t.out.put(f"trunc i64 {lane} to i32"), width)
    return t.out.put(f"icmp {n.op} {vector('i32', width)} <{numbers}>, {place}")


def _extent(t: TileValues, n: Node) -> float:
    """What numbers of elements, which are made of indices and sizes, are less than in absolute
    value; infinite for what else there is."""
    if n.op == "const":
        return abs(float(n["value"])) + 1
    if n in t.env.ranges:
        return min(_MOST, max(map(abs, t.env.ranges[n])) + 1)
    if n.op in ("program_id", "num_programs", "scalar"):
        return _MOST
    if n.op == "arange":
        return float(columns(n.shape))
    if n.op not in _EXTENTS:
        return math.inf
    if n not in t.env.extents:
        t.env.extents[n] = _EXTENTS[n.op](*[_extent(t, x) for x in n.srcs])
    return t.env.extents[n]


_EXTENTS: Mapping[str, Callable[..., float]] = {
    **dict.fromkeys(("add", "sub"), add),
    **dict.fromkeys(("min", "max"), max),
    **dict.fromkeys(("broadcast", "reshape", "cast"), float),
    "mul": mul,
    "div": lambda a, b: a,
    "rem": lambda a, b: a,
}
