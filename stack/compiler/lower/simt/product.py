"""Matrix products: operands go to the staging area, where every lane reads the rows and columns of
its block of sums, which it keeps in registers."""

from __future__ import annotations

from hal.tile.node import Node
from stack.compiler.lower.simt.group import Group, cell
from stack.compiler.lower.simt.layout import Layout, Spread
from stack.compiler.text.c import arith
from stack.compiler.text.c.scope import Array, Scope
from stack.compiler.text.c.types import register

_PAD = 4
"""Elements after each row of the staging area: lanes that write a column meet other banks."""


def dot(group: Group, scope: Scope, n: Node) -> Array:
    """The sums and the products that are added to them."""
    a, b, acc = n.srcs
    *operands, layout = group.mapping.operands[n]
    total = group.declare(scope, n.type, layout)
    nest = group.nest(scope, layout)
    nest.do(f"{total.at(nest.position)} = {nest.element(acc, nest.position)};")
    nest.emit()
    left = _staged(group, scope, n, a, operands[0], layout[0], depth=1)
    right = _staged(group, scope, n, b, operands[1], layout[1], depth=0)
    group.fence.barrier()
    _add(group, scope, n, total.name, layout, (left, right))
    return total


def _pitch(s: Spread) -> int:
    """The elements of a step of the summed axis in the staging area."""
    return s.covered + _PAD


def _staged(
    group: Group, scope: Scope, n: Node, x: Node, layout: Layout, across: Spread, depth: int
) -> str:
    """Put an operand into the staging area, the summed axis outside."""
    target = group.room(n.dtype, x.shape[depth] * _pitch(across))
    nest = group.nest(scope, layout)
    value = nest.element(x, nest.position)
    k, i = nest.position[depth], nest.position[1 - depth]
    group.put(nest, layout, f"{target}[{k.text} * {_pitch(across)} + {i.text}] = {value};")
    return target


def _add(
    group: Group, scope: Scope, n: Node, total: str, layout: Layout, staged: tuple[str, str]
) -> None:
    """For each step of the summed axis: a column of a and a row of b into registers, and every
    product of the two. To round a product and its sum once is allowed, and faster."""
    out, kind = scope.out, register(scope.out.dialect, n.dtype)
    k, names = out.name("k"), (out.name("x"), out.name("y"))
    with out.block():
        if out.dialect.fused:
            out.do(out.dialect.fused)
        with out.block(f"for (int {k} = 0; {k} < {n.srcs[0].shape[1]}; ++{k})"):
            for name, s, source in zip(names, layout, staged, strict=True):
                out.do(f"{kind} {name}[{s.registers}];")
                nest = group.nest(scope, (s,))
                held = group.register(s, nest.position[0]) or "0"
                place = f"{source}[{k} * {_pitch(s)} + {nest.position[0].text}]"
                nest.do(f"{name}[{held}] = {place};")
                nest.emit()
            nest = group.nest(scope, layout)
            row, column = (
                group.register(s, i) or "0" for s, i in zip(layout, nest.position, strict=True)
            )
            sums = cell(total, layout, (row, column))
            value = _sum(scope, n, f"{names[0]}[{row}]", f"{names[1]}[{column}]", sums)
            nest.do(f"{sums} = {value};")
            nest.emit()


def _sum(scope: Scope, n: Node, a: str, b: str, c: str) -> str:
    if scope.out.dialect.fused and n.dtype.is_float:
        return f"{a} * {b} + {c}"
    return arith.fma(scope.out, n.dtype, a, b, c)
