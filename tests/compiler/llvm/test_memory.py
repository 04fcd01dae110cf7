"""Blocks in memory against the interpreter: strides, limits, in place, scratch, indices."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.tile.build import (
    Builder,
    Operand,
    add,
    arange,
    binary,
    broadcast,
    cast,
    mul,
    program_id,
    sub,
)
from hal.tile.kernel import Memory
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from stack.compiler.text.llvm import render
from tests.compiler.llvm.agreement import agree
from tests.compiler.llvm.machine import info, run
from tests.draw import sample

F = DType.F32
TYPES = st.sampled_from([F, DType.F16, DType.BF16, DType.F64, DType.I8, DType.BOOL, DType.I64])
REGISTERS = st.sampled_from([16, 32, 64])
few = settings(max_examples=7, deadline=None)


def numbers(dtype: DType, count: int) -> np.ndarray:
    return (np.arange(count) * 7 % 251 - 100).astype(NUMPY[dtype])


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape and strides whose elements do not overlap."""
    rank = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 21 if rank < 3 else 5)) for _ in range(rank))
    strides, step = [0] * len(shape), draw(st.sampled_from([1, 1, 3]))
    for axis in draw(st.permutations(range(len(shape)))):
        strides[axis], step = step, step * (shape[axis] + draw(st.integers(0, 2)))
    return shape, tuple(strides)


def spread(strides: tuple[int, ...], fixed: bool, b: Builder) -> tuple[list[Operand], dict]:
    """Strides as constants, or as scalar parameters."""
    if fixed:
        return list(strides), {}
    names = [f"s{i}" for i in range(len(strides))]
    return [b.scalar(n, DType.I64) for n in names], dict(zip(names, strides, strict=True))


@pytest.mark.slow
@pytest.mark.turns
@few
@given(layouts(), TYPES, REGISTERS, st.booleans(), st.data())
def test_strided_blocks_with_limits(layout, dtype, nbytes, fixed, data) -> None:
    shape, strides = layout
    limits = [data.draw(st.none() | st.integers(-1, d + 1)) for d in shape]
    b = Builder("strided")
    x, y = b.buffer("x", dtype), b.buffer("y", dtype, writes=True)
    steps, scalars = spread(strides, fixed, b)
    bounds: list[Node | None] = []
    for i, limit in enumerate(limits):
        bounds.append(None if limit is None else b.scalar(f"n{i}", DType.I64))
        scalars |= {} if limit is None else {f"n{i}": limit}
    other = b.scalar("other", dtype) if data.draw(st.booleans()) else None
    scalars |= {"other": 1} if other is not None else {}
    tile = b.load(x, 5, shape, steps, bounds, other)
    b.store(y, 3, tile, steps, bounds)
    inner = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    b.store(b.buffer("z", dtype, writes=True), 0, tile, inner)
    count = 6 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True))
    buffers = {"x": numbers(dtype, count), "y": np.zeros(count, NUMPY[dtype])}
    buffers["z"] = np.zeros(int(np.prod(shape)), NUMPY[dtype])
    agree(b.kernel(), (1,), buffers, scalars, vector_nbytes=nbytes)


NARROWED = [
    (DType.I64, DType.I32),
    (DType.I32, DType.I16),
    (DType.I32, DType.I8),
    (DType.I64, DType.BOOL),
    (DType.F64, F),
    (F, DType.F16),
    (F, DType.BF16),
]


@pytest.mark.parametrize(("wide", "narrow"), NARROWED)
@pytest.mark.parametrize("nbytes", [16, 32, 64])
@pytest.mark.parametrize("left", [1, 2])
def test_few_lanes_of_what_is_narrowed_write_nothing_beyond_them(wide, narrow, nbytes, left):
    """LLVM 22 writes a whole word where it knows that a mask leaves one lane of a truncation."""
    lanes = nbytes // wide.nbytes
    b = Builder("narrowed")
    x, y = b.buffer("x", wide), b.buffer("y", narrow, writes=True)
    at = mul(binary("rem", program_id(0), 2), lanes)
    limits = [sub(lanes + left, at)]
    b.store(y, at, cast(b.load(x, at, (lanes,), (1,), limits), narrow), (1,), limits)
    count = 2 * lanes + 8
    buffers = {"x": numbers(wide, count), "y": np.ones(count, NUMPY[narrow])}
    agree(b.kernel(), (2,), buffers, vector_nbytes=nbytes)


@few
@given(
    st.integers(1, 17), st.integers(2, 6), st.sampled_from([F, DType.F64, DType.BF16]), REGISTERS
)
def test_rows_of_scratch_memory_that_follow_one_another(width, height, dtype, nbytes) -> None:
    """A row may be written with what lies behind it, but not over what is read there."""
    count = width * height
    b = Builder("rows")
    panel = b.alloc("panel", dtype, count + 1)
    x, y = b.buffer("x", dtype), b.buffer("y", dtype, writes=True)
    shape, strides = (height, width), (width, 1)
    b.store(panel, count, b.load(x, count))
    b.store(panel, 0, b.load(x, 0, shape, strides), strides)
    b.store(panel, 0, add(b.load(panel, 0, shape, strides), 1), strides)
    b.store(panel, 0, add(b.load(panel, 1, shape, strides), 1), strides)
    b.store(y, 0, b.load(panel, 0, (count + 1,), (1,)), (1,))
    buffers = {"x": numbers(dtype, count + 1), "y": np.zeros(count + 1, NUMPY[dtype])}
    agree(b.kernel(), (1,), buffers, vector_nbytes=nbytes)


@few
@given(st.integers(2, 40), st.integers(2, 5), TYPES, REGISTERS, st.booleans(), st.data())
def test_rows_that_lie_between_each_other(width, height, dtype, nbytes, some, data) -> None:
    b = Builder("interleaved")
    x, y = b.buffer("x", dtype), b.buffer("y", dtype, writes=True)
    limit = b.scalar("n", DType.I64) if some else None
    other = b.scalar("other", dtype) if data.draw(st.booleans()) else None
    steps, bounds = (1, height), (None, limit)
    tile = b.load(x, 3, (height, width), steps, bounds, other)
    b.store(y, 2, tile, steps, bounds)
    b.store(b.buffer("z", dtype, writes=True), 0, tile, (width, 1))
    count = height * width
    buffers = {"x": numbers(dtype, count + 5)}
    buffers |= {"y": np.zeros(count + 5, NUMPY[dtype]), "z": np.zeros(count, NUMPY[dtype])}
    scalars = {"n": data.draw(st.integers(-1, width + 1))} if some else {}
    scalars |= {"other": 1} if other is not None else {}
    agree(b.kernel(), (1,), buffers, scalars, vector_nbytes=nbytes)


@few
@given(st.integers(1, 40), st.integers(1, 3), TYPES)
def test_rows_repeat_with_stride_zero(width, height, dtype) -> None:
    b = Builder("repeat")
    x, y = b.buffer("x", dtype), b.buffer("y", dtype, writes=True)
    n = b.scalar("n", DType.I64)
    tile = b.load(x, program_id(), (height, width), (1, 0), (None, n))
    b.store(y, mul(program_id(), height * width), tile, (width, 1))
    buffers = {"x": numbers(dtype, height + 1), "y": np.zeros(2 * height * width, NUMPY[dtype])}
    agree(b.kernel(), (2,), buffers, {"n": width - 1})


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I8])
@pytest.mark.parametrize("count", [1, 63, 64, 200])
def test_in_place_elementwise(dtype: DType, count: int) -> None:
    b = Builder("in_place")
    x, y = b.buffer("x", dtype), b.buffer("y", dtype, writes=True)
    start = mul(program_id(), 64)
    limit = sub(count, start)
    tile = b.load(x, start, (64,), (1,), (limit,))
    b.store(y, start, binary("add", tile, tile), (1,), (limit,))
    memory = numbers(dtype, count)
    want = memory + memory
    run(b.kernel(), (-(-count // 64),), {"x": memory, "y": memory})
    np.testing.assert_array_equal(memory, want)


def test_a_second_output_reads_what_was_there_before_the_first_was_written() -> None:
    b = Builder("twice")
    x, y, z = b.buffer("x", F), b.buffer("y", F, writes=True), b.buffer("z", F, writes=True)
    tile = b.load(x, 0, (20,), (1,))
    other = b.load(z, 0, (20,), (1,))
    b.store(y, 0, mul(other, 2.0), (1,))
    b.store(z, 0, add(tile, 1.0), (1,))
    a, c = numbers(F, 20), numbers(F, 20) + 5
    want_a, want_c = c * 2, a + 1
    run(b.kernel(), (1,), {"x": a, "y": a, "z": c})
    np.testing.assert_array_equal(a, want_a)
    np.testing.assert_array_equal(c, want_c)


def test_a_reversed_store_reads_all_first() -> None:
    b = Builder("reverse")
    x = b.buffer("x", F, writes=True)
    tile = b.load(x, 0, (24,), (1,))
    b.store(x, 23, tile, (-1,))
    agree(b.kernel(), (1,), {"x": numbers(F, 24)})


@few
@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([F, DType.BF16, DType.I64]))
def test_scratch_and_copies(height, width, dtype) -> None:
    b = Builder("scratch")
    x, y = b.buffer("x", dtype), b.buffer("y", dtype, writes=True)
    pad = b.alloc("pad", dtype, 100)
    n = b.scalar("n", DType.I64)
    b.store(pad, 0, b.load(x, 0, (100,), (0,)), (1,))
    b.copy(b.access(pad, 0, (10, 1)), b.access(x, 1, (1, 9), (None, n)), (height, width), 1)
    b.wait(1)
    b.barrier()
    b.copy(b.access(y, 0, (10, 1), (None, n)), b.access(pad, 0, (10, 1)), (10, 10), 0)
    b.wait()
    buffers = {"x": numbers(dtype, 100), "y": np.zeros(100, NUMPY[dtype])}
    agree(b.kernel(), (1,), buffers, {"n": 7})


def indexed(dtype: DType, shape: tuple[int, ...]) -> tuple[Builder, Memory, Memory, Node, Node]:
    b = Builder("indexed")
    x, y = b.buffer("x", dtype), b.buffer("y", dtype, writes=True)
    i = b.buffer("i", DType.I32)
    strides = (shape[-1], 1)[-len(shape) :]
    index = b.load(i, 0, shape, strides)
    return b, x, y, cast(index, DType.I64), binary("lt", index, 30)


@few
@given(st.sampled_from([(1,), (3,), (13,), (2, 9)]), TYPES, REGISTERS, st.booleans())
def test_gather_and_scatter(shape, dtype, nbytes, masked) -> None:
    b, x, y, index, mask = indexed(dtype, shape)
    found = b.gather(
        x, index, mask if masked else None, b.scalar("other", dtype) if masked else None
    )
    b.scatter(y, index, found, mask if masked else None)
    size = int(np.prod(shape))
    buffers = {"x": numbers(dtype, 60), "y": np.zeros(60, NUMPY[dtype])}
    buffers["i"] = np.random.default_rng(size).permutation(60)[:size].astype(np.int32)
    agree(b.kernel(), (1,), buffers, {"other": 1} if masked else {}, vector_nbytes=nbytes)


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64])
@pytest.mark.parametrize("size", [5, 40])
def test_what_words_in_memory_choose(dtype: DType, size: int) -> None:
    """Each word is read as a scalar, of which an address and its guard are computed: what was
    computed of vectors would be taken apart."""
    b = Builder("chosen")
    x, y, i = b.buffer("x", F), b.buffer("y", F, writes=True), b.buffer("i", dtype)
    word = cast(b.load(i, 0, (size,), (1,)), DType.I64)
    at = binary("sub", binary("mul", word, 2), 3)
    inside = binary("and", binary("le", 0, at), binary("lt", at, 60))
    b.store(y, 0, b.gather(x, binary("add", at, 4), inside), (1,))
    words = np.random.default_rng(size).integers(-20, 50, size).astype(NUMPY[dtype])
    buffers = {"x": numbers(F, 64), "y": np.ones(size, np.float32), "i": words}
    agree(b.kernel(), (1,), buffers)
    text = render(b.kernel(), info()).text
    assert "masked.gather" not in text
    assert "extractelement" not in text


@pytest.mark.parametrize(
    ("step", "width", "dtype"),
    sample("neighbours", product(range(1, 6), (7, 33), (DType.F32, DType.F64, DType.BF16)), 10),
)
def test_neighbours_some_steps_apart(step: int, width: int, dtype: DType) -> None:
    """As a window sees them: by their indices, some before and behind the buffer left out, and as a
    block."""
    b, last = Builder("near"), (width - 1) * step
    x, y = b.buffer("x", dtype), b.buffer("y", dtype, writes=True)
    at = binary(
        "add", binary("mul", broadcast(arange(width), (1, width)), step), b.scalar("lo", DType.I64)
    )
    inside = binary("and", binary("le", 0, at), binary("lt", at, last + 1))
    b.store(y, 0, b.gather(x, at, inside), (width, 1))
    b.store(y, width, b.load(x, 0, (width,), (step,)), (1,))
    for lo in (-3, last // 2):
        buffers = {"x": numbers(dtype, last + 1), "y": np.zeros(2 * width, NUMPY[dtype])}
        for nbytes in (32, 64):
            agree(b.kernel(), (1,), buffers, {"lo": lo}, vector_nbytes=nbytes)


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.BOOL])
@pytest.mark.parametrize("kind", ["add", "min", "max", "exchange"])
def test_atomics_on_equal_indices(dtype: DType, kind: str) -> None:
    b = Builder("atomic")
    x, y = b.buffer("x", dtype), b.buffer("y", dtype, writes=True)
    index = binary("rem", arange(13), 4)
    b.atomic(kind, y, index, b.load(x, 0, (13,), (1,)), binary("lt", arange(13), 11))
    buffers = {"x": numbers(dtype, 13), "y": numbers(dtype, 4)}
    agree(b.kernel(), (1,), buffers)


@pytest.mark.parametrize(("strides", "hidden"), [((16, 1), False), ((192, 24), True)])
def test_bases_of_many_scattered_elements_are_hidden_from_the_reduction_of_strength(
    strides, hidden
) -> None:
    """It took most of the time that such kernels took to compile, for the same code."""
    b = Builder("scattered")
    x, y = b.buffer("x", F), b.buffer("y", F, writes=True)

    def step(i: Node) -> None:
        tile = b.load(x, add(mul(binary("div", i, 2), 3), i), (4, 8), strides)
        b.store(y, mul(i, 32), tile, (8, 1))

    b.loop(0, 4, 1, step)
    kernel = b.kernel()
    agree(kernel, (1,), {"x": numbers(F, 800), "y": np.zeros(128, np.float32)})
    assert ("llvm.launder" in render(kernel, info()).text) is hidden
