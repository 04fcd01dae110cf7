"""Loads from arrays that transfers have filled: the elements are used where they are."""

from __future__ import annotations

from hal.tile.kernel import Access, Load, Memory
from stack.compiler.c import casts, memory
from stack.compiler.c.scope import Array, Position, Scope

_NAME = "hal_near"


def named(number: int) -> str:
    """The name of the array of a transfer."""
    return f"{_NAME}{number}"


def _is_near(m: Memory) -> bool:
    return m.name.startswith(_NAME)


def load(scope: Scope, s: Load) -> None:
    """Nothing is copied where every element is there: between a transfer and the next one to its
    array nobody changes what it brought."""
    if not _is_near(s.source.memory) or not _is_whole(s.source, s.result.shape):
        memory.load(scope, s)
        return
    first = memory.scalar(scope, s.source.offset)
    for stride in s.source.strides:
        memory.scalar(scope, stride)
    access, dtype = s.source, s.result.dtype

    def element(at: Position) -> str:
        return casts.from_memory(scope.out, memory.element(scope, access, at), dtype)

    scope.arrays[s.result] = Array(first, s.result.shape, element)


def _is_whole(access: Access, shape: tuple[int, ...]) -> bool:
    limits = zip(access.limits, shape, strict=True)
    return all(x is None or (x.op == "const" and x["value"] >= size) for x, size in limits)
