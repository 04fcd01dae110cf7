"""Movement and contraction of tiles against the interpreter, over shapes, types and register
widths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.tile.build import (
    Builder,
    add,
    binary,
    broadcast,
    cast,
    const,
    dot,
    reduce,
    reshape,
    scan,
    transpose,
)
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from hal.tile.ops import COMBINE
from hal.tile.verify import verify
from stack.compiler.text.llvm import render
from stack.compiler.units import into_groups, stacked
from tests.compiler.llvm import machine
from tests.compiler.llvm.agreement import agree

TYPES = st.sampled_from([DType.F32, DType.BF16, DType.F64, DType.I8, DType.BOOL, DType.U64])
REGISTERS = st.sampled_from([16, 32, 64])
few = settings(max_examples=9, deadline=None)
many = settings(max_examples=30, deadline=None)


def kinds(dtype: DType) -> st.SearchStrategy[str]:
    """The kinds of combination that a type has: sums and products of truth values are refused."""
    return st.sampled_from(["min", "max"] if dtype is DType.BOOL else list(COMBINE))


def dense(shape: tuple[int, ...]) -> list[int]:
    return [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]


def numbers(dtype: DType, count: int) -> np.ndarray:
    rng = np.random.default_rng(count)
    return rng.integers(-3, 4, count).astype(NUMPY[dtype])


def apply(dtype, shape, nbytes, function, **tolerance) -> None:
    """Run function(tile) on a block of small integers."""
    b = Builder("apply")
    x, y = b.buffer("x", dtype), b.buffer("y", dtype, writes=True)
    result = function(b.load(x, 0, shape, dense(shape)))
    b.store(y, 0, result, dense(result.shape))
    kernel = b.kernel()
    verify(kernel)
    buffers = {
        "x": numbers(dtype, int(np.prod(shape))),
        "y": np.zeros(result.type.size, NUMPY[dtype]),
    }
    agree(kernel, (1,), buffers, vector_nbytes=nbytes, **tolerance)


@few
@given(
    st.sampled_from(
        [
            ((24,), (2, 12)),
            ((6, 4), (24,)),
            ((3, 10), (10, 3)),
            ((18,), (18, 1)),
            ((18, 1), (1, 18)),
            ((2, 3, 5), (5, 6)),
            ((1,), ()),
            ((7, 1), (7,)),
        ]
    ),
    TYPES,
    REGISTERS,
)
def test_reshape(shapes, dtype, nbytes) -> None:
    apply(dtype, shapes[0], nbytes, lambda x: reshape(x, shapes[1]))


@pytest.mark.slow
@pytest.mark.turns
@many
@given(st.lists(st.integers(1, 19), min_size=2, max_size=2), TYPES, REGISTERS)
def test_transpose_of_matrices(shape, dtype, nbytes) -> None:
    apply(
        dtype,
        tuple(shape),
        nbytes,
        lambda x: (
            add(transpose(x, (1, 0)), transpose(x, (1, 0)))
            if dtype is not DType.BOOL
            else transpose(x, (1, 0))
        ),
    )


@pytest.mark.slow
@pytest.mark.turns
@many
@given(
    st.integers(1, 9),
    st.integers(1, 37),
    st.booleans(),
    st.sampled_from(["read", "computed", "rounded"]),
    st.sampled_from([DType.BF16, DType.F16, DType.I8, DType.U8, DType.I16]),
    REGISTERS,
)
def test_neighbours_in_groups(groups, columns, by_columns, made, dtype, nbytes) -> None:
    """As a matrix unit reads an operand: of rows as they lie in memory, and of rows that lie as
    columns there."""
    together = 4 // dtype.nbytes
    k, stored = groups * together, dtype if made != "rounded" or dtype.is_int else DType.F32
    b = Builder("groups")
    x, y = b.buffer("x", stored), b.buffer("y", dtype, writes=True)
    tile = b.load(x, 0, (k, columns), (1, k) if by_columns else (columns, 1))
    tile = add(tile, 1) if made == "computed" else cast(tile, dtype)
    b.store(y, 0, into_groups(tile, together), (columns * together, 1))
    kernel = b.kernel()
    verify(kernel)
    numbers = np.arange(k * columns) % 251 - 125.3
    buffers = {
        "x": (numbers if stored.is_float else np.round(numbers)).astype(NUMPY[stored]),
        "y": np.zeros(k * columns, NUMPY[dtype]),
    }
    agree(kernel, (1,), buffers, vector_nbytes=nbytes)


def test_rows_that_are_stacked() -> None:
    def twice(x: Node) -> Node:
        return stacked([x, binary("mul", x, 2), binary("mul", x, 3)])

    apply(DType.F32, (1, 21), 32, twice)


def test_what_lies_as_columns_and_is_turned_is_read_as_it_lies() -> None:
    """No matter what is computed of its elements in between."""
    b = Builder("turned")
    x, y = b.buffer("x", DType.F32), b.buffer("y", DType.F32, writes=True)
    columns = b.load(x, 0, (16, 16), (1, 16))
    changed = add(binary("mul", columns, columns), 1)
    b.store(y, 0, transpose(changed, (1, 0)), (16, 1))
    assert "shufflevector" not in render(b.kernel(), machine.info()).text


@few
@given(st.lists(st.integers(1, 6), min_size=3, max_size=3), st.permutations(range(3)), TYPES)
def test_transpose_of_cubes(shape, perm, dtype) -> None:
    apply(dtype, tuple(shape), 32, lambda x: transpose(x, tuple(perm)))


@few
@given(
    st.sampled_from(
        [
            ((), (3, 9)),
            ((1,), (20,)),
            ((5, 1), (5, 11)),
            ((1, 11), (5, 11)),
            ((11,), (3, 11)),
            ((2, 1, 9), (2, 3, 9)),
            ((4, 1), (2, 4, 9)),
        ]
    ),
    TYPES,
    REGISTERS,
)
def test_broadcast(shapes, dtype, nbytes) -> None:
    apply(dtype, shapes[0], nbytes, lambda x: broadcast(x, shapes[1]))


@pytest.mark.slow
@pytest.mark.turns
@many
@given(
    st.lists(st.integers(1, 21), min_size=1, max_size=3),
    st.data(),
    TYPES,
    REGISTERS,
)
def test_reduce(shape, data, dtype, nbytes) -> None:
    kind = data.draw(kinds(dtype))
    shape = shape if int(np.prod(shape)) < 500 else shape[:2]
    axis = data.draw(st.integers(0, len(shape) - 1))
    ulp = 2 * max(shape) if kind in ("sum", "prod") and dtype.is_float else 0
    apply(dtype, tuple(shape), nbytes, lambda x: reduce(kind, x, axis), ulp=ulp, scale=1.0)


@pytest.mark.slow
@pytest.mark.turns
@many
@given(
    st.lists(st.integers(1, 21), min_size=1, max_size=2),
    st.data(),
    TYPES,
    REGISTERS,
)
def test_scan(shape, data, dtype, nbytes) -> None:
    kind = data.draw(kinds(dtype))
    axis = data.draw(st.integers(0, len(shape) - 1))
    ulp = 2 * max(shape) if kind in ("sum", "prod") and dtype.is_float else 0
    apply(dtype, tuple(shape), nbytes, lambda x: scan(kind, x, axis), ulp=ulp, scale=1.0)


def test_reductions_propagate_nan_and_start_from_the_identity() -> None:
    b = Builder("nan")
    x, y = b.buffer("x", DType.F32), b.buffer("y", DType.F32, writes=True)
    tile = b.load(x, 0, (4, 11), (11, 1))
    for i, kind in enumerate(("min", "max", "sum")):
        b.store(y, 4 * i, reduce(kind, tile, 1), (1,))
    data = np.full((4, 11), -np.inf, np.float32)
    data[1] = np.inf
    data[2] = -0.0
    data[3, 9] = np.nan
    agree(b.kernel(), (1,), {"x": data.ravel(), "y": np.zeros(12, np.float32)})
    text = render(b.kernel(), machine.info()).text
    assert "fcmp" not in text, "hardware has what NaN propagates through"


@pytest.mark.slow
@pytest.mark.turns
@many
@given(
    st.integers(1, 7),
    st.integers(1, 6),
    st.integers(1, 20),
    st.sampled_from(
        [
            (DType.F32, DType.F32),
            (DType.BF16, DType.F32),
            (DType.F64, DType.F64),
            (DType.I8, DType.I32),
            (DType.F16, DType.F16),
        ]
    ),
    REGISTERS,
    st.booleans(),
    st.booleans(),
)
def test_dot(m, k, n, dtypes, nbytes, a_by_columns, b_by_columns) -> None:
    small, wide = dtypes
    b = Builder("dot")
    x, w, y = b.buffer("x", small), b.buffer("w", small), b.buffer("y", wide, writes=True)
    left = b.load(x, 0, (m, k), (1, m) if a_by_columns else (k, 1))
    right = b.load(w, 0, (k, n), (1, k) if b_by_columns else (n, 1))
    acc = b.load(y, 0, (m, n), (n, 1))
    b.store(y, 0, dot(left, right, acc), (n, 1))
    buffers = {"x": numbers(small, m * k), "w": numbers(small, k * n), "y": numbers(wide, m * n)}
    agree(b.kernel(), (1,), buffers, vector_nbytes=nbytes)


def test_narrow_sums_are_rounded_once() -> None:
    b = Builder("once")
    x, y = b.buffer("x", DType.BF16), b.buffer("y", DType.BF16, writes=True)
    tile = b.load(x, 0, (2, 40), (40, 1))
    b.store(y, 0, reduce("sum", tile, 1), (1,))
    b.store(y, 2, reshape(scan("sum", tile, 1), (80,)), (1,))
    ones = np.ones(80, NUMPY[DType.BF16]) / NUMPY[DType.BF16].type(128)
    ones[0] = 1
    agree(b.kernel(), (1,), {"x": ones, "y": np.zeros(82, NUMPY[DType.BF16])})


@pytest.mark.parametrize("nbytes", [16, 32, 64])
def test_a_softmax_of_rows(nbytes: int) -> None:
    b = Builder("softmax")
    x, y = b.buffer("x", DType.F32), b.buffer("y", DType.F32, writes=True)
    tile = b.load(x, 0, (3, 21), (21, 1))

    def column(v: Node) -> Node:
        return reshape(v, (3, 1))

    low = binary("sub", tile, column(reduce("max", tile, 1)))
    power = binary("mul", low, const(0.25, DType.F32))
    total = column(reduce("sum", power, 1))
    b.store(y, 0, cast(binary("div", power, total), DType.F32), (21, 1))
    data = np.random.default_rng(0).normal(size=63).astype(np.float32)
    agree(
        b.kernel(), (1,), {"x": data, "y": np.zeros(63, np.float32)}, ulp=16, vector_nbytes=nbytes
    )


@pytest.mark.parametrize("kind", ["min", "max"])
def test_extremes_of_rows_are_found_without_branches(kind):
    """A NaN anywhere is the result; a choice between scalars would be a branch on the data."""
    b = Builder("extremes")
    x, y = b.buffer("x", DType.F32), b.buffer("y", DType.F32, writes=True)
    b.store(y, 0, reduce(kind, b.load(x, 0, (22, 21), (21, 1)), 1), (1,))
    rows = np.random.default_rng(3).normal(size=(22, 21)).astype(np.float32)
    rows[np.arange(21), np.arange(21)] = np.nan
    out = np.zeros(22, np.float32)
    kernel = b.kernel()
    machine.run(kernel, (1,), {"x": rows.reshape(-1), "y": out})
    np.testing.assert_array_equal(out, getattr(rows, kind)(1))
    lines = render(kernel, machine.info()).text.splitlines()
    assert not [s for s in lines if "select i1" in s and "float" in s]
