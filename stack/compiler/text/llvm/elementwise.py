"""Rules for leaves and elementwise operators."""

from __future__ import annotations

from collections.abc import Mapping

from hal.tile.node import Node
from stack.compiler.text.llvm import arith, casts
from stack.compiler.text.llvm.tiles import Rule, Tiles
from stack.compiler.text.llvm.types import constant, splat_constant, vector


def _const(t: Tiles, n: Node, row: int, piece: int) -> str:
    scalar, width = t.register(n, piece)
    return splat_constant(scalar, constant(n.dtype, n["value"]), width)


def _arange(t: Tiles, n: Node, row: int, piece: int) -> str:
    scalar, width = t.register(n, piece)
    first = piece * t.lanes
    if width == 1:
        return constant(n.dtype, first)
    lanes = ", ".join(f"{scalar} {constant(n.dtype, first + i)}" for i in range(width))
    return f"<{lanes}>"


def _unary(t: Tiles, n: Node, row: int, piece: int) -> str:
    _, width = t.register(n, piece)
    return arith.unary(t.out, n.op, n.dtype, width, t.piece(n.srcs[0], row, piece))


def _binary(t: Tiles, n: Node, row: int, piece: int) -> str:
    a, b = n.srcs
    _, width = t.register(n, piece)
    operation = arith.BINARY[n.op]
    return operation(t.out, n.dtype, width, t.piece(a, row, piece), t.piece(b, row, piece))


def _compare(t: Tiles, n: Node, row: int, piece: int) -> str:
    a, b = n.srcs
    _, width = t.register(n, piece)
    return arith.compare(
        t.out, n.op, a.dtype, width, t.piece(a, row, piece), t.piece(b, row, piece)
    )


def _fma(t: Tiles, n: Node, row: int, piece: int) -> str:
    _, width = t.register(n, piece)
    a, b, c = (t.piece(s, row, piece) for s in n.srcs)
    return arith.fma(t.out, n.dtype, width, a, b, c)


def _where(t: Tiles, n: Node, row: int, piece: int) -> str:
    scalar, width = t.register(n, piece)
    kind = vector(scalar, width)
    c, a, b = (t.piece(s, row, piece) for s in n.srcs)
    return t.out.put(f"select {vector('i1', width)} {c}, {kind} {a}, {kind} {b}")


def _cast(t: Tiles, n: Node, row: int, piece: int) -> str:
    (x,) = n.srcs
    _, width = t.register(n, piece)
    return casts.convert(t.out, t.piece(x, row, piece), x.dtype, n.dtype, width)


def _bitcast(t: Tiles, n: Node, row: int, piece: int) -> str:
    (x,) = n.srcs
    _, width = t.register(n, piece)
    return casts.bits(t.out, t.piece(x, row, piece), x.dtype, n.dtype, width)


PIECES: Mapping[str, Rule] = {
    "const": _const,
    "arange": _arange,
    **dict.fromkeys(("neg", "abs", "not", "sqrt", "recip", "floor", "ceil", "round"), _unary),
    **dict.fromkeys(arith.BINARY, _binary),
    **dict.fromkeys(("eq", "ne", "lt", "le"), _compare),
    "fma": _fma,
    "where": _where,
    "cast": _cast,
    "bitcast": _bitcast,
}
"""Rules of pieces."""


def _const_element(t: Tiles, n: Node, row: int, column: int) -> str:
    return constant(n.dtype, n["value"])


def _arange_element(t: Tiles, n: Node, row: int, column: int) -> str:
    return constant(n.dtype, column)


def _cast_element(t: Tiles, n: Node, row: int, column: int) -> str:
    (x,) = n.srcs
    return casts.convert(t.out, t.element(x, row, column), x.dtype, n.dtype, 1)


ELEMENTS: Mapping[str, Rule] = {
    "const": _const_element,
    "arange": _arange_element,
    "cast": _cast_element,
}
"""Rules of single elements."""
