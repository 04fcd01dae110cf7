"""Reductions and scans: what a lane holds first, then within a subgroup by shuffles where there are
some, then lane by lane through the staging area."""

from __future__ import annotations

from math import prod

from hal.tile.node import Node
from stack.compiler.lower.simt.group import LANE, GroupText, cell
from stack.compiler.lower.simt.layout import Layout, Spread, registers, without
from stack.compiler.text.c.contraction import combined, identity
from stack.compiler.text.c.scope import PrivateArray, Scope
from stack.compiler.text.c.types import register

_BATCH = 8
"""Registers that are combined between lanes at a time: more would take more scratch memory."""
_FAN = 8
"""Parts that a lane combines in a step: reading eight costs about what a barrier does."""


def reduce(group: GroupText, scope: Scope, n: Node) -> PrivateArray:
    """A tile without an axis; each lane has the results of the elements that it held."""
    (x,), axis = n.srcs, n["axis"]
    (layout,) = group.mapping.operands[n]
    along, kept = layout[axis], without(layout, axis)
    total = group.declare(scope, n.type, kept)
    start = group.nest(scope, kept)
    start.do(f"{total.at(start.position)} = {identity(n['kind'], n.dtype)};")
    start.emit()
    nest = group.nest(scope, layout)
    value, place = nest.element(x, nest.position), nest.position[axis]
    if along.covered > along.size:
        inside = f"{place.text} < {along.size} ? {value} : {identity(n['kind'], n.dtype)}"
        name = scope.out.name("t")
        nest.do(f"const {register(scope.out.dialect, n.dtype)} {name} = {inside};")
        value = name
    sums = total.at(nest.position[:axis] + nest.position[axis + 1 :])
    nest.do(f"{sums} = {combined(scope, n, sums, value)};")
    nest.emit()
    if along.mask:
        _reduce_lanes(group, scope, n, total.name, layout)
    return total


def _reduce_lanes(group: GroupText, scope: Scope, n: Node, name: str, layout: Layout) -> None:
    """Combine the parts of a result that several lanes have, a few at a time: in the last step
    every lane does so, for itself."""
    lanes, out = group.mapping.lanes, scope.out
    count = prod(registers(without(layout, n["axis"])))
    along = _shuffled(group, scope, n, layout[n["axis"]], (name, count))
    if along.lanes == 1:
        return
    room = group.room(n.dtype, lanes * min(count, _BATCH))
    for first in range(0, count, _BATCH):
        if first:
            group.fence.barrier()
        row = out.name("i")
        loop = f"for (int {row} = 0; {row} < {min(_BATCH, count - first)}; ++{row})"
        held = f"{name}[{first} + {row}]" if count > 1 else name
        here = f"{room}[{row} * {lanes} + {LANE}]"
        out.do(f"{group.groups.unrolled}{loop} {here} = {held};")
        left = _fewer(group, scope, n, along, (loop, here))
        with out.block(f"{group.groups.unrolled}{loop}"):
            start = f"{row} * {lanes} + ({LANE} & {lanes - 1 & ~along.mask})"
            _gathered(scope, n, f"{room}[{start}]", left, along.every, held)


def _shuffled(
    group: GroupText, scope: Scope, n: Node, along: Spread, parts: tuple[str, int]
) -> Spread:
    """Combine what the lanes of a subgroup have; gives the lanes whose parts are left, of which
    each subgroup has one along the axis. All lanes have the same bits: the lower lane's part is the
    first operand on both where the order shows, which is in the sign of a least or largest zero."""
    (name, count), out = parts, scope.out
    kind, row = register(out.dialect, n.dtype), out.name("i")
    near = along.mask & (group.groups.subgroup - 1)
    far = along.mask ^ near
    lowest = far & -far or 1
    left = Spread(far // lowest + 1, 1, far // lowest + 1, lowest)
    assert left.mask == far, "what subgroups share is in neighbouring bits"
    if not near:
        return left
    ordered = n.dtype.is_float and n["kind"] in ("min", "max")
    head = f"for (int {row} = 0; {row} < {count}; ++{row})"
    with out.block(f"{group.groups.unrolled}{head}" if count > 1 else ""):
        held = f"{name}[{row}]" if count > 1 else name
        for every in (1 << bit for bit in range(near.bit_length()) if near >> bit & 1):
            other = _variable(scope, n, group.groups.shuffle.format(kind, held, every))
            pair = (held, other)
            if ordered:
                test = f"{LANE} & {every}"
                first = _variable(scope, n, f"{test} ? {other} : {held}")
                pair = (first, _variable(scope, n, f"{test} ? {held} : {other}"))
            out.do(f"{held} = {combined(scope, n, *pair)};")
    return left


def _fewer(group: GroupText, scope: Scope, n: Node, along: Spread, rows: tuple[str, str]) -> int:
    """Combine until few lanes have parts, and give how many; `rows` are a loop and this lane's part
    of a row."""
    (loop, here), left = rows, along.lanes
    while left > _FAN:
        group.fence.barrier()
        parts, left = _FAN, left // _FAN
        with scope.out.block(f"if ({group.place(along)} < {left}) {loop}"):
            _gathered(scope, n, here, parts, left * along.every, here)
    group.fence.barrier()
    return left


def _gathered(scope: Scope, n: Node, first: str, count: int, step: int, target: str) -> None:
    """`target` becomes `count` parts combined, of which the first is given."""
    out, i = scope.out, scope.out.name("i")
    kind, total = register(out.dialect, n.dtype), out.name("t")
    out.do(f"{kind} {total} = {first};")
    with out.block(f"for (int {i} = 1; {i} < {count}; ++{i})"):
        part = _variable(scope, n, f"{first[:-1]} + {i} * {step}]")
        out.do(f"{total} = {combined(scope, n, total, part)};")
    out.do(f"{target} = {total};")


def _variable(scope: Scope, n: Node, value: str) -> str:
    name = scope.out.name("t")
    scope.out.do(f"const {register(scope.out.dialect, n.dtype)} {name} = {value};")
    return name


def scan(group: GroupText, scope: Scope, n: Node) -> PrivateArray:
    """The prefixes of each line: of a lane's run of neighbours, then with the runs before it."""
    (x,), axis = n.srcs, n["axis"]
    (layout,) = group.mapping.operands[n]
    prefix = group.declare(scope, n.type, layout)
    nest = group.nest(scope, layout)
    value, here = nest.element(x, nest.position), prefix.at(nest.position)
    held = [group.register(s, i) or "0" for s, i in zip(layout, nest.position, strict=True)]
    if layout[axis].registers == 1:
        nest.do(f"{here} = {value};")
    else:
        before = cell(prefix.name, layout, [*held[:axis], f"({held[axis]} - 1)", *held[axis + 1 :]])
        nest.do(f"if ({held[axis]} == 0) {here} = {value};")
        nest.do(f"else {here} = {combined(scope, n, before, value)};")
    nest.emit()
    if layout[axis].lanes > 1:
        _scan_lanes(group, scope, n, prefix.name, layout)
    return prefix


def _scan_lanes(group: GroupText, scope: Scope, n: Node, name: str, layout: Layout) -> None:
    """Add to each run what the runs before it come to."""
    axis, lanes, out = n["axis"], group.mapping.lanes, scope.out
    along, shape = layout[axis], registers(layout)
    count, inner = prod(shape) // along.registers, prod(shape[axis + 1 :])
    room = group.room(n.dtype, 2 * lanes * min(count, _BATCH))
    for first in range(0, count, _BATCH):
        if first:
            group.fence.barrier()
        batch, row, i = min(_BATCH, count - first), out.name("i"), out.name("i")
        loop = f"for (int {row} = 0; {row} < {batch}; ++{row})"
        line = f"({first} + {row})"
        start = f"{line} / {inner} * {along.registers * inner} + {line} % {inner}"
        held = f"{name}[{start} + {i} * {inner}]" if prod(shape) > 1 else name
        here = f"{room}[{row} * {2 * lanes} + {LANE}]"
        with out.block(f"{group.groups.unrolled}{loop}"):
            out.do(f"const int {i} = {along.registers - 1};")
            out.do(f"{here} = {held};")
        side = _double(group, scope, n, along, (loop, here))
        with out.block(f"if ({group.place(along)} > 0)"), out.block(group.groups.unrolled + loop):
            before = _variable(scope, n, f"{here[:-1]} + {side - along.every}]")
            head = f"for (int {i} = 0; {i} < {along.registers}; ++{i})"
            changed = f"{held} = {combined(scope, n, before, held)};"
            out.do(f"{group.groups.unrolled}{head} {changed}")


def _double(group: GroupText, scope: Scope, n: Node, along: Spread, rows: tuple[str, str]) -> int:
    """Combine each lane's part of a row with all before it, from one side of the row to the other
    and back; gives where the side begins that has the results."""
    (loop, here), lanes = rows, group.mapping.lanes
    side, step = 0, 1
    while step < along.lanes:
        group.fence.barrier()
        source, target = (f"{here[:-1]} + {at}" for at in (side, lanes - side))
        with scope.out.block(loop):
            b = _variable(scope, n, f"{source}]")
            scope.out.do(f"{target}] = {b};")
            with scope.out.block(f"if ({group.place(along)} >= {step})"):
                a = _variable(scope, n, f"{source} - {step * along.every}]")
                scope.out.do(f"{target}] = {combined(scope, n, a, b)};")
        side, step = lanes - side, 2 * step
    group.fence.barrier()
    return side
