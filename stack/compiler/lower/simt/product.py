"""Matrix products: operands go to the staging area, where every lane reads the rows and columns of
its block of sums, which it keeps in registers."""

from __future__ import annotations

from hal.core.facts import dataclass
from hal.tile.node import Node
from stack.compiler.lower.simt import vectors, wide
from stack.compiler.lower.simt.group import ALIGNED, LANE, GroupText, cell
from stack.compiler.lower.simt.layout import Layout, Spread
from stack.compiler.lower.simt.mapping import is_by_unit
from stack.compiler.text.c import arith
from stack.compiler.text.c.scope import PrivateArray, Scope
from stack.compiler.text.c.types import register
from stack.compiler.units import unit_of_group_dot

_PAD = 4
"""Elements after each row of the staging area: lanes that write a column meet other banks."""
_UNIT_PAD = 8
"""The same for a matrix unit, whose operands are read in blocks of eight lines of 16 bytes: the
lines of a block are of different banks where they are 16 times a power of two long."""


def dot(group: GroupText, scope: Scope, n: Node) -> PrivateArray:
    """The sums and the products that are added to them."""
    a, b, acc = n.srcs
    *operands, layout = group.mapping.operands[n]
    total = group.declare(scope, n.type, layout)
    nest = group.nest(scope, layout)
    nest.do(f"{total.at(nest.position)} = {nest.element(acc, nest.position)};")
    nest.emit()
    if isinstance(wide_left := group.piped.get(a), wide.Blocks):
        wide_right = group.piped[b]
        wide.add(group, n, total.name, layout, wide_left, wide_right)
        return total
    if is_by_unit(n):
        left: Lined | Held
        held = a not in group.piped and _is_held(operands[0], layout)
        if held:
            left = _held(group, scope, a, operands[0])
        else:
            left = group.piped.get(a) or lined(group, scope, a, operands[0], 1)
        right = group.piped.get(b) or lined(group, scope, b, operands[1], 0)
        if not ({b} if held else {a, b}) <= group.piped.keys():
            group.fence.barrier()
        _add_by_unit(group, n, total.name, layout, left, right)
        return total
    staged = (
        _staged(group, scope, n, a, operands[0], layout[0], depth=1),
        _staged(group, scope, n, b, operands[1], layout[1], depth=0),
    )
    group.fence.barrier()
    _add(group, scope, n, total.name, layout, staged)
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


@dataclass(frozen=True, slots=True)
class Lined:
    """An operand of a matrix unit in the staging area, `pitch` elements from a line to the next.
    `turned`: a line is along the rows or columns of the product and not along the summed axis."""

    name: str
    pitch: int
    turned: bool

    def line(self, i: str, k: str, row: str) -> str:
        """The address of a line of an eight by eight block that begins at (i, k)."""
        outer, inner = (k, i) if self.turned else (i, k)
        return f"{self.name} + ({outer} + {row}) * {self.pitch} + {inner}"


@dataclass(frozen=True, slots=True)
class Held:
    """A left operand of a matrix unit in registers, where sums have their elements: as many of a
    row for each lane as `columns` says. Of two blocks of eight sums a unit takes what a lane has of
    sixteen elements of the summed axis."""

    name: str
    columns: int

    def word(self, i: str, k: str, q: int) -> str:
        """The elements of a quarter of a block: the upper or lower rows, the left or right
        columns."""
        at = f"{self.name} + (2 * {i} + {q % 2}) * {self.columns} + {k} / 4 + {q // 2 * 2}"
        return f"(({at})[0] | (uint)({at})[1] << 16)"


def _is_held(layout: Layout, sums: Layout) -> bool:
    """Whether lanes have a left operand as they have sums: whole rows in a subgroup."""
    rows, depth = layout
    same = Spread(depth.size, 2, 4, 1)
    return rows == sums[0] and depth == same and depth.registers >= 4


def _held(group: GroupText, scope: Scope, x: Node, layout: Layout) -> Held:
    """Put an operand into registers."""
    tile, nest = group.declare(scope, x.type, layout), group.nest(scope, layout)
    nest.do(f"{tile.at(nest.position)} = {nest.element(x, nest.position)};")
    nest.emit()
    return Held(tile.name, layout[1].registers)


def line_axis(layout: Layout, depth: int) -> int:
    """The axis of an operand along which its lines lie: that in whose order lanes have it."""
    shared = [axis for axis in (0, 1) if layout[axis].lanes > 1]
    return min(shared, key=lambda axis: layout[axis].every, default=depth)


def lines(x: Node, inner: int) -> tuple[int, int]:
    """The elements from a line of an operand in the staging area to the next, and all bytes."""
    pitch = x.shape[inner] + _UNIT_PAD
    return pitch, -(-x.shape[1 - inner] * pitch * x.dtype.nbytes // ALIGNED) * ALIGNED


def lined(group: GroupText, scope: Scope, x: Node, layout: Layout, depth: int) -> Lined:
    """Put an operand of a matrix unit into the staging area, in lines along the axis in whose
    order lanes have its elements."""
    inner = line_axis(layout, depth)
    pitch, _ = lines(x, inner)
    target = group.room(x.dtype, x.shape[1 - inner] * pitch)
    nest, width = group.nest(scope, layout), vectors.width(group, layout, inner, x.dtype)
    value = nest.element(x, nest.position)
    if width > 1:
        tile = group.declare(scope, x.type, layout)
        nest.do(f"{tile.at(nest.position)} = {value};")
        nest.emit()
        nest = vectors.nest_of(group, scope, layout, inner, x.dtype)
    place = f"{target}[{nest.position[1 - inner].text} * {pitch} + {nest.position[inner].text}]"
    if width > 1:
        conditions = group.within(layout, nest.position) + group.first(layout)
        vectors.store(group, nest, tile, layout, inner, x.dtype, place, (conditions, None))
        nest.emit()
    else:
        group.put(nest, layout, f"{place} = {value};")
    return Lined(target, pitch, inner != depth)


def _add_by_unit(
    group: GroupText, n: Node, total: str, layout: Layout, left: Lined | Held, right: Lined
) -> None:
    """Multiply by the unit, in blocks of sums: a block takes the rows of two turns of a set of
    lanes (see `layout.fragments`) and eight columns. Each quarter of a subgroup says where the
    lines of one of four blocks of operands are, which are read together."""
    unit = unit_of_group_dot(n, group.info)
    assert unit is not None, "kept for it"
    name, text = group.groups.units[unit.call]
    group.out.functions.define(name, text)
    out, unrolled = group.out, group.groups.unrolled
    rows, columns = layout
    word = out.dialect.words[32]
    k, i, j, h, x, y = (out.name(kind) for kind in "kijhxy")
    quarter, row = f"{LANE} / 8 % 4", f"{LANE} % 8"
    first_row, first_column = (f"{group.set_of(s)} * {s.share}" for s in layout)
    blocks, wide = rows.share // unit.m, columns.share // unit.n
    # Blocks of columns that are read together.
    pair = 2 if wide % 2 == 0 else 1
    depth = n.srcs[0].shape[1]
    with out.block(f"{unrolled}for (int {k} = 0; {k} < {depth}; {k} += {unit.k})"):
        out.do(f"{word} {x}[{blocks}][4];")
        with out.block(f"{unrolled}for (int {i} = 0; {i} < {blocks}; ++{i})"):
            if isinstance(left, Held):
                for q in range(4):
                    out.do(f"{x}[{i}][{q}] = {left.word(i, k, q)};")
            else:
                block = f"{first_row} + {i} * {unit.m} + {quarter} % 2 * 8"
                at = left.line(block, f"{k} + {quarter} / 2 * 8", row)
                out.do(f"{_read_blocks(group, left)}({x}[{i}], {at});")
        with out.block(f"{unrolled}for (int {j} = 0; {j} < {wide}; {j} += {pair})"):
            out.do(f"{word} {y}[4];")
            column = f"{first_column} + ({j} + {quarter} / 2 % {pair}) * {unit.n}"
            at = right.line(column, f"{k} + {quarter} % 2 * 8", row)
            out.do(f"{_read_blocks(group, right)}({y}, {at});")
            with (
                out.block(f"{unrolled}for (int {h} = 0; {h} < {pair}; ++{h})"),
                out.block(f"{unrolled}for (int {i} = 0; {i} < {blocks}; ++{i})"),
            ):
                first, second = (
                    f"{total} + (2 * {i} + {turn}) * {columns.registers} + 2 * ({j} + {h})"
                    for turn in range(2)
                )
                out.do(f"{name}({first}, {second}, {x}[{i}], {y} + 2 * {h});")


def _read_blocks(group: GroupText, operand: Lined) -> str:
    """The function that reads four blocks of an operand."""
    return group.out.functions.define(*group.groups.blocks[operand.turned])


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
            a = f"{names[0]}[{row}]"
            b = f"{names[1]}[{column}]"
            if scope.out.dialect.fused and n.dtype.is_float:
                value = f"{a} * {b} + {sums}"
            else:
                value = arith.fma(scope.out, n.dtype, a, b, sums)
            nest.do(f"{sums} = {value};")
            nest.emit()
