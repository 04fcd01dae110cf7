"""Accesses in a core's own way: arrays that transfers have filled are used where they are, and what
no transfer brings is reached in main memory element by element."""

from __future__ import annotations

from math import prod

from hal.tile.kernel import (
    GLOBAL,
    SCRATCHPAD,
    Atomic,
    Copy,
    Gather,
    Load,
    Scatter,
    Statement,
    Store,
    Wait,
)
from hal.tile.walk import accesses
from stack.compiler.lower.scratchpad import masked, transfer
from stack.compiler.text.c import casts, memory
from stack.compiler.text.c.scope import Position, PrivateArray, Scope

_NAME = "hal_near"


def named(number: int) -> str:
    """The name of the array of a transfer."""
    return f"{_NAME}{number}"


def load(scope: Scope, s: Load) -> None:
    """Nothing is copied where every element is there: between a transfer and the next one to its
    array nobody changes what it brought."""
    limits = zip(s.source.limits, s.result.shape, strict=True)
    is_whole = all(x is None or (x.op == "const" and x["value"] >= size) for x, size in limits)
    if not s.source.memory.name.startswith(_NAME) or not is_whole:
        _one_by_one(scope, s, s.result.type.size)
        memory.load(scope, s)
        return
    first = memory.scalar(scope, s.source.offset)
    for stride in s.source.strides:
        memory.scalar(scope, stride)
    access, dtype = s.source, s.result.dtype

    def element(at: Position) -> str:
        return casts.from_memory(memory.element(scope, access, at), dtype)

    scope.arrays[s.result] = PrivateArray(first, s.result.shape, element)


def store(scope: Scope, s: Store) -> None:
    """As in other languages."""
    _one_by_one(scope, s, s.value.type.size)
    memory.store(scope, s)


def gather(scope: Scope, s: Gather) -> None:
    """As in other languages, but for neighbours."""
    if found := masked.neighbours(s):
        masked.gather(scope, s, *found)
        return
    _one_by_one(scope, s, s.index.type.size)
    memory.gather(scope, s)


def scatter(scope: Scope, s: Scatter) -> None:
    """As in other languages."""
    _one_by_one(scope, s, s.index.type.size)
    memory.scatter(scope, s)


def atomic(scope: Scope, s: Atomic) -> None:
    """As in other languages: an element is read and written."""
    _one_by_one(scope, s, 2 * s.index.type.size)
    memory.atomic(scope, s)


def copy(scope: Scope, s: Copy) -> None:
    """A transfer into the scratchpad, where rows of an array lie side by side; else as in other
    languages."""
    to, source = s.target, s.source
    known = len(s.shape) == 2 and all(n.op == "const" for n in (*source.strides, *to.strides))
    spaces = (source.memory.space, to.memory.space)
    if known and spaces == (GLOBAL, SCRATCHPAD) and to.strides[-1]["value"] == 1:
        transfer.start_copy(scope, s)
        return
    _one_by_one(scope, s, prod(s.shape))
    memory.copy(scope, s)


def wait(scope: Scope, s: Wait) -> None:
    """Wait for transfers into the scratchpad."""
    transfer.arrive(scope, "get")


def _one_by_one(scope: Scope, s: Statement, count: int) -> None:
    """Count accesses to main memory that are no DMA."""
    far = sum(m.space == GLOBAL for m, _, _ in accesses(s))
    if far:
        scope.out.spend("direct", count * far)
