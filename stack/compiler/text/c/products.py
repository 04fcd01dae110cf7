"""The innermost loop of a matrix product: sums in vector variables, operands straight from memory.

A device's compiler keeps a private array in registers only if it unrolls every loop over it. This
loop is worth writing so that nothing is left to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.kernel import For, Load
from hal.tile.node import Node
from stack.compiler.text.c.memory import element, space
from stack.compiler.text.c.scope import Coordinate, PrivateArray, Scope
from stack.compiler.text.c.types import register

_MOST = 16
"""Rows, and steps of the summed axis, that are written out."""
_MOST_SUMS = 512


@dataclass(frozen=True, slots=True)
class _RowPart:
    """A part of a row of sums in one vector variable."""

    name: str
    row: int
    column: int
    width: int


def chain(s: For) -> list[Node]:
    """The dots by which a loop only adds products of loaded tiles to its one value, in order; none
    if it does anything else."""
    if len(s.carried) != 1:
        return []
    loads = {x.result: x for x in s.body if isinstance(x, Load)}
    found, n = [], s.carried[0].next
    while n.op == "dot" and _fits(n, loads):
        found.append(n)
        n = n.srcs[2]
    alone = n is s.carried[0].var and len(loads) == len(s.body)
    return found[::-1] if alone else []


def _fits(n: Node, loads: dict[Node, Load]) -> bool:
    a, b, acc = n.srcs
    if a not in loads or b not in loads or n.dtype not in (DType.F32, DType.F64):
        return False
    whole = all(limit is None for x in (a, b) for limit in loads[x].source.limits)
    step = loads[b].source.strides[1]
    dense = step.op == "const" and step["value"] == 1
    small = max(a.shape) <= _MOST and n.type.size <= _MOST_SUMS and n.shape[1] % 4 == 0
    return whole and dense and small and a.dtype is acc.dtype


def begin(scope: Scope, total: PrivateArray, dtype: DType) -> list[_RowPart]:
    """Vector variables with the sums of an array."""
    out, parts = scope.out, list(_parts(scope, total))
    for p in parts:
        place = f"{total.name} + {p.row * total.shape[1] + p.column}"
        loaded = out.functions.load(register(out.dialect, dtype), p.width, "", place)
        out.do(f"{_kind(scope, dtype, p.width)} {p.name} = {loaded};")
    return parts


def end(scope: Scope, total: PrivateArray, dtype: DType, parts: list[_RowPart]) -> None:
    """Put the sums back into their array."""
    out = scope.out
    for p in parts:
        place = f"{total.name} + {p.row * total.shape[1] + p.column}"
        kind = register(out.dialect, dtype)
        out.do(f"{out.functions.store(kind, p.width, '', place, p.name)};")


def _parts(scope: Scope, total: PrivateArray) -> Iterator[_RowPart]:
    rows, columns = total.shape
    for row in range(rows):
        column = 0
        while column < columns:
            width = next(w for w in (16, 8, 4) if column + w <= columns)
            yield _RowPart(scope.out.name("r"), row, column, width)
            column += width


def _kind(scope: Scope, dtype: DType, width: int) -> str:
    return scope.out.dialect.vector.format(register(scope.out.dialect, dtype), width)


def add(scope: Scope, s: For, dots: list[Node], parts: list[_RowPart]) -> None:
    """The loop's body: add the products of the dots. To round them once is allowed, and faster."""
    scope.out.do(scope.out.dialect.fused)
    loads = {x.result: x for x in s.body if isinstance(x, Load)}
    for n in dots:
        a, b = loads[n.srcs[0]], loads[n.srcs[1]]
        for k in range(a.result.shape[1]):
            right = {
                column: _row(scope, b, k, column, width)
                for column, width in dict.fromkeys((p.column, p.width) for p in parts)
            }
            left = [_left(scope, a, row, k) for row in range(n.shape[0])]
            for p in parts:
                kind = _kind(scope, n.dtype, p.width)
                factor = scope.out.dialect.splat.format(kind, left[p.row])
                scope.out.do(f"{p.name} = {factor} * {right[p.column]} + {p.name};")


def _row(scope: Scope, s: Load, k: int, column: int, width: int) -> str:
    out, dtype = scope.out, s.result.dtype
    name, kind = out.name("t"), register(out.dialect, dtype)
    place = f"&{element(scope, s.source, (Coordinate(str(k), 0), Coordinate(str(column), 0)))}"
    loaded = out.functions.load(kind, width, space(scope, s.source.memory), place)
    out.do(f"const {_kind(scope, dtype, width)} {name} = {loaded};")
    return name


def _left(scope: Scope, s: Load, row: int, k: int) -> str:
    name, kind = scope.out.name("t"), register(scope.out.dialect, s.result.dtype)
    value = element(scope, s.source, (Coordinate(str(row), 0), Coordinate(str(k), 0)))
    scope.out.do(f"const {kind} {name} = {value};")
    return name
