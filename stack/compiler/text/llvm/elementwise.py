"""Rules for leaves and elementwise operators."""

from __future__ import annotations

from collections.abc import Mapping

from hal.core.dtypes import DType
from hal.tile.kernel import Load
from hal.tile.node import Node
from hal.tile.ops import ELEMENTWISE
from stack.compiler.text.llvm import arith
from stack.compiler.text.llvm.bounds import bounds
from stack.compiler.text.llvm.lines import compared, equal
from stack.compiler.text.llvm.tiles import Rule, TileValues, columns
from stack.compiler.text.llvm.types import constant, splat_constant, vector
from stack.compiler.text.llvm.words import in_order


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
    if n.op in ("lt", "le") and n.shape and (mask := compared(t, n, piece)) is not None:
        return mask
    if n.op in ("eq", "ne") and n.shape and (mask := equal(t, n, piece)) is not None:
        return mask
    if n.op == "where" and n.shape and (words := in_order(t, n, row, piece)) is not None:
        return words
    width = t.widths(n)[piece]
    if n.op == "and" and n.dtype is DType.BOOL and width > 1:
        for one, other in (n.srcs, n.srcs[::-1]):
            if one.op == "broadcast" and not one.srcs[0].shape and other.op != "const":
                kind = vector("i1", width)
                mask = t.piece(other, row, piece)
                held = t.scalar(one.srcs[0])
                return t.out.put(f"select i1 {held}, {kind} {mask}, {kind} zeroinitializer")
    operands = [t.piece(s, row, piece) for s in n.srcs]
    if n.op in _UNSIGNED and not n.shape and n.dtype is DType.I64 and _is_index(t, n):
        return t.out.put(f"{_UNSIGNED[n.op]} i64 {', '.join(operands)}")
    return arith.define(t.out, n, width, operands)


_UNSIGNED = {"div": "udiv", "rem": "urem"}
"""Of what is not negative, where shifts and masks are enough for powers of two."""


def _is_index(t: TileValues, n: Node) -> bool:
    """Whether a quotient or a remainder is one of an index by a number."""
    left, right = (bounds(s, t.env.ranges)[0] for s in n.srcs)
    return left >= 0 and right > 0


PIECES: Mapping[str, Rule] = {
    "const": _const,
    "arange": _arange,
    **dict.fromkeys(ELEMENTWISE, _elementwise),
}
"""Rules of pieces."""


MOST = 16
"""Parts of what is computed of each word, at most."""

_OF_WORDS = frozenset({"add", "sub", "mul", "lt", "le", "and"})
_LAID_OUT = frozenset({"broadcast", "reshape", "cast"})


def is_of_words(t: TileValues, n: Node) -> bool:
    """Whether integers or conditions are made by few operations of words that are loaded: those
    that say where something lies. An address is a scalar, so what is computed of one word is
    sooner there than what would be computed of a vector of them and taken out of it."""
    stack, seen, loaded = [n], set[Node](), False
    while stack:
        x = stack.pop()
        if x in seen:
            continue
        seen.add(x)
        if len(seen) > MOST or not (x.dtype.is_int or x.dtype is DType.BOOL):
            return False
        if x.op == "var" and isinstance(t.env.loads.get(x), Load):
            loaded = True
        elif x.op in _OF_WORDS or (x.op in _LAID_OUT and columns(x.srcs[0].shape) > 1):
            stack.extend(x.srcs)
        elif x.op not in ("const", "arange", "broadcast"):
            return False
    return loaded


def _of_words(t: TileValues, n: Node, row: int, column: int) -> str:
    if not is_of_words(t, n):
        return t.extract(n, row, column)
    return arith.define(t.out, n, 1, [t.element(s, row, column) for s in n.srcs])


ELEMENTS: Mapping[str, Rule] = {
    **dict.fromkeys(_OF_WORDS, _of_words),
    "const": lambda t, n, row, column: constant(n.dtype, n["value"]),
    "arange": lambda t, n, row, column: constant(n.dtype, column),
    "cast": lambda t, n, row, column: arith.define(
        t.out, n, 1, [t.element(n.srcs[0], row, column)]
    ),
}
"""Rules of single elements."""
