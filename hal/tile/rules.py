"""The rules of single statements: operand types, ranks, shapes, kinds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from hal.core.dtypes import DType
from hal.tile.kernel import (
    SCRATCHPAD,
    Access,
    Alloc,
    Atomic,
    Barrier,
    Copy,
    For,
    Gather,
    If,
    Load,
    Memory,
    Scatter,
    Statement,
    Store,
    Wait,
)
from hal.tile.node import Node, Type
from hal.tile.ops import ATOMICS
from hal.tile.types import MOST_ELEMENTS

IDENTIFIER = re.compile(r"(?!(?:inf|nan|true|false|_)\b)[A-Za-z_][A-Za-z0-9_]*")
"""What kernels, parameters and scratch memories may be called."""

I64 = Type((), DType.I64)
Problems = Iterator[str]


def statement_problems(statement: Statement) -> Problems:
    """The rules that a statement breaks by itself, in words."""
    return _RULES[type(statement)](statement)


def name_problems(name: str) -> Problems:
    """What is wrong with a name."""
    if not IDENTIFIER.fullmatch(name):
        yield f"{name!r} is not a name; use letters, digits and _"


def _access(access: Access, shape: tuple[int, ...]) -> Problems:
    for what, values in (("stride", access.strides), ("limit", access.limits)):
        if len(values) != len(shape):
            yield f"{len(values)} {what}s for a tile of {len(shape)} axes; give one per axis"
    scalars = [("offset", access.offset), *(("stride", s) for s in access.strides)]
    for what, value in (*scalars, *(("limit", x) for x in access.limits if x is not None)):
        if value.type != I64:
            yield f"the {what} is {value.type}; it must be an i64 scalar"


def _matches(what: str, value: Node, memory: Memory) -> Problems:
    if value.dtype is not memory.dtype:
        yield f"the {what} is {value.type}, but {memory.name} holds {memory.dtype.short}; cast it"


def _other(other: Node | None, memory: Memory) -> Problems:
    if other is not None and other.type != Type((), memory.dtype):
        yield f"`other` is {other.type}; it must be a scalar of {memory.dtype.short}"


def _indices(index: Node, mask: Node | None, shape: tuple[int, ...]) -> Problems:
    if index.dtype not in (DType.I64, DType.I32):
        yield f"indices are {index.dtype.short}; they must be i64 or i32"
    if index.shape != shape:
        yield f"indices are {index.type} for a tile of shape {list(shape)}; they must match"
    if mask is not None and mask.type != Type(shape, DType.BOOL):
        yield f"the mask is {mask.type}; it must be {Type(shape, DType.BOOL)}"


def _load(x: Load) -> Problems:
    yield from _matches("result", x.result, x.source.memory)
    yield from _access(x.source, x.result.shape)
    yield from _other(x.other, x.source.memory)


def _store(x: Store) -> Problems:
    yield from _matches("value", x.value, x.target.memory)
    yield from _access(x.target, x.value.shape)


def _gather(x: Gather) -> Problems:
    yield from _matches("result", x.result, x.memory)
    yield from _indices(x.index, x.mask, x.result.shape)
    yield from _other(x.other, x.memory)


def _scatter(x: Scatter | Atomic) -> Problems:
    yield from _matches("value", x.value, x.memory)
    yield from _indices(x.index, x.mask, x.value.shape)


def _atomic(x: Atomic) -> Problems:
    if x.kind not in ATOMICS:
        yield f"there is no atomic {x.kind!r}; the kinds are {', '.join(ATOMICS)}"
    if x.memory.dtype is DType.BOOL:
        yield "atomics do not take bool; use i32"
    yield from _scatter(x)


def _alloc(x: Alloc) -> Problems:
    m = x.memory
    yield from name_problems(m.name)
    if m.space != SCRATCHPAD:
        yield f"memory {m.name} is in space {m.space!r}; an Alloc makes {SCRATCHPAD!r} memory"
    if m.size < 1:
        yield f"memory {m.name} has size {m.size}; it must be at least 1"
    if m.size > MOST_ELEMENTS:
        yield f"memory {m.name} has size {m.size}; it may be at most {MOST_ELEMENTS}"


def _copy(x: Copy) -> Problems:
    a, b = x.target.memory, x.source.memory
    if a.dtype is not b.dtype:
        yield f"it copies {b.dtype.short} to {a.dtype.short}; load, cast and store instead"
    if x.channel < 0:
        yield f"channel {x.channel} is negative"
    if not all(d >= 1 for d in x.shape):
        yield f"shape {list(x.shape)} has a size below 1"
    if prod(x.shape) > MOST_ELEMENTS:
        yield f"shape {list(x.shape)} has more than {MOST_ELEMENTS} elements"
    yield from _access(x.target, x.shape)
    yield from _access(x.source, x.shape)


def _for(x: For) -> Problems:
    for what, value in (("index", x.index), ("start", x.start), ("stop", x.stop), ("step", x.step)):
        if value.type != I64:
            yield f"the loop's {what} is {value.type}; it must be an i64 scalar"
    if x.step.op == "const" and x.step["value"] <= 0:
        yield f"the loop's step is {x.step['value']}; it must be positive"
    for c in x.carried:
        if not c.var.type == c.init.type == c.next.type == c.result.type:
            yield (
                f"a carried value is {c.init.type} first, {c.var.type} inside, {c.next.type} next "
                f"and {c.result.type} after the loop; the types must be the same"
            )


def _if(x: If) -> Problems:
    if x.condition.type != Type((), DType.BOOL):
        yield f"the condition is {x.condition.type}; it must be a bool scalar"


def _nothing(x: Wait | Barrier) -> Problems:
    return iter(())


_RULES: Mapping[type[Any], Callable[[Any], Problems]] = MappingProxyType(
    {
        Load: _load,
        Store: _store,
        Gather: _gather,
        Scatter: _scatter,
        Atomic: _atomic,
        Alloc: _alloc,
        Copy: _copy,
        Wait: _nothing,
        For: _for,
        If: _if,
        Barrier: _nothing,
    }
)
