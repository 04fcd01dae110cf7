"""Rules for reduce, scan and dot: a fixed order of operations, the same for every run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product

from hal.core.dtypes import DType
from hal.tile.node import Node
from hal.tile.ops import COMBINE
from stack.compiler.text.llvm import arith, large, tile_registers, units
from stack.compiler.text.llvm.shapes import from_elements
from stack.compiler.text.llvm.tiles import Rule, TileValues, columns, rows
from stack.compiler.text.llvm.turned import shuffle
from stack.compiler.text.llvm.types import constant, register, vector

Combine = Callable[[int, str, str], str]
"""Combines two operands of a width."""


def _combine(t: TileValues, n: Node) -> Combine:
    op, dtype = COMBINE[n["kind"]], n.dtype
    return lambda width, a, b: arith.combine(t.out, op, dtype, width, a, b)


def _identity(kind: str, dtype: DType) -> str:
    """What combined with x gives x."""
    if kind in ("sum", "prod"):
        return constant(dtype, (-0.0 if dtype.is_float else 0) if kind == "sum" else 1)
    if dtype is DType.BOOL:
        return constant(dtype, kind == "min")
    if dtype.is_float:
        return constant(dtype, math.inf if kind == "min" else -math.inf)
    top = (1 << (dtype.bits - (dtype.kind == "i"))) - 1
    return constant(dtype, top if kind == "min" else -top - 1 if dtype.kind == "i" else 0)


def _tree(combine: Combine, width: int, count: int, value: Callable[[int], str]) -> str:
    """Combine values 0..count-1 pairwise, asking for them in order."""
    if count == 1:
        return value(0)
    half = (count + 1) // 2
    left = _tree(combine, width, half, value)
    return combine(width, left, _tree(combine, width, count - half, lambda i: value(half + i)))


def _ahead(t: TileValues, x: Node, places: list[tuple[int, int]]) -> Callable[[int], str]:
    """Gives the pieces at places, asked for in order, computed some at a time."""

    def value(i: int) -> str:
        if i % t.interleave == 0:
            t.together(x, places[i : i + t.interleave])
        return t.piece(x, *places[i])

    return value


# reduce


def _reduce(t: TileValues, n: Node, row: int, piece: int) -> str:
    (x,) = n.srcs
    if n["axis"] < len(x.shape) - 1:
        # Along an axis that is not the last: rows are combined as they are.
        (x,) = n.srcs
        axis = n["axis"]
        inner = rows(x.shape[axis + 1 :])
        outer, within = divmod(row, inner)
        width = t.widths(n)[piece]
        first = outer * x.shape[axis] * inner + within
        value = _ahead(t, x, [(first + i * inner, piece) for i in range(x.shape[axis])])
        return _tree(_combine(t, n), width, x.shape[axis], value)
    first = row * columns(n.shape) + piece * t.lanes
    width = t.widths(n)[piece]
    if width == 1:
        return _reduce_row(t, n, first)
    elements = [t.element(n, row, piece * t.lanes + i) for i in range(width)]
    return from_elements(t, register(n.dtype), elements)


def _reduce_element(t: TileValues, n: Node, row: int, column: int) -> str:
    (x,) = n.srcs
    if n["axis"] < len(x.shape) - 1:
        return t.extract(n, row, column)
    return _reduce_row(t, n, row * columns(n.shape) + column)


def _reduce_row(t: TileValues, n: Node, row: int) -> str:
    """Along the last axis: whole pieces first, the tail filled up with the identity, then
    halves."""
    (x,) = n.srcs
    combine = _combine(t, n)
    widths = t.widths(x)
    scalar, count = register(x.dtype), len(widths)
    full = widths[0] if count > 1 else 1 << (widths[0] - 1).bit_length()
    identity = _identity(n["kind"], x.dtype)

    value = _ahead(t, x, [(row, j) for j in range(count)])

    def padded(j: int) -> str:
        piece, width = value(j), widths[j]
        if width == full:
            return piece
        if width == 1:
            kind = vector(scalar, full)
            base = t.splat(scalar, identity, full)
            return t.out.put(f"insertelement {kind} {base}, {scalar} {piece}, i64 0")
        lanes = [min(i, width) for i in range(full)]
        return shuffle(t, vector(scalar, width), piece, t.splat(scalar, identity, width), lanes)

    return _fold(t, n, scalar, _tree(combine, full, count, padded), full)


def _fold(t: TileValues, n: Node, scalar: str, value: str, width: int) -> str:
    """Combine the lanes of a vector whose width is a power of two."""
    combine = _combine(t, n)
    while width > 2:
        kind, half = vector(scalar, width), width // 2
        low = shuffle(t, kind, value, "poison", range(half))
        high = shuffle(t, kind, value, "poison", range(half, width))
        value, width = combine(half, low, high), half
    if width == 1:
        return value
    kind = vector(scalar, 2)
    if n.dtype.is_float and n["kind"] in ("min", "max"):
        # Choices between scalars become branches, which depend on the data
        both = combine(2, value, shuffle(t, kind, value, "poison", (1, 0)))
        return _lane(t, kind, both, 0)
    return combine(1, _lane(t, kind, value, 0), _lane(t, kind, value, 1))


def _lane(t: TileValues, kind: str, value: str, lane: int) -> str:
    return t.out.put(f"extractelement {kind} {value}, i64 {lane}")


# scan


def _scan(t: TileValues, n: Node, row: int, piece: int) -> str:
    along = _scan_row if n["axis"] == len(n.shape) - 1 else _scan_rows
    return along(t, n, row, piece)


def _scan_rows(t: TileValues, n: Node, row: int, piece: int) -> str:
    (x,) = n.srcs
    axis = n["axis"]
    inner = rows(n.shape[axis + 1 :])
    here = t.piece(x, row, piece)
    if row // inner % n.shape[axis] == 0:
        return here
    before = t.piece(n, row - inner, piece)
    return _combine(t, n)(t.widths(n)[piece], before, here)


def _scan_row(t: TileValues, n: Node, row: int, piece: int) -> str:
    """Inside a piece by doubling distances; the last lane of the piece before is added to all."""
    (x,) = n.srcs
    combine = _combine(t, n)
    scalar, width = t.register(n, piece)
    kind, value = vector(scalar, width), t.piece(x, row, piece)
    identity = t.splat(scalar, _identity(n["kind"], n.dtype), width)
    distance = 1
    while distance < width:
        lanes = [width if i < distance else i - distance for i in range(width)]
        value = combine(width, shuffle(t, kind, value, identity, lanes), value)
        distance *= 2
    if piece == 0:
        return value
    before = t.piece(n, row, piece - 1)
    last = _lane(t, vector(scalar, t.lanes), before, t.lanes - 1)
    return combine(width, t.splat(scalar, last, width), value)


# dot


MOST = 256
"""Multiply-adds of vectors that are written out one after the other; of larger products loops over
register tiles are."""


def _dot(t: TileValues, n: Node, row: int, piece: int) -> str:
    """The whole product at once: for each k, or group of k that a matrix unit takes, one row of b
    stays in registers while every row of a uses it."""
    a, b, acc = n.srcs
    unit = t.unit_of(n)
    if unit is not None and unit.register:
        return tile_registers.dot(t, n, unit, row, piece)
    count = len(t.widths(n))
    taken = unit.k if unit else 1
    if rows(n.shape) * count * (columns(a.shape) // taken) > MOST:
        return large.dot(t, n, unit, row, piece)
    sums = [[t.piece(acc, r, j) for j in range(count)] for r in range(rows(n.shape))]
    for k in range(0, columns(a.shape), taken):
        if unit is None:
            _dot_step(t, n, a, b, k, sums)
        else:
            units.step(t, unit, n, k, sums)
    for r, j in product(range(len(sums)), range(count)):
        t.define(n, r, j, sums[r][j])
    return t.piece(n, row, piece)


def _dot_step(t: TileValues, n: Node, a: Node, b: Node, k: int, sums: list[list[str]]) -> None:
    scalar, widths = register(n.dtype), t.widths(n)
    right = [t.piece(b, k, j) for j in range(len(widths))]
    for r, line in enumerate(sums):
        left = t.element(a, r, k)
        for j, w in enumerate(widths):
            operands = [t.splat(scalar, left, w), right[j], line[j]]
            line[j] = arith.fma(t.out, n.dtype, w, *operands)


PIECES: Mapping[str, Rule] = {"reduce": _reduce, "scan": _scan, "dot": _dot}
"""Rules of pieces."""

ELEMENTS: Mapping[str, Rule] = {"reduce": _reduce_element}
"""Rules of single elements."""
