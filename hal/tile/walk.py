"""Walking kernels: what statements read, define and contain; mapping the expressions of a part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, get_args

from hal.tile.kernel import (
    Access,
    Atomic,
    Carried,
    Copy,
    For,
    Gather,
    If,
    Kernel,
    Load,
    Memory,
    Scatter,
    Statement,
    Store,
)
from hal.tile.node import Node, node, substitute

Block = tuple[Statement, ...]
Part = TypeVar("Part")

_PARTS = (*get_args(Statement), Access, Carried)


def reads(statement: Statement) -> tuple[Node, ...]:
    """The expressions that a statement uses before its blocks run, in the order of its text."""
    match statement:
        case Load(source=access, other=other):
            return (*_access(access), *_some(other))
        case Store(target=access, value=value):
            return (value, *_access(access))
        case Gather(index=index, mask=mask, other=other):
            return (index, *_some(mask), *_some(other))
        case (
            Scatter(index=index, value=value, mask=mask)
            | Atomic(index=index, value=value, mask=mask)
        ):
            return (value, index, *_some(mask))
        case Copy(target=target, source=source):
            return (*_access(source), *_access(target))
        case For(start=start, stop=stop, step=step, carried=carried):
            return (start, stop, step, *(c.init for c in carried))
        case If(condition=condition):
            return (condition,)
    return ()


def defines(statement: Statement) -> tuple[Node, ...]:
    """The variables that later statements of the same block may use."""
    match statement:
        case Load(result=result) | Gather(result=result):
            return (result,)
        case For(carried=carried):
            return tuple(c.result for c in carried)
    return ()


def accesses(statement: Statement) -> tuple[tuple[Memory, bool, bool], ...]:
    """Each memory that a statement touches, with: does it read, does it write."""
    match statement:
        case Load(source=access):
            return ((access.memory, True, False),)
        case Store(target=access):
            return ((access.memory, False, True),)
        case Gather(memory=memory):
            return ((memory, True, False),)
        case Scatter(memory=memory):
            return ((memory, False, True),)
        case Atomic(memory=memory):
            return ((memory, True, True),)
        case Copy(target=target, source=source):
            return ((source.memory, True, False), (target.memory, False, True))
    return ()


def blocks(statement: Statement) -> tuple[Block, ...]:
    """The blocks inside a statement."""
    match statement:
        case For(body=body):
            return (body,)
        case If(then=then, orelse=orelse):
            return (then, orelse)
    return ()


def statements(block: Block) -> Iterator[Statement]:
    """Every statement of a block and of the blocks inside it, outer ones first."""
    for statement in block:
        yield statement
        for inner in blocks(statement):
            yield from statements(inner)


def map_nodes(part: Part, change: Callable[[Node], Node]) -> Part:
    """A kernel, block, statement or access with every expression in it changed."""
    mapped: Part = _mapped(part, change)
    return mapped


def canonical(kernel: Kernel) -> Kernel:
    """The kernel with its variables numbered 1, 2, 3, ... in the order of their definitions."""
    found = enumerate(_definitions(kernel.body), start=1)
    numbers = {old: node("var", old.type, id=i) for i, old in found}
    used: dict[Node, None] = {}
    map_nodes(kernel, lambda n: used.setdefault(n) or n)
    renumbered = dict(zip(used, substitute(used, numbers), strict=True))
    return map_nodes(kernel, renumbered.__getitem__)


def _definitions(block: Block) -> Iterator[Node]:
    for statement in block:
        if isinstance(statement, For):
            yield statement.index
            yield from (c.var for c in statement.carried)
        for inner in blocks(statement):
            yield from _definitions(inner)
        yield from defines(statement)


def _access(access: Access) -> tuple[Node, ...]:
    return (access.offset, *access.strides, *(n for n in access.limits if n is not None))


def _some(x: Node | None) -> tuple[Node, ...]:
    return () if x is None else (x,)


def _mapped(part: Any, change: Callable[[Node], Node]) -> Any:
    if isinstance(part, Node):
        return change(part)
    if isinstance(part, tuple):
        return tuple(_mapped(x, change) for x in part)
    if isinstance(part, _PARTS):
        return type(part)(*(_mapped(getattr(part, f), change) for f in part.__slots__))
    if isinstance(part, Kernel):
        return Kernel(part.name, part.params, _mapped(part.body, change))
    return part
