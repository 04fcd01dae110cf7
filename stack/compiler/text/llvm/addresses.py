"""Where the elements of a block are, and which of them are valid."""

from __future__ import annotations

from functools import cache

from hal.core.facts import dataclass
from hal.tile.kernel import Access
from hal.tile.node import Node
from stack.compiler.text.indices import constant_of
from stack.compiler.text.llvm.bounds import bounds
from stack.compiler.text.llvm.tiles import TileValues, rows
from stack.compiler.text.llvm.types import memory, vector

# addresses


@cache
def _indices(shape: tuple[int, ...], row: int) -> tuple[int, ...]:
    """The leading indices of a row."""
    found = []
    for d in reversed(shape[:-1]):
        row, i = divmod(row, d)
        found.append(i)
    return tuple(reversed(found))


_MANY = 16
"""Addresses from which on LLVM is not shown what a block's base is computed from. Its reduction of
strength weighs against one another all ways to step to each of them from pass to pass of a loop:
that took ten times as long as all else of such a kernel, for the same code."""


def _base(t: TileValues, access: Access, count: int) -> str:
    """The pointer to a block's first element, from which `count` others are reached."""
    kind = memory(access.memory.dtype)
    pointer = t.env.pointers[access.memory.name]

    def make() -> str:
        found = t.out.put(f"getelementptr {kind}, ptr {pointer}, i64 {t.scalar(access.offset)}")
        if count < _MANY:
            return found
        return t.out.call("llvm.launder.invariant.group.p0", "ptr", ("ptr", found))

    return t.once(("base", pointer, kind, access.offset), make)


def address(t: TileValues, access: Access, shape: tuple[int, ...], row: int, column: int) -> str:
    """The pointer to an element."""
    kind = memory(access.memory.dtype)
    steps = (*zip(_indices(shape, row), access.strides[:-1], strict=True),) if shape else ()
    if shape:
        steps += ((column, access.strides[-1]),)
    near, far = 0, []
    for i, stride in steps:
        fixed = constant_of(stride)
        if fixed is not None:
            near += i * fixed
        elif i:
            far.append((i, stride))
    pointer = _base(t, access, _scattered(access, shape))
    for i, stride in far:
        pointer = _stepped(t, pointer, kind, stride, i)
    return t.out.put(f"getelementptr {kind}, ptr {pointer}, i64 {near}") if near else pointer


def _scattered(access: Access, shape: tuple[int, ...]) -> int:
    """The loads or stores of a block that takes one for each element."""
    apart = shape and constant_of(access.strides[-1]) not in (0, 1)
    return rows(shape) * shape[-1] if apart else 1


def _stepped(t: TileValues, pointer: str, kind: str, stride: Node, times: int) -> str:
    def distance() -> str:
        step = t.scalar(stride)
        return step if times == 1 else t.out.put(f"mul i64 {step}, {times}")

    def make() -> str:
        far = t.once(("times", stride, times), distance)
        return t.out.put(f"getelementptr {kind}, ptr {pointer}, i64 {far}")

    return t.once(("step", pointer, kind, stride, times), make)


# validity


def proven(t: TileValues, limit: Node, size: int) -> bool:
    """Whether a limit is known to be at least `size`."""
    return t.env.assumed.get(limit, 0) >= size or bounds(limit, t.env.ranges)[0] >= size


@dataclass(frozen=True, slots=True)
class Valid:
    """What of a row is valid: `row` an i1 (None: the row is), `count` the i32 number of its first
    columns that are if the row is (None: all)."""

    row: str | None
    count: str | None


def valid(t: TileValues, access: Access, shape: tuple[int, ...], row: int) -> Valid:
    """What of a row of a block is valid."""
    guards = []
    for i, size, limit in zip(_indices(shape, row), shape[:-1], access.limits, strict=False):
        if limit is not None and not proven(t, limit, size):
            guards.append(_above(t, limit, i))
    if not shape:
        return Valid(None, None)
    last, width = access.limits[-1], shape[-1]
    count = (
        None
        if last is None or proven(t, last, width)
        else t.once(("count", last, width), lambda: clamped(t, t.scalar(last), width))
    )
    guard = guards[0] if guards else None
    for other in guards[1:]:
        guard = t.out.put(f"and i1 {guard}, {other}")
    return Valid(guard, count)


def _above(t: TileValues, limit: Node, i: int) -> str:
    def make() -> str:
        return t.out.put(f"icmp sgt i64 {t.scalar(limit)}, {i}")

    return t.once(("above", limit, i), make)


def clamped(t: TileValues, value: str, width: int) -> str:
    """An i64 clamped to 0..width, as i32."""
    top = t.out.elementwise("smin", "i64", 1, value, str(width))
    low = t.out.elementwise("smax", "i64", 1, top, "0")
    return t.out.put(f"trunc i64 {low} to i32")


def effective_count(t: TileValues, v: Valid, width: int) -> str:
    """The number of valid columns, 0 in an invalid row, as i32."""
    if v.row is None:
        assert v.count is not None
        return v.count
    count = v.count or str(width)
    return t.once(
        ("effective", v, width),
        lambda: t.out.put(f"select i1 {v.row}, i32 {count}, i32 0"),
    )


def piece_mask(t: TileValues, count: str, first: int, width: int) -> str:
    """Lanes first..first+width-1 below a count."""

    def make() -> str:
        kind = vector("i32", width)
        lanes = ", ".join(f"i32 {first + i}" for i in range(width))
        limit = t.splat("i32", count, width)
        return t.out.put(f"icmp slt {kind} <{lanes}>, {limit}")

    return t.once(("mask", count, first, width), make)


def element_guard(t: TileValues, v: Valid, column: int) -> str | None:
    """Whether the element in a column of a row is valid, an i1 (None: it is)."""
    if v.count is None:
        return v.row
    guard = t.once(
        ("below", v.count, column), lambda: t.out.put(f"icmp sgt i32 {v.count}, {column}")
    )
    return guard if v.row is None else t.out.put(f"and i1 {v.row}, {guard}")
