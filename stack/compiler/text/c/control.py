"""Blocks of statements: loops with carried values, and branches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hal.core.dtypes import DType
from hal.tile.kernel import (
    Alloc,
    Atomic,
    Barrier,
    Carried,
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
from stack.compiler.text.c import memory, products, shared
from stack.compiler.text.c.nest import LoopNest
from stack.compiler.text.c.scope import PrivateArray, Scope
from stack.compiler.text.c.types import register


def block(scope: Scope, statements: Sequence[Statement], after: Sequence[Node] = ()) -> None:
    """Write statements in order; `after` is computed when they are done."""
    due = shared.before(statements, after, scope.loops)
    with scope.out.accounted():
        for number, s in enumerate(statements):
            _keep(scope, due.get(number, ()))
            rule = scope.statements.get(type(s)) or _RULES[type(s)]
            rule(scope, s)
        _keep(scope, due.get(len(statements), ()))


def _keep(scope: Scope, tiles: Sequence[Node]) -> None:
    for n in tiles:
        if n not in scope.arrays:
            rule = scope.loops.get(n.op, copied)
            scope.arrays[n] = rule(scope, n)


def _for(scope: Scope, s: For) -> None:
    out = scope.out
    start, stop, step = (memory.scalar(scope, n) for n in (s.start, s.stop, s.step))
    carried = [copied(scope, c.init) for c in s.carried]
    dots = products.chain(s)
    sums = products.begin(scope, carried[0], dots[0].dtype) if dots else []
    i, kind = out.name("n"), register(out.dialect, DType.I64)
    if out.dialect.in_order and not dots and any(c.var.dtype.is_float for c in s.carried):
        out.do(out.dialect.in_order)
    with out.block(f"for ({kind} {i} = {start}; {i} < {stop}; {i} += {step})"):
        inner = scope.inner()
        inner.scalars[s.index] = i
        if dots:
            products.add(inner, s, dots, sums)
        else:
            one_step(inner, s, carried)
    if dots:
        products.end(scope, carried[0], dots[0].dtype, sums)
    scope.arrays.update((c.result, array) for c, array in zip(s.carried, carried, strict=True))


def one_step(scope: Scope, s: For, carried: Sequence[PrivateArray]) -> None:
    """A loop's body, after which the arrays hold what the next step begins with."""
    scope.arrays.update((c.var, array) for c, array in zip(s.carried, carried, strict=True))
    block(scope, s.body, [c.next for c in s.carried])
    with scope.out.accounted():
        # All values of the next iteration are computed before one that they need is changed.
        places = list(zip(s.carried, carried, strict=True))
        apart = [(c, array) for c, array in places if not _in_place(scope, c, s.carried)]
        values = [copied(scope, c.next) for c, _ in apart]
        for c, array in places:
            if (c, array) not in apart:
                _assign(scope, array, c.next)
        for (c, array), value in zip(apart, values, strict=True):
            nest = LoopNest(scope, array.shape)
            nest.do(f"{array.at(nest.position)} = {value.at(nest.position)};", c.next.dtype)
            nest.emit()


def _in_place(scope: Scope, c: Carried, carried: Sequence[Carried]) -> bool:
    """Whether a value may be changed element by element: nothing needs an old element later."""
    others = (x.next for x in carried if x is not c)
    if any(shared.uses(n, c.var, scope.arrays) for n in others):
        return False
    return shared.is_pointwise(c.next, c.var, scope.arrays)


def copied(scope: Scope, n: Node) -> PrivateArray:
    """An array of its own with a tile's elements."""
    array = scope.declare(n.type)
    _assign(scope, array, n)
    return array


def _assign(scope: Scope, array: PrivateArray, n: Node) -> None:
    """Put a tile's elements into an array."""
    nest = LoopNest(scope, array.shape)
    value = nest.element(n, nest.position)
    nest.do(f"{array.at(nest.position)} = {value};", n.dtype)
    nest.emit()


def _if(scope: Scope, s: If) -> None:
    condition = memory.scalar(scope, s.condition)
    with scope.out.block(f"if ({condition})"):
        block(scope.inner(), s.then)
    if s.orelse:
        with scope.out.block("else"):
            block(scope.inner(), s.orelse)


def alloc(scope: Scope, s: Alloc) -> None:
    """Scratch memory, which the language wants at the start of the kernel."""
    d, m = scope.out.dialect, s.memory
    scope.out.fixed_nbytes += max(m.size, 1) * m.dtype.nbytes
    scope.out.scratch.append(
        f"{d.array} {register(d, m.dtype)} {memory.pointer(m)}[{max(m.size, 1)}] {d.aligned};"
    )


def _nothing(scope: Scope, s: Wait | Barrier) -> None:
    """An instance has one lane, and copies are done when they start."""


_RULES: Mapping[type[Statement], Callable[..., None]] = {
    Load: memory.load,
    Store: memory.store,
    Gather: memory.gather,
    Scatter: memory.scatter,
    Atomic: memory.atomic,
    Copy: memory.copy,
    Alloc: alloc,
    Wait: _nothing,
    Barrier: _nothing,
    For: _for,
    If: _if,
}
