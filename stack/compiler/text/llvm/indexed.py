"""Gather, scatter and atomics, element by element, and block copies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hal.core.dtypes import DType
from hal.tile.build import broadcast
from hal.tile.kernel import Access, Atomic, Copy, Gather, Memory, Scatter
from hal.tile.node import Node
from stack.compiler.text.indices import constant_of
from stack.compiler.text.llvm import arith, casts
from stack.compiler.text.llvm.elementwise import is_of_words
from stack.compiler.text.llvm.guards import counted, guarded
from stack.compiler.text.llvm.lines import line_of
from stack.compiler.text.llvm.loads import (
    NEAR,
    SCRATCH_WASTE,
    SCRATCH_ZERO,
    guarded_load,
    load_near,
)
from stack.compiler.text.llvm.shapes import from_elements
from stack.compiler.text.llvm.tiles import TileValues, columns, rows
from stack.compiler.text.llvm.types import memory, suffix, vector


def _pointer(t: TileValues, target: Memory, index: Node, row: int, column: int) -> str:
    place = arith.convert(t.out, t.element(index, row, column), index.dtype, DType.I64, 1)
    kind = memory(target.dtype)
    return t.out.put(f"getelementptr {kind}, ptr {t.env.pointers[target.name]}, i64 {place}")


def _guard(
    t: TileValues, mask: Node | None, shape: tuple[int, ...], row: int, column: int
) -> str | None:
    return None if mask is None else t.element(broadcast(mask, shape), row, column)


def gather_element(t: TileValues, s: Gather, row: int, column: int) -> str:
    """One gathered element."""
    return casts.from_memory(t.out, _raw_element(t, s, row, column), s.memory.dtype, 1)


def _raw_element(t: TileValues, s: Gather, row: int, column: int) -> str:
    pointer = _pointer(t, s.memory, s.index, row, column)
    guard = _guard(t, s.mask, s.index.shape, row, column)
    value, kind = guarded_load(t, s.memory.dtype, pointer, guard, None), memory(s.memory.dtype)
    if guard is None or s.other is None:
        return value
    other = t.element(broadcast(s.other, s.index.shape), row, column)
    other = casts.to_memory(t.out, other, s.memory.dtype, 1)
    return t.out.put(f"select i1 {guard}, {kind} {value}, {kind} {other}")


def gather_piece(t: TileValues, s: Gather, row: int, piece: int) -> str:
    """A piece of gathered elements. A gather of words is left to the hardware's own, but where the
    places are words from memory themselves."""
    scalar, width = t.register(s.result, piece)
    first, nbytes = piece * t.lanes, s.memory.dtype.nbytes
    apart = width == 1 or is_of_words(t, s.index)
    if not apart and nbytes >= t.masked_loads and s.index.dtype is DType.I64 and s.other is None:
        line = line_of(t, s.index, row)
        if line is not None and 1 <= line[1] <= NEAR:
            return _gather_near(t, s, row, piece, *line)
    if not apart and nbytes >= 4:
        kind, pointers = vector(scalar, width), vector("ptr", width)
        wide = arith.convert(t.out, t.piece(s.index, row, piece), s.index.dtype, DType.I64, width)
        base = t.env.pointers[s.memory.name]
        places = t.out.put(f"getelementptr {scalar}, ptr {base}, {vector('i64', width)} {wide}")
        mask = None
        if s.mask is not None:
            # Where hardware gathers element by element, a mask is a branch for each; with this,
            # none has any.
            mask = t.piece(broadcast(s.mask, s.index.shape), row, piece)
            nowhere = t.splat("ptr", SCRATCH_ZERO, width)
            chosen = f"{vector('i1', width)} {mask}, {pointers} {places}, {pointers} {nowhere}"
            places = t.out.put(f"select {chosen}")
        found = t.out.call(
            f"llvm.masked.gather.{suffix(scalar, width)}.{suffix('ptr', width)}",
            kind,
            (pointers, places),
            ("i32 immarg", str(s.memory.dtype.nbytes)),
            (vector("i1", width), "splat (i1 true)"),
            (kind, "poison"),
        )
        if mask is None or s.other is None:
            return found
        other = t.piece(broadcast(s.other, s.index.shape), row, piece)
        return t.out.put(f"select {vector('i1', width)} {mask}, {kind} {found}, {kind} {other}")
    elements = [_raw_element(t, s, row, first + i) for i in range(width)]
    raw = from_elements(t, memory(s.memory.dtype), elements)
    return casts.from_memory(t.out, raw, s.memory.dtype, width)


def _gather_near(t: TileValues, s: Gather, row: int, piece: int, first: str, step: int) -> str:
    """A piece of elements that lie near each other."""
    width = t.widths(s.result)[piece]
    place = t.out.put(f"add i64 {first}, {piece * t.lanes * step}")
    kind, base = memory(s.memory.dtype), t.env.pointers[s.memory.name]
    pointer = t.out.put(f"getelementptr {kind}, ptr {base}, i64 {place}")
    mask = None if s.mask is None else t.piece(broadcast(s.mask, s.index.shape), row, piece)
    return load_near(t, s.memory.dtype, pointer, mask, width, step)


def _each(t: TileValues, s: Scatter | Atomic) -> Iterator[tuple[str, str, str | None]]:
    """The pointer, value and guard of every element in row-major order."""
    shape = s.index.shape
    for row in range(rows(shape)):
        for column in range(columns(shape)):
            pointer = _pointer(t, s.memory, s.index, row, column)
            value = t.element(s.value, row, column)
            yield pointer, value, _guard(t, s.mask, shape, row, column)


def scatter(t: TileValues, s: Scatter) -> None:
    """Store each element at its index; the last of equal indices is kept."""
    dtype = s.memory.dtype
    for pointer, value, guard in _each(t, s):
        raw = casts.to_memory(t.out, value, dtype, 1)
        target = pointer
        if guard is not None:
            target = t.out.put(f"select i1 {guard}, ptr {pointer}, ptr {SCRATCH_WASTE}")
        t.out.do(f"store {memory(dtype)} {raw}, ptr {target}, align {dtype.nbytes}")


_RMW = {"add": "add", "min": "min", "max": "max", "exchange": "xchg"}


def atomic(t: TileValues, s: Atomic) -> None:
    """Combine each element with the one in memory."""
    dtype = s.memory.dtype
    native = (s.kind in ("add", "exchange") and dtype in (DType.F32, DType.F64)) or dtype.is_int
    native = native or s.kind == "exchange"
    combine = _fetch_and if native else _compare_and_swap
    for pointer, value, guard in _each(t, s):
        guarded(t, guard, partial(combine, t, s.kind, dtype, pointer, value))


def _fetch_and(t: TileValues, kind: str, dtype: DType, pointer: str, value: str) -> None:
    name = _RMW[kind]
    if kind == "add" and dtype.is_float:
        name = "fadd"
    elif kind in ("min", "max") and dtype.kind == "u":
        name = f"u{name}"
    raw = casts.to_memory(t.out, value, dtype, 1)
    t.out.put(
        f"atomicrmw {name} ptr {pointer}, {memory(dtype)} {raw} monotonic, align {dtype.nbytes}"
    )


def _compare_and_swap(t: TileValues, kind: str, dtype: DType, pointer: str, value: str) -> None:
    """Retry until nobody wrote between the read and the write: for what hardware cannot combine."""
    bits, raw_type = f"i{dtype.bits}", memory(dtype)
    loop, done = t.out.label("retry"), t.out.label("next")
    first = t.out.put(f"load atomic {bits}, ptr {pointer} monotonic, align {dtype.nbytes}")
    before = t.out.block
    t.out.jump(loop)
    t.out.begin(loop)
    old, place = t.out.name(), t.out.hole()
    raw = old if raw_type == bits else t.out.put(f"bitcast {bits} {old} to {raw_type}")
    current = casts.from_memory(t.out, raw, dtype, 1)
    combined = arith.combine(t.out, kind, dtype, 1, current, value)
    new = casts.to_memory(t.out, combined, dtype, 1)
    new = new if raw_type == bits else t.out.put(f"bitcast {raw_type} {new} to {bits}")
    pair = t.out.put(
        f"cmpxchg ptr {pointer}, {bits} {old}, {bits} {new} monotonic monotonic, "
        f"align {dtype.nbytes}"
    )
    seen = t.out.put(f"extractvalue {{ {bits}, i1 }} {pair}, 0")
    success = t.out.put(f"extractvalue {{ {bits}, i1 }} {pair}, 1")
    t.out.fill(place, f"{old} = phi {bits} [{first}, %{before}], [{seen}, %{loop}]")
    t.out.branch(success, done, loop)
    t.out.begin(done)


# copies


def copy(t: TileValues, s: Copy) -> None:
    """Copy a block by loops over its axes, the last one as bytes where both sides are
    contiguous."""
    _copy_axis(t, s, 0, _start(t, s.target), _start(t, s.source))


def _start(t: TileValues, access: Access) -> str:
    kind, base = memory(access.memory.dtype), t.env.pointers[access.memory.name]
    return t.out.put(f"getelementptr {kind}, ptr {base}, i64 {t.scalar(access.offset)}")


def _copy_axis(t: TileValues, s: Copy, axis: int, target: str, source: str) -> None:
    dtype = s.target.memory.dtype
    kind = memory(dtype)
    if axis == len(s.shape):
        value = t.out.put(f"load {kind}, ptr {source}, align {dtype.nbytes}")
        t.out.do(f"store {kind} {value}, ptr {target}, align {dtype.nbytes}")
        return
    # How many indices of an axis are valid on both sides.
    count = str(s.shape[axis])
    for access in (s.target, s.source):
        limit = access.limits[axis]
        if limit is not None:
            count = t.out.elementwise("smin", "i64", 1, count, t.scalar(limit))
    extent = t.out.elementwise("smax", "i64", 1, count, "0")
    strides = s.target.strides[axis], s.source.strides[axis]
    if axis == len(s.shape) - 1 and constant_of(strides[0]) == constant_of(strides[1]) == 1:
        nbytes = t.out.put(f"mul i64 {extent}, {dtype.nbytes}")
        memcpy = "llvm.memcpy.p0.p0.i64"
        args = (("ptr", target), ("ptr", source), ("i64", nbytes), ("i1 immarg", "false"))
        t.out.call(memcpy, "void", *args)
        return
    steps = [t.scalar(n) for n in strides]

    def body(index: str) -> None:
        there, here = (t.out.put(f"mul i64 {index}, {step}") for step in steps)
        to = t.out.put(f"getelementptr {kind}, ptr {target}, i64 {there}")
        of = t.out.put(f"getelementptr {kind}, ptr {source}, i64 {here}")
        _copy_axis(t, s, axis + 1, to, of)

    counted(t, extent, body)
