"""The pieces and elements of loaded blocks."""

from __future__ import annotations

from hal.core.dtypes import DType
from hal.tile.build import transpose
from hal.tile.kernel import Access, Load
from hal.tile.node import Node, node
from stack.compiler.text.indices import constant_of
from stack.compiler.text.llvm import casts
from stack.compiler.text.llvm.addresses import (
    Valid,
    address,
    effective_count,
    element_guard,
    piece_mask,
    valid,
)
from stack.compiler.text.llvm.ahead import LEAST_NBYTES, LINE_NBYTES
from stack.compiler.text.llvm.shapes import from_elements
from stack.compiler.text.llvm.tiles import TileValues, columns, rows
from stack.compiler.text.llvm.turned import shuffle
from stack.compiler.text.llvm.types import memory, register, suffix, vector

SCRATCH_ZERO = "%zero"
"""Eight zero bytes that an access outside a block's limits reads instead."""
SCRATCH_WASTE = "%waste"
"""Eight bytes that nobody reads, which such an access writes instead."""

NEAREST, SECOND = "3", "2"
"""The caches that lines are asked into. What is needed a row of a page later is best in the nearest
one (softmax over rows of 1024 loses 6 % by the second), what is needed a block or a longer row
later in the second: few lines can be on their way to the nearest one at once, and what is loaded
meanwhile waits for them. Measured on one thread of Zen 4, by the second: softmax over rows of 2048
takes the same time, of 4096 0.92 and of 8192 0.78, cross-entropy over rows of 50,000 0.77, a
transposed copy of 256 MB 0.53."""

NEAR = 4
"""The most elements between two that are loaded with what lies between them."""


def load_element(t: TileValues, s: Load, row: int, column: int) -> str:
    """One element of a loaded block."""
    return casts.from_memory(t.out, _raw_element(t, s, row, column), s.result.dtype, 1)


def _raw_element(t: TileValues, s: Load, row: int, column: int) -> str:
    shape = s.result.shape
    pointer = address(t, s.source, shape, row, column)
    guard = element_guard(t, valid(t, s.source, shape, row), column)
    return guarded_load(t, s.result.dtype, pointer, guard, s.other)


def guarded_load(
    t: TileValues, dtype: DType, pointer: str, guard: str | None, other: Node | None
) -> str:
    """A scalar as it is in memory where the guard holds, else `other` (zero without one), with no
    branch."""
    kind = memory(dtype)
    if guard is not None:
        pointer = t.out.put(f"select i1 {guard}, ptr {pointer}, ptr {SCRATCH_ZERO}")
    raw = t.out.put(f"load {kind}, ptr {pointer}, align {dtype.nbytes}")
    if guard is None or other is None:
        return raw
    fill = casts.to_memory(t.out, t.scalar(other), dtype, 1)
    return t.out.put(f"select i1 {guard}, {kind} {raw}, {kind} {fill}")


def load_piece(t: TileValues, s: Load, row: int, piece: int) -> str:
    """A piece of a loaded block."""
    shape, width = s.result.shape, t.widths(s.result)[piece]
    first = piece * t.lanes
    if width == 1:
        return load_element(t, s, row, first)
    if is_interleaved(t, s.source, shape):
        return _of_a_run(t, s, row, piece)
    stride = constant_of(s.source.strides[-1])
    v = valid(t, s.source, shape, row)
    if stride == 0:
        # A row whose elements are one element in memory.
        scalar, width = t.register(s.result, piece)
        value = t.splat(scalar, load_element(t, s, row, 0), width)
        count = valid(t, s.source, s.result.shape, row).count
        if count is None:
            return value
        mask, kind = piece_mask(t, count, piece * t.lanes, width), vector(scalar, width)
        other = "zeroinitializer"
        if s.other is not None:
            other = t.splat(scalar, t.scalar(s.other), width)
        return t.out.put(f"select {vector('i1', width)} {mask}, {kind} {value}, {kind} {other}")
    if stride == 1:
        whole = v.row is None and v.count is None
        pointer = address(t, s.source, shape, row, first)
        _ask_ahead(t, s, pointer, first)
        if not whole and s.result.dtype.nbytes < t.masked_loads:
            start = staged_row(t, s, v, row)
            pointer = t.out.put(f"getelementptr {memory(s.result.dtype)}, ptr {start}, i64 {first}")
            v = Valid(None, None)
        dtype = s.result.dtype
        if v.row is None and v.count is None:
            return load_near(t, dtype, pointer, None, width, 1)
        mask = piece_mask(t, effective_count(t, v, columns(s.result.shape)), first, width)
        other = "zeroinitializer"
        if s.other is not None:
            other = t.splat(register(dtype), t.scalar(s.other), width)
            other = casts.to_memory(t.out, other, dtype, width)
        raw = load_some(t, dtype, pointer, mask, width, other)
        return casts.from_memory(t.out, raw, dtype, width)
    near = stride is not None and 1 < stride <= NEAR and s.result.dtype.nbytes >= t.masked
    if near and v.row is None and v.count is None:
        pointer = address(t, s.source, shape, row, first)
        return load_near(t, s.result.dtype, pointer, None, width, stride or 1)
    elements = [_raw_element(t, s, row, first + i) for i in range(width)]
    raw = from_elements(t, memory(s.result.dtype), elements)
    return casts.from_memory(t.out, raw, s.result.dtype, width)


def load_some(t: TileValues, dtype: DType, pointer: str, mask: str, width: int, other: str) -> str:
    """As many neighbours from memory, and of another vector where a mask does not hold. Halves go
    as their bits: LLVM takes masked vectors of them apart."""
    scalar = memory(dtype)
    bits = "i16" if scalar == "half" else scalar
    kind, words = vector(scalar, width), vector(bits, width)
    if words != kind and other != "zeroinitializer":
        other = t.out.put(f"bitcast {kind} {other} to {words}")
    raw = t.out.call(
        f"llvm.masked.load.{suffix(bits, width)}.p0",
        words,
        ("ptr", pointer),
        ("i32 immarg", str(dtype.nbytes)),
        (vector("i1", width), mask),
        (words, other),
    )
    return raw if words == kind else t.out.put(f"bitcast {words} {raw} to {kind}")


def store_some(
    t: TileValues, dtype: DType, pointer: str, mask: str, width: int, value: str
) -> None:
    """Write as many neighbours of at least two bytes where a mask holds. Integers go as floats, and
    halves byte by byte: LLVM 22 writes all bytes of what was truncated where it knows that a mask
    leaves one lane."""
    kind, bits, lanes = vector(memory(dtype), width), memory(dtype), width
    if dtype.nbytes == 2:
        mask = shuffle(t, vector("i1", width), mask, "poison", [i // 2 for i in range(2 * width)])
        bits, lanes = "i8", 2 * width
    elif dtype.is_int:
        bits = "double" if dtype.nbytes == 8 else "float"
    words = vector(bits, lanes)
    if words != kind:
        value = t.out.put(f"bitcast {kind} {value} to {words}")
    t.out.call(
        f"llvm.masked.store.{suffix(bits, lanes)}.p0",
        "void",
        (words, value),
        ("ptr", pointer),
        ("i32 immarg", str(dtype.nbytes)),
        (vector("i1", lanes), mask),
    )


def _ask_ahead(t: TileValues, s: Load, pointer: str, first: int) -> None:
    """Ask for a line that is needed later (`ahead`), which may lie anywhere."""
    nbytes = t.env.ahead.get(s)
    if nbytes is not None and first * s.result.dtype.nbytes % LINE_NBYTES == 0:
        cache = NEAREST if nbytes < 2 * LEAST_NBYTES else SECOND
        _ask(t, t.out.put(f"getelementptr i8, ptr {pointer}, i64 {nbytes}"), cache=cache)


def ask(
    t: TileValues,
    access: Access,
    shape: tuple[int, ...],
    writes: bool = False,
    cache: str = NEAREST,
) -> None:
    """Ask for the lines of a tile's rows, from where each begins."""
    apart = LINE_NBYTES // access.memory.dtype.nbytes
    for row in range(rows(shape)):
        for first in range(0, columns(shape), apart):
            _ask(t, address(t, access, shape, row, first), writes, cache)


def _ask(t: TileValues, pointer: str, writes: bool = False, cache: str = NEAREST) -> None:
    # Whether it is to be written, into which cache, data
    how = (("i32 immarg", str(int(writes))), ("i32 immarg", cache), ("i32 immarg", "1"))
    t.out.call("llvm.prefetch.p0", "void", ("ptr", pointer), *how)


def load_near(
    t: TileValues, dtype: DType, pointer: str, mask: str | None, width: int, step: int
) -> str:
    """Elements `step` apart, zero where the mask does not hold, by loads of neighbours. Nothing is
    touched that does not lie between two of them."""
    # LLVM takes vectors of other numbers of elements, and masks of them, apart piece by piece.
    whole = 1 << (width - 1).bit_length()
    padded = dtype.nbytes >= t.masked_loads and whole > width and (step > 1 or mask is None)
    scalar, wide = memory(dtype), step * (whole if padded else width)
    kind, holds = vector(scalar, wide), vector("i1", width)

    def loaded(mask: str | None) -> str:
        if step > 1 or padded:
            lanes = [min(i // step, width) if i % step == 0 else width for i in range(wide)]
            mask = shuffle(t, holds, mask or "splat (i1 true)", "zeroinitializer", lanes)
        if mask is None:
            return t.out.put(f"load {kind}, ptr {pointer}, align {dtype.nbytes}")
        return load_some(t, dtype, pointer, mask, wide, "zeroinitializer")

    if mask is None or step == 1:
        raw = loaded(mask)
    else:
        # Where masks are vectors, one of more lanes costs more than to ask whether it is needed:
        # padding is at the edges of rows.
        full = t.out.put(f"icmp eq i{width} {t.out.put(f'bitcast {holds} {mask} to i{width}')}, -1")
        every, part, after = t.out.label("all"), t.out.label("some"), t.out.label("near")
        t.out.branch(full, every, part)
        found = []
        for label, which in ((every, None), (part, mask)):
            t.out.begin(label)
            found.append(f"[{loaded(which)}, %{label}]")
            t.out.jump(after)
        t.out.begin(after)
        raw = t.out.put(f"phi {kind} {', '.join(found)}")
    if step > 1 or padded:
        raw = shuffle(t, kind, raw, "poison", range(0, width * step, step))
    return casts.from_memory(t.out, raw, dtype, width)


def staged_row(t: TileValues, s: Load, v: Valid, row: int) -> str:
    """A copy on the stack of a row of bytes or halves, where hardware has no masked access for
    them."""
    dtype, shape = s.result.dtype, s.result.shape
    kind, count = memory(dtype), columns(shape)

    def make() -> str:
        buffer = t.out.alloca(kind, count, 64)
        for j, width in enumerate(t.widths(s.result)):
            fill = "zeroinitializer"
            if s.other is not None:
                other = t.splat(register(dtype), t.scalar(s.other), width)
                fill = casts.to_memory(t.out, other, dtype, width)
            place = t.out.put(f"getelementptr {kind}, ptr {buffer}, i64 {j * t.lanes}")
            t.out.do(f"store {vector(kind, width)} {fill}, ptr {place}, align {dtype.nbytes}")
        source = address(t, s.source, shape, row, 0)
        copy_elements(t, buffer, source, effective_count(t, v, count), dtype)
        return buffer

    return t.once(("staged", s.result, row), make)


def copy_elements(t: TileValues, target: str, source: str, count: str, dtype: DType) -> None:
    """Copy an i32 number of elements."""
    wide = t.out.put(f"zext i32 {count} to i64")
    nbytes = wide if dtype.nbytes == 1 else t.out.put(f"mul i64 {wide}, {dtype.nbytes}")
    args = (("ptr", target), ("ptr", source), ("i64", nbytes), ("i1 immarg", "false"))
    t.out.call("llvm.memcpy.p0.p0.i64", "void", *args)


# blocks whose rows are the phases of one run


def is_interleaved(t: TileValues, access: Access, shape: tuple[int, ...]) -> bool:
    """Whether the columns of a matrix lie one after the other, each in one piece, so that it is
    read and written best as one run."""
    if len(shape) != 2 or 1 in shape or access.memory.dtype.nbytes < t.masked:
        return False
    near, far = (constant_of(s) for s in reversed(access.strides))
    return far == 1 and near == shape[0] <= NEAR and access.limits[0] is None


def _of_a_run(t: TileValues, s: Load, row: int, piece: int) -> str:
    """A piece of a row whose neighbours lie between its elements: all rows share a load."""
    shape, dtype, width = s.result.shape, s.result.dtype, t.widths(s.result)[piece]
    count, first = shape[0], piece * t.lanes
    wide, kind = width * count, vector(memory(dtype), width * count)

    def make() -> str:
        v = valid(t, s.source, shape, 0)
        pointer = address(t, s.source, shape, 0, first)
        if v.count is None:
            return t.out.put(f"load {kind}, ptr {pointer}, align {dtype.nbytes}")
        other = "zeroinitializer"
        if s.other is not None:
            other = t.splat(register(dtype), t.scalar(s.other), wide)
        return load_some(t, dtype, pointer, run_mask(t, v.count, first, width, count), wide, other)

    raw = t.once(("run", s.result, piece), make)
    return casts.from_memory(
        t.out, shuffle(t, kind, raw, "poison", range(row, wide, count)), dtype, width
    )


def run_mask(t: TileValues, count: str, first: int, width: int, rows: int) -> str:
    """As `piece_mask`, for the run of all rows."""
    mask = piece_mask(t, count, first, width)
    lanes = [i // rows for i in range(width * rows)]
    return shuffle(t, vector("i1", width), mask, "poison", lanes)


# blocks whose rows lie apart and whose columns lie together


def is_transposed(access: Access, shape: tuple[int, ...]) -> bool:
    """Whether a matrix is read or written best by its columns."""
    if len(shape) != 2 or 1 in shape:
        return False
    near, far = (constant_of(s) for s in reversed(access.strides))
    return far == 1 and near not in (0, 1)


def swapped(access: Access) -> Access:
    """The block with its two axes exchanged."""
    return Access(access.memory, access.offset, access.strides[::-1], access.limits[::-1])


def transposed_load(s: Load) -> tuple[Load, Node]:
    """A load by columns, and its transpose."""
    by_columns = node(
        "var", s.result.type.with_shape(s.result.shape[::-1]), id=("columns", s.result["id"])
    )
    return Load(by_columns, swapped(s.source), s.other), transpose(by_columns, (1, 0))
