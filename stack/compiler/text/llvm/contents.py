"""What statements contain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hal.tile.kernel import Access, Atomic, Copy, For, Gather, If, Load, Scatter, Statement, Store
from hal.tile.node import Node


def nested(statements: Sequence[Statement]) -> Iterator[Statement]:
    """Statements and all inside them."""
    for s in statements:
        yield s
        if isinstance(s, For):
            yield from nested(s.body)
        elif isinstance(s, If):
            yield from nested(s.then)
            yield from nested(s.orelse)


def accesses(s: Statement) -> Iterator[tuple[Access, tuple[int, ...]]]:
    """The loads and stores of a statement and of all inside it."""
    for inner in nested([s]):
        if isinstance(inner, Load):
            yield inner.source, inner.result.shape
        elif isinstance(inner, Store):
            yield inner.target, inner.value.shape


def _of_access(a: Access) -> Iterator[Node]:
    yield a.offset
    yield from a.strides
    yield from (n for n in a.limits if n is not None)


def operands(s: Statement) -> Iterator[Node]:
    """The expressions that a statement itself evaluates."""
    if isinstance(s, Load):
        yield from _of_access(s.source)
        yield from (n for n in (s.other,) if n is not None)
    elif isinstance(s, Store):
        yield from _of_access(s.target)
        yield s.value
    elif isinstance(s, Gather):
        yield from (n for n in (s.index, s.mask, s.other) if n is not None)
    elif isinstance(s, Scatter | Atomic):
        yield from (n for n in (s.index, s.value, s.mask) if n is not None)
    elif isinstance(s, Copy):
        yield from _of_access(s.target)
        yield from _of_access(s.source)
    elif isinstance(s, For):
        yield from (s.start, s.stop, s.step)
        for c in s.carried:
            yield from (c.init, c.next)
    elif isinstance(s, If):
        yield s.condition
