"""Blocks of statements: every lane runs all of them, each on its part of the tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hal.core.dtypes import DType
from hal.tile.kernel import (
    Alloc,
    Atomic,
    Barrier,
    Copy,
    For,
    Gather,
    If,
    Load,
    Scatter,
    Statement,
    Store,
    Wait,
)
from hal.tile.node import Node
from stack.compiler.lower.simt import memory
from stack.compiler.lower.simt.group import GroupText, ScratchArray
from stack.compiler.lower.simt.layout import Layout
from stack.compiler.lower.simt.pipeline import pipeline
from stack.compiler.text.c.memory import pointer, scalar
from stack.compiler.text.c.scope import PrivateArray, Scope
from stack.compiler.text.c.shared import before
from stack.compiler.text.c.types import register


def block(
    group: GroupText, scope: Scope, statements: Sequence[Statement], after: Sequence[Node] = ()
) -> None:
    """Write statements in order. What lanes compute together is computed once for all statements,
    and for `after`, which is used after them, and not in every step of a loop."""
    due = before(statements, after, scope.loops)
    for number, s in enumerate(statements):
        _keep(group, scope, due.get(number, ()))
        _RULES[type(s)](group, scope, s)
        group.done()
    _keep(group, scope, due.get(len(statements), ()))


def _keep(group: GroupText, scope: Scope, tiles: Sequence[Node]) -> None:
    """Compute tiles, those of elementwise operations where they have a layout by themselves."""
    for n in tiles:
        if n in scope.arrays:
            continue
        if n.op in scope.loops:
            scope.arrays[n] = scope.loops[n.op](scope, n)
        elif (layout := group.mapping.fixed.get(n)) is not None:
            scope.arrays[n] = _copied(group, scope, n, layout)
        group.done()


def _for(group: GroupText, scope: Scope, s: For) -> None:
    out, layouts = scope.out, [group.mapping.tiles[c.var] for c in s.carried]
    start, stop, step = (scalar(scope, n) for n in (s.start, s.stop, s.step))
    firsts = [(c.init, layout) for c, layout in zip(s.carried, layouts, strict=True)]
    carried = [_copied(group, scope, n, layout) for n, layout in firsts]
    group.done()
    piped = pipeline(group, scope, s)
    if piped is not None:
        piped.begin(scope, s, (start, stop, step))
    entered = group.fence.loop(s)
    i, kind = out.name("n"), register(out.dialect, DType.I64)
    with out.block(f"for ({kind} {i} = {start}; {i} < {stop}; {i} += {step})"):
        inner = scope.inner()
        inner.scalars[s.index] = i
        inner.arrays.update((c.var, array) for c, array in zip(s.carried, carried, strict=True))
        if piped is not None:
            piped.step(scope, s, i, stop, step)
        block(group, inner, s.body, [c.next for c in s.carried])
        following = [(c.next, layout) for c, layout in zip(s.carried, layouts, strict=True)]
        # All values of the next step are computed before the first one is changed.
        if len(carried) == 1:
            _assign(group, inner, carried[0], *following[0])
        else:
            values = [_copied(group, inner, n, layout) for n, layout in following]
            for array, value, (_, layout) in zip(carried, values, following, strict=True):
                nest = group.nest(inner, layout)
                nest.do(f"{array.at(nest.position)} = {value.at(nest.position)};")
                nest.emit()
        group.done()
    if piped is not None:
        piped.end()
    group.fence.join(entered)
    scope.arrays.update((c.result, array) for c, array in zip(s.carried, carried, strict=True))


def _copied(group: GroupText, scope: Scope, n: Node, layout: Layout) -> PrivateArray:
    """Registers of its own with a tile's elements."""
    array = group.declare(scope, n.type, layout)
    _assign(group, scope, array, n, layout)
    return array


def _assign(group: GroupText, scope: Scope, array: PrivateArray, n: Node, layout: Layout) -> None:
    nest = group.nest(scope, layout)
    nest.do(f"{array.at(nest.position)} = {nest.element(n, nest.position)};")
    nest.emit()


def _if(group: GroupText, scope: Scope, s: If) -> None:
    condition = scalar(scope, s.condition)
    group.done()
    entered = group.fence.branch()
    with scope.out.block(f"if ({condition})"):
        block(group, scope.inner(), s.then)
    left = group.fence.other(entered)
    if s.orelse:
        with scope.out.block("else"):
            block(group, scope.inner(), s.orelse)
    group.fence.join(left)


def _alloc(group: GroupText, scope: Scope, s: Alloc) -> None:
    m, d = s.memory, scope.out.dialect
    count = max(m.size, 1)
    array = ScratchArray(register(d, m.dtype), pointer(m), count, count * m.dtype.nbytes)
    group.allocated.append(array)


def _nothing(group: GroupText, scope: Scope, s: Wait | Barrier) -> None:
    """Copies are done as they start, and barriers come where accesses need them."""


_RULES: Mapping[type[Statement], Callable[..., None]] = {
    Load: memory.load,
    Store: memory.store,
    Gather: memory.gather,
    Scatter: memory.scatter,
    Atomic: memory.atomic,
    Copy: memory.copy,
    Alloc: _alloc,
    Wait: _nothing,
    Barrier: _nothing,
    For: _for,
    If: _if,
}
