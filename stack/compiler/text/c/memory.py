"""Statements that touch memory, as loops over the elements of a block.

A block whose limits all reach its sizes is written without conditions beside the version that
checks each element: the device's compiler makes vector code of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hal.core.dtypes import DType
from hal.tile.build import broadcast, transpose
from hal.tile.kernel import GLOBAL, Access, Atomic, Copy, Gather, Load, Memory, Scatter, Store
from hal.tile.node import Node
from stack.compiler.text.c import atomics, casts
from stack.compiler.text.c.nest import LoopNest
from stack.compiler.text.c.scope import Coordinate, Position, PrivateArray, Scope
from stack.compiler.text.c.types import register


def pointer(target: Memory) -> str:
    """The name of a memory's first element."""
    return f"{target.name}_data"


def space(scope: Scope, target: Memory) -> str:
    """What qualifies pointers into a memory."""
    d = scope.out.dialect
    return d.in_global if target.space == GLOBAL else d.in_scratch


def scalar(scope: Scope, n: Node) -> str:
    """The operand of a scalar."""
    return LoopNest(scope, ()).element(n, ())


def element(scope: Scope, access: Access, at: Position) -> str:
    """The element of a memory at a position of a block."""
    terms = [scalar(scope, access.offset)]
    for i, stride in zip(at, access.strides, strict=True):
        step = scalar(scope, stride)
        if "0" not in (i.text, step.rstrip("L")):
            terms.append(i.text if step == "1L" else f"{i.text} * {step}")
    text = " + ".join(x for x in terms if x != "0L") or "0"
    return f"{pointer(access.memory)}[{text}]"


Body = Callable[[LoopNest, str | None], None]
"""body(nest, condition): what happens at an element that is valid if the condition holds."""


def _versions(
    scope: Scope,
    accesses: Sequence[Access],
    shape: tuple[int, ...],
    body: Body,
    vectors: LoopNest | None = None,
) -> None:
    """The loops over a block, without conditions where the limits allow: then it is `vectors` if
    there is such a nest."""
    axes = zip(*(a.limits for a in accesses), strict=True)
    limits = [[scalar(scope, x) for x in axis if x is not None] for axis in axes]
    whole = " && ".join(
        f"{x} >= {size}" for size, axis in zip(shape, limits, strict=True) for x in axis
    )
    fast = vectors
    if fast is None:
        fast = LoopNest(scope, shape)
        body(fast, None)
    if not whole:
        fast.emit()
        return
    slow = LoopNest(scope, shape)
    inside = [
        f"{i.text} < {x}" for i, axis in zip(slow.position, limits, strict=True) for x in axis
    ]
    body(slow, " && ".join(inside))
    for head, nest in ((f"if ({whole})", fast), ("else", slow)):
        with scope.out.block(head), scope.out.accounted():
            nest.emit()


def _vectors(
    scope: Scope, access: Access, array: PrivateArray, dtype: DType, to_array: bool
) -> LoopNest | None:
    """A nest that moves rows between a memory and an array by vectors; None where elements do not
    lie side by side or change their form."""
    columns = array.shape[-1] if array.shape else 1
    step = access.strides[-1] if access.strides else None
    if columns % 2 or step is None or scalar(scope, step) != "1L":
        return None
    if dtype is DType.BOOL:
        return None
    nest, places = by_vectors(scope, array.shape)
    functions, kind = scope.out.functions, register(scope.out.dialect, dtype)
    for at, width in places:
        there = (space(scope, access.memory), f"&{element(scope, access, at)}")
        here = ("", f"&{array.at(at)}")
        source, target = (there, here) if to_array else (here, there)
        value = functions.load(kind, width, *source)
        nest.do(f"{functions.store(kind, width, *target, value)};")
        nest.move(2 * width * dtype.nbytes)
    return nest


_WIDTHS = (16, 8, 4, 2)
_MOST_COLUMNS = 32
"""Longer rows are moved by a loop."""


def by_vectors(
    scope: Scope, shape: tuple[int, ...], widths: tuple[int, ...] = _WIDTHS
) -> tuple[LoopNest, list[tuple[Position, int]]]:
    """Loops over the rows of an array, and where its vectors are in them with their widths, of
    those allowed."""
    *outer, columns = shape
    if columns <= _MOST_COLUMNS:
        nest = LoopNest(scope, tuple(outer))
        return nest, [((*nest.position, start), width) for start, width in _pieces(columns, widths)]
    width = next(w for w in widths if columns % w == 0)
    nest = LoopNest(scope, (*outer, columns // width))
    *row, part = nest.position
    return nest, [((*row, Coordinate(f"{part.text} * {width}", part.level)), width)]


def _pieces(columns: int, widths: tuple[int, ...]) -> Iterator[tuple[Coordinate, int]]:
    """The vectors of a row, each with where it starts."""
    start = 0
    while start < columns:
        width = next(w for w in widths if start + w <= columns)
        yield Coordinate(str(start), 0), width
        start += width


def _is_turned(scope: Scope, access: Access, shape: tuple[int, ...]) -> bool:
    """Whether the elements of a matrix's columns, and not of its rows, lie side by side."""
    if len(shape) != 2 or 1 in shape:
        return False
    down, across = (scalar(scope, n) for n in access.strides)
    return down == "1L" != across


def load(scope: Scope, s: Load) -> None:
    """Read a block into an array that lies as the block does."""
    access, shape = s.source, s.result.shape
    if not _is_turned(scope, access, shape):
        scope.arrays[s.result] = _loaded(scope, s, access, shape)
        return
    strides, limits = access.strides[::-1], access.limits[::-1]
    turned = _loaded(scope, s, replace(access, strides=strides, limits=limits), shape[::-1])
    scope.arrays[transpose(s.result, (1, 0))] = turned
    scope.arrays[s.result] = PrivateArray(turned.name, shape, lambda at: turned.at(at[::-1]))


def _loaded(scope: Scope, s: Load, access: Access, shape: tuple[int, ...]) -> PrivateArray:
    target, dtype = scope.declare(s.result.type.with_shape(shape)), s.result.dtype
    other = "0" if s.other is None else scalar(scope, s.other)

    def body(nest: LoopNest, condition: str | None) -> None:
        value = casts.from_memory(element(scope, access, nest.position), dtype)
        if condition is not None:
            value = f"{condition} ? {value} : {other}"
        nest.do(f"{target.at(nest.position)} = {value};", dtype)

    vectors = _vectors(scope, access, target, dtype, to_array=True)
    _versions(scope, [access], shape, body, vectors)
    return target


def store(scope: Scope, s: Store) -> None:
    """Write a tile."""

    def body(nest: LoopNest, condition: str | None) -> None:
        value = nest.element(s.value, nest.position)
        guard = "" if condition is None else f"if ({condition}) "
        nest.do(f"{guard}{element(scope, s.target, nest.position)} = {value};", s.value.dtype)

    vectors = None
    if s.value in scope.arrays and scope.arrays[s.value].find is None:
        vectors = _vectors(scope, s.target, scope.arrays[s.value], s.value.dtype, to_array=False)
    _versions(scope, [s.target], s.value.shape, body, vectors)


def copy(scope: Scope, s: Copy) -> None:
    """Copy a block at once: to wait for it takes nothing."""

    def body(nest: LoopNest, condition: str | None) -> None:
        guard = "" if condition is None else f"if ({condition}) "
        target, source = (element(scope, a, nest.position) for a in (s.target, s.source))
        nest.do(f"{guard}{target} = {source};")

    _versions(scope, [s.target, s.source], s.shape, body)


# indexed


def indexed(nest: LoopNest, memory: Memory, index: Node) -> str:
    """The element of a memory at an index of the nest's position."""
    return f"{pointer(memory)}[(long){nest.element(index, nest.position)}]"


def masked(nest: LoopNest, mask: Node | None, shape: tuple[int, ...]) -> str | None:
    """Whether the mask holds at the nest's position; None without one."""
    return None if mask is None else nest.element(broadcast(mask, shape), nest.position)


def gather(scope: Scope, s: Gather) -> None:
    """Read elements at indices."""
    target, shape, dtype = scope.declare(s.result.type), s.index.shape, s.result.dtype
    nest = LoopNest(scope, shape)
    value = casts.from_memory(indexed(nest, s.memory, s.index), dtype)
    mask = masked(nest, s.mask, shape)
    if mask is not None:
        other = "0"
        if s.other is not None:
            other = nest.element(broadcast(s.other, shape), nest.position)
        value = f"{mask} ? {value} : {other}"
    nest.do(f"{target.at(nest.position)} = {value};")
    nest.emit()
    scope.arrays[s.result] = target


def scatter(scope: Scope, s: Scatter) -> None:
    """Write elements at indices, in order: the last of equal ones is kept."""
    nest = LoopNest(scope, s.index.shape)
    mask = masked(nest, s.mask, s.index.shape)
    value = nest.element(s.value, nest.position)
    guard = "" if mask is None else f"if ({mask}) "
    nest.do(f"{guard}{indexed(nest, s.memory, s.index)} = {value};")
    nest.emit()


def atomic(scope: Scope, s: Atomic) -> None:
    """Update elements at indices."""
    nest = LoopNest(scope, s.index.shape)
    mask = masked(nest, s.mask, s.index.shape)
    value = nest.element(s.value, nest.position)
    guard = "" if mask is None else f"if ({mask}) "
    update = atomics.function(scope.out, s.kind, s.memory)
    nest.do(f"{guard}{update}(&{indexed(nest, s.memory, s.index)}, {value});")
    nest.emit()
