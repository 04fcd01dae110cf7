"""Rules for operators that only move elements: broadcast, reshape, transpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack.compiler.text.llvm import groups
from stack.compiler.text.llvm.tiles import Rule, TileValues, columns, rows
from stack.compiler.text.llvm.turned import resized, shuffle, square, turned
from stack.compiler.text.llvm.types import register, vector

Coordinates = tuple[int, int]
"""A row and a column of a tile."""


# broadcast


@cache
def _broadcast_rows(src: tuple[int, ...], dst: tuple[int, ...]) -> tuple[int, ...]:
    """The source row of each destination row."""
    leading = (1,) * (len(dst) - len(src)) + src
    found = []
    for index in product(*map(range, dst[:-1])):
        row = 0
        for i, d in zip(index, leading[:-1], strict=True):
            row = row * d + (i if d > 1 else 0)
        found.append(row)
    return tuple(found)


def _broadcast(t: TileValues, n: Node, row: int, piece: int) -> str:
    (x,) = n.srcs
    source = _broadcast_rows(x.shape, n.shape)[row]
    if columns(x.shape) == columns(n.shape):
        return t.piece(x, source, piece)
    scalar, width = t.register(n, piece)
    return t.splat(scalar, t.piece(x, source, 0), width)


# any movement


def assemble(t: TileValues, x: Node, places: Sequence[Coordinates]) -> str:
    """The vector of these elements of x: one shuffle if they lie in two pieces of it, or of what it
    is in another order, else one by one."""
    if len(places) == 1:
        return t.element(x, *places[0])
    found = _within(t, x, places)
    if found is None:
        return from_elements(t, register(x.dtype), [t.element(x, r, c) for r, c in places])
    x, pieces, places = found
    width = t.widths(x)[pieces[0][1]]
    kind = vector(register(x.dtype), width)
    lanes = [pieces.index((r, c // t.lanes)) * width + c % t.lanes for r, c in places]
    operands = [t.beside(x, r, j) for r, j in pieces]
    if lanes == list(range(width)):
        return operands[0]
    return shuffle(t, kind, operands[0], operands[-1] if len(pieces) > 1 else "poison", lanes)


def _within(
    t: TileValues, x: Node, places: Sequence[Coordinates]
) -> tuple[Node, list[Coordinates], Sequence[Coordinates]] | None:
    """A tile that has these elements of x in two of its pieces at most: these pieces, and where
    the elements are in it."""
    below = _below(t, x, places)
    if x.op == "broadcast" and below is not None and (found := _within(t, *below)):
        return found  # the pieces of what is repeated are fewer
    pieces = _pieces_of(t, x, places)
    if pieces:
        return x, pieces, places
    return None if below is None else _within(t, *below)


def _pieces_of(t: TileValues, x: Node, places: Sequence[Coordinates]) -> list[Coordinates] | None:
    """The pieces in which the elements lie, if these are two at most and alike."""
    if columns(x.shape) == 1:
        return None
    found = sorted({(r, c // t.lanes) for r, c in places})
    kinds = {t.widths(x)[j] for _, j in found}
    return found if len(found) <= 2 and len(kinds) == 1 and kinds != {1} else None


def _below(
    t: TileValues, x: Node, places: Sequence[Coordinates]
) -> tuple[Node, list[Coordinates]] | None:
    """Of what x is in another order, the elements at the same places."""
    if x.op == "var":
        alias = t.env.aliases.get(x)
        return None if alias is None else (alias, list(places))
    if x.op not in ("reshape", "transpose", "broadcast"):
        return None
    (source,) = x.srcs
    if x.op == "broadcast":
        from_row = _broadcast_rows(source.shape, x.shape)
        across = columns(source.shape) > 1
        return source, [(from_row[r], c if across else 0) for r, c in places]
    if x.op == "transpose":
        shape, perm = source.shape, x["perm"]
        return source, [_source(shape, perm, _index(x.shape, r, c)) for r, c in places]
    count, own = columns(source.shape), columns(x.shape)
    return source, [divmod(r * own + c, count) for r, c in places]


def from_elements(t: TileValues, scalar: str, elements: Sequence[str]) -> str:
    """The vector of scalar operands."""
    if len(elements) == 1:
        return elements[0]
    kind, value = vector(scalar, len(elements)), "poison"
    for lane, element in enumerate(elements):
        value = t.out.put(f"insertelement {kind} {value}, {scalar} {element}, i64 {lane}")
    return value


def _reshape(t: TileValues, n: Node, row: int, piece: int) -> str:
    if (found := groups.piece(t, n, row, piece)) is not None:
        return found
    (x,) = n.srcs
    count, c = columns(n.shape), columns(x.shape)
    if count == c:
        return t.piece(x, row, piece)
    first = row * count + piece * t.lanes
    width = t.widths(n)[piece]
    return assemble(t, x, [divmod(first + i, c) for i in range(width)])


# transpose


@cache
def _source(src: tuple[int, ...], perm: tuple[int, ...], index: tuple[int, ...]) -> Coordinates:
    """Where the element at `index` of a transposed tile comes from."""
    at = [0] * len(src)
    for axis, i in zip(perm, index, strict=True):
        at[axis] = i
    row = 0
    for i, d in zip(at[:-1], src[:-1], strict=True):
        row = row * d + i
    return row, at[-1]


def _index(shape: tuple[int, ...], row: int, column: int) -> tuple[int, ...]:
    index = [column]
    for d in reversed(shape[:-1]):
        row, i = divmod(row, d)
        index.append(i)
    return tuple(reversed(index))


def _transpose(t: TileValues, n: Node, row: int, piece: int) -> str:
    (x,) = n.srcs
    perm = n["perm"]
    if perm == (1, 0) and (below := turned(t, x)) is not None:
        return t.beside(below, row, piece)
    if perm == (1, 0) and columns(x.shape) > 1 and rows(x.shape) > 1:
        # Transpose the whole square block of lanes x lanes that the piece lies in, and define its
        # pieces. Narrow floats are turned as words, as which the casts around them leave them.
        (x,) = n.srcs
        lanes, scalar = t.lanes, "i32" if n.dtype.is_narrow else register(n.dtype)
        block, width = row // lanes, t.widths(n)[piece]
        given = t.widths(x)[block]
        source = [
            resized(
                t,
                scalar,
                _word(t, n.dtype, t.piece(x, piece * lanes + i, block), given),
                given,
                lanes,
            )
            if i < width
            else "poison"
            for i in range(lanes)
        ]
        for i, value in enumerate(square(t, scalar, source)[:given]):
            cut = resized(t, scalar, value, lanes, width)
            t.define(n, block * lanes + i, piece, _of_word(t, n.dtype, cut, width))
        return t.piece(n, row, piece)
    first = piece * t.lanes
    width = t.widths(n)[piece]
    places = [_source(x.shape, perm, _index(n.shape, row, first + i)) for i in range(width)]
    if perm[-1:] == (len(perm) - 1,):
        return t.piece(x, places[0][0], piece)
    return assemble(t, x, places)


def _word(t: TileValues, dtype: DType, value: str, width: int) -> str:
    if not dtype.is_narrow:
        return value
    kind = register(dtype)
    if dtype is DType.F16:
        value = t.out.put(f"bitcast {vector(kind, width)} {value} to {vector('i16', width)}")
    return t.out.put(f"zext {vector(f'i{dtype.bits}', width)} {value} to {vector('i32', width)}")


def _of_word(t: TileValues, dtype: DType, value: str, width: int) -> str:
    if not dtype.is_narrow:
        return value
    bits = vector(f"i{dtype.bits}", width)
    value = t.out.put(f"trunc {vector('i32', width)} {value} to {bits}")
    if dtype is DType.F16:
        value = t.out.put(f"bitcast {bits} {value} to {vector('half', width)}")
    return value


PIECES: Mapping[str, Rule] = {
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
}
"""Rules of pieces."""

ELEMENTS: Mapping[str, Rule] = {
    "broadcast": lambda t, n, row, column: t.element(
        n.srcs[0],
        _broadcast_rows(n.srcs[0].shape, n.shape)[row],
        column if columns(n.srcs[0].shape) > 1 else 0,
    ),
    "reshape": lambda t, n, row, column: t.element(
        n.srcs[0], *divmod(row * columns(n.shape) + column, columns(n.srcs[0].shape))
    ),
    "transpose": lambda t, n, row, column: t.element(
        n.srcs[0], *_source(n.srcs[0].shape, n["perm"], _index(n.shape, row, column))
    ),
}
"""Rules of single elements."""
