"""Matrix products: operands go to the staging area, where every lane reads the rows and columns of
its block of sums, which it keeps in registers."""

from __future__ import annotations

from hal.tile.node import Node
from stack.compiler.lower.simt.group import LANE, GroupText, cell
from stack.compiler.lower.simt.layout import Layout, Spread
from stack.compiler.lower.simt.mapping import is_by_unit
from stack.compiler.text.c import arith
from stack.compiler.text.c.scope import PrivateArray, Scope
from stack.compiler.text.c.types import register
from stack.compiler.units import unit_of_group_dot

_PAD = 4
"""Elements after each row of the staging area: lanes that write a column meet other banks."""
_UNIT_PAD = 8
"""The same for a matrix unit, whose operands lie with the summed axis inside: the words that the
lanes of a subgroup read together are of different banks for every depth that is 16 times a power
of two."""


def dot(group: GroupText, scope: Scope, n: Node) -> PrivateArray:
    """The sums and the products that are added to them."""
    a, b, acc = n.srcs
    *operands, layout = group.mapping.operands[n]
    total = group.declare(scope, n.type, layout)
    nest = group.nest(scope, layout)
    nest.do(f"{total.at(nest.position)} = {nest.element(acc, nest.position)};")
    nest.emit()
    if is_by_unit(n):
        left = _lined(group, scope, a, operands[0], depth=1)
        right = _lined(group, scope, b, operands[1], depth=0)
        group.fence.barrier()
        _add_by_unit(group, n, total.name, layout, (left, right))
        return total
    left = _staged(group, scope, n, a, operands[0], layout[0], depth=1)
    right = _staged(group, scope, n, b, operands[1], layout[1], depth=0)
    group.fence.barrier()
    _add(group, scope, n, total.name, layout, (left, right))
    return total


def _pitch(s: Spread) -> int:
    """The elements of a step of the summed axis in the staging area."""
    return s.covered + _PAD


def _staged(
    group: GroupText, scope: Scope, n: Node, x: Node, layout: Layout, across: Spread, depth: int
) -> str:
    """Put an operand into the staging area, the summed axis outside."""
    target = group.room(n.dtype, x.shape[depth] * _pitch(across))
    nest = group.nest(scope, layout)
    value = nest.element(x, nest.position)
    k, i = nest.position[depth], nest.position[1 - depth]
    group.put(nest, layout, f"{target}[{k.text} * {_pitch(across)} + {i.text}] = {value};")
    return target


def _lined(group: GroupText, scope: Scope, x: Node, layout: Layout, depth: int) -> str:
    """Put an operand of a matrix unit into the staging area, the summed axis inside."""
    pitch = x.shape[depth] + _UNIT_PAD
    target = group.room(x.dtype, x.shape[1 - depth] * pitch)
    nest = group.nest(scope, layout)
    value = nest.element(x, nest.position)
    k, i = nest.position[depth], nest.position[1 - depth]
    group.put(nest, layout, f"{target}[{i.text} * {pitch} + {k.text}] = {value};")
    return target


def _add_by_unit(
    group: GroupText, n: Node, total: str, layout: Layout, staged: tuple[str, str]
) -> None:
    """Multiply by the unit, in blocks of sums: a block takes the rows of two turns of the
    lane's (see `layout.fragments`) and eight columns."""
    unit = unit_of_group_dot(n, group.info)
    assert unit is not None, "kept for it"
    name, text = group.groups.units[unit.call]
    group.out.functions.define(name, text)
    out, unrolled = group.out, group.groups.unrolled
    rows, columns = layout
    depth = n.srcs[0].shape[1]
    half = (depth + _UNIT_PAD) // 2  # words of a row
    word = out.dialect.words[32]
    words = [out.name("w"), out.name("w")]
    for held, source in zip(words, staged, strict=True):
        out.do(f"const {word} *{held} = (const {word} *){source};")
    k, i, j, x, y = (out.name(kind) for kind in "kijxy")
    low, place = f"{LANE} % 4", group.place(rows)
    blocks = rows.registers // 2
    with out.block(f"{unrolled}for (int {k} = 0; {k} < {depth // 2}; {k} += {unit.k // 2})"):
        out.do(f"{word} {x}[{blocks}][4];")
        with out.block(f"{unrolled}for (int {i} = 0; {i} < {blocks}; ++{i})"):
            for part in range(4):
                turn = f"(2 * {i} + {part % 2}) * {rows.lanes} + {place}"
                at = f"({turn}) * {half} + {k} + {low} + {part // 2 * 4}"
                out.do(f"{x}[{i}][{part}] = {words[0]}[{at}];")
        with out.block(f"{unrolled}for (int {j} = 0; {j} < {columns.size // unit.n}; ++{j})"):
            out.do(f"{word} {y}[2];")
            for part in range(2):
                at = f"({j} * {unit.n} + {LANE} / 4 % 8) * {half} + {k} + {low} + {part * 4}"
                out.do(f"{y}[{part}] = {words[1]}[{at}];")
            with out.block(f"{unrolled}for (int {i} = 0; {i} < {blocks}; ++{i})"):
                first, second = (
                    f"{total} + (2 * {i} + {turn}) * {columns.registers} + 2 * {j}"
                    for turn in range(2)
                )
                out.do(f"{name}({first}, {second}, {x}[{i}], {y});")


def _add(
    group: GroupText, scope: Scope, n: Node, total: str, layout: Layout, staged: tuple[str, str]
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
