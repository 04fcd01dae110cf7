"""The matmul template against numpy in float64, over shapes, layouts and element types."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.core.description import DeviceInfo, Limits, MemorySpace, NumericProfile, SpaceKind
from hal.core.dtypes import DType
from hal.core.values import Grid
from hal.tile.build import Builder, add, binary, mul, unary
from hal.tile.interpret import interpret
from hal.tile.kernel import Kernel, Memory
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from stack.compiler.templates.blocking import MatmulShape
from stack.compiler.templates.matmul import matmul
from stack.compiler.templates.product import Elements, Epilogue, LoadTile, Product
from tests.compiler.llvm.machine import run

TYPES = [
    (DType.F64, DType.F64),
    (DType.BF16, DType.F32),
    (DType.F16, DType.F32),
    (DType.F32, DType.F64),
    (DType.I8, DType.I32),
    (DType.I32, DType.I32),
    (DType.I64, DType.I64),
    (DType.U8, DType.U32),
]
"""Element types of operands, and of products and sums."""

GAP = 3
"""Elements between the rows of every operand; they hold what must not reach the result."""


def vector_device(
    vector_nbytes: int = 32,
    registers: int = 16,
    caches: tuple[int, ...] = (32 << 10, 512 << 10, 32 << 20),
    scratch_nbytes: int = 4 << 20,
    instances: int = 2,
) -> DeviceInfo:
    """The description of a made-up device with vector registers."""
    limits = Limits((1 << 31,) * 3, 64, 1 << 40, 4, instances, vector_nbytes, registers, 1, caches)
    scratch = MemorySpace("scratch", SpaceKind.SCRATCHPAD, scratch_nbytes, 64)
    numeric = NumericProfile({}, denormals=True, fma=True, accumulate={})
    rates = dict.fromkeys(DType, 0.0)
    formats = ("llvm-ir/1",)
    return DeviceInfo(
        "fake:0", "fake", "", "", 1, limits, (scratch,), rates, numeric, formats, frozenset()
    )


def operand(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Random numbers of an element type."""
    return rng.standard_normal(shape).astype(NUMPY[dtype])


def small_integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Numbers whose products and sums every element type has."""
    return rng.integers(0 if dtype.kind == "u" else -5, 6, shape).astype(NUMPY[dtype])


def memory_of(x: np.ndarray, row_major: bool) -> np.ndarray:
    """A [batch, rows, columns] array as a buffer, rows or columns contiguous, NaN in gaps."""
    x = x if row_major else x.transpose(0, 2, 1)
    gap = np.full((*x.shape[:2], GAP), np.nan if x.dtype.kind not in "iu" else 99).astype(x.dtype)
    return np.concatenate([x, gap], axis=2).reshape(-1)


def strided_load(memory: Memory, strides: tuple[int, int, int]) -> LoadTile:
    """Loads tiles of an operand whose element (batch, i, j) is at those strides."""

    def load(b, batch, row, column, shape, limits):
        at = add(add(mul(batch, strides[0]), mul(row, strides[1])), mul(column, strides[2]))
        return b.load(memory, at, shape, strides[1:], limits)

    return load


def strided_store(memory: Memory, strides: tuple[int, int, int]) -> Epilogue:
    """Stores tiles of the result."""

    def store(b, tile, batch, m, n, limits):
        at = add(add(mul(batch, strides[0]), mul(m, strides[1])), mul(n, strides[2]))
        b.store(memory, at, tile, strides[1:], limits)

    return store


def strides(rows: int, columns: int, row_major: bool) -> tuple[int, int, int]:
    """The strides of what `memory_of` gives."""
    if row_major:
        return rows * (columns + GAP), columns + GAP, 1
    return columns * (rows + GAP), 1, rows + GAP


def matmul_kernel(
    shape: MatmulShape, info: DeviceInfo, is_there: Callable[[Node], Node] | None = None
) -> tuple[Kernel, Grid]:
    """c = a @ b of dense operands in the shape's layouts, and its grid."""
    s, b = shape, Builder("matmul")
    load_a = strided_load(b.buffer("a", s.dtype), strides(s.m, s.k, s.a_contiguous == "k"))
    right = b.buffer("b", s.right or s.dtype)
    load_b = strided_load(right, strides(s.k, s.n, s.b_contiguous == "n"))
    c = b.buffer("c", s.accumulate, reads=False, writes=True)
    store = strided_store(c, (s.m * s.n, s.n, 1))
    elements = Elements(s.dtype, s.dtype)
    product = Product(s, elements, load_a, load_b, store, is_there=is_there)
    grid = matmul(b, product, info)
    return b.kernel(), grid


TINY = vector_device(vector_nbytes=8, registers=10, caches=(256, 1024), scratch_nbytes=4096)
"""So small that shapes of a few elements take several blocks on every level."""


def multiply(
    shape: MatmulShape, a: np.ndarray, b: np.ndarray, info=TINY, is_there=None
) -> np.ndarray:
    kernel, grid = matmul_kernel(shape, info, is_there)
    c = np.full(shape.batch * shape.m * shape.n, 77, NUMPY[shape.accumulate])
    buffers = {
        "a": memory_of(a, shape.a_contiguous == "k"),
        "b": memory_of(b, shape.b_contiguous == "n"),
        "c": c,
    }
    interpret(kernel, grid, buffers, {})
    return c.reshape(shape.batch, shape.m, shape.n)


def shapes(limit: int):
    size = st.integers(0, limit)
    return st.builds(
        MatmulShape,
        st.integers(0, 2),
        size,
        size,
        size,
        st.sampled_from("mk"),
        st.sampled_from("nk"),
        st.just(DType.F32),
        st.just(DType.F32),
    )


@settings(max_examples=25, deadline=None)
@given(shapes(19), st.integers(0, 2**32 - 1))
def test_any_shape_and_layout(shape: MatmulShape, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = operand(rng, (shape.batch, shape.m, shape.k), DType.F32)
    b = operand(rng, (shape.batch, shape.k, shape.n), DType.F32)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(multiply(shape, a, b), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "accumulate"), TYPES)
@pytest.mark.parametrize("layouts", ["kn", "kk", "mn", "mk"])
def test_element_types_are_exact_on_small_integers(
    dtype: DType, accumulate: DType, layouts: str
) -> None:
    rng = np.random.default_rng(0)
    a, b = small_integers(rng, (1, 9, 11), dtype), small_integers(rng, (1, 11, 7), dtype)
    shape = MatmulShape(1, 9, 7, 11, layouts[0], layouts[1], dtype, accumulate)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(multiply(shape, a, b), expected.astype(NUMPY[accumulate]))


def test_integers_wrap() -> None:
    a = np.full((1, 1, 5), 2**31 - 1, np.int32)
    shape = MatmulShape(1, 1, 1, 5, "k", "n", DType.I32, DType.I32)
    expected = (a.astype(np.int64) @ a.astype(np.int64).transpose(0, 2, 1)).astype(np.int32)
    np.testing.assert_array_equal(multiply(shape, a, a.transpose(0, 2, 1)), expected)


@pytest.mark.parametrize("size", [(2, 3, 4), (9, 11, 13)], ids=str)
def test_a_batch_without_operands_gives_zeros(size: tuple[int, int, int]) -> None:
    """Of one block and of several, whatever lies where its operands would be."""
    m, n, k = size
    shape = MatmulShape(3, m, n, k, "k", "n", DType.F32, DType.F32)
    rng = np.random.default_rng(0)
    a, b = (operand(rng, (3, *sides), DType.F32) for sides in ((m, k), (k, n)))
    a[1] = np.nan
    expected = a @ b
    expected[1] = 0
    found = multiply(shape, a, b, is_there=lambda batch: unary("not", binary("eq", batch, 1)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_one_element() -> None:
    shape = MatmulShape(1, 1, 1, 1, "k", "n", DType.F32, DType.F32)
    a = np.full((1, 1, 1), 3, np.float32)
    np.testing.assert_array_equal(multiply(shape, a, a), [[[9]]])


def test_no_depth_gives_zeros() -> None:
    shape = MatmulShape(2, 3, 4, 0, "k", "n", DType.F32, DType.F32)
    a, b = np.zeros((2, 3, 0), np.float32), np.zeros((2, 0, 4), np.float32)
    np.testing.assert_array_equal(multiply(shape, a, b), np.zeros((2, 3, 4)))


@pytest.mark.parametrize("empty", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_an_empty_result_has_an_empty_grid(empty: tuple[int, int, int]) -> None:
    batch, m, n = empty
    _, grid = matmul_kernel(MatmulShape(batch, m, n, 5, "k", "n", DType.F32, DType.F32), TINY)
    assert 0 in grid


def compiled(shape: MatmulShape, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product by machine code for this host, with the block sizes of a real device."""
    kernel, grid = matmul_kernel(shape, vector_device())
    c = np.full(shape.batch * shape.m * shape.n, 77, NUMPY[shape.accumulate])
    left = memory_of(a, shape.a_contiguous == "k")
    run(kernel, grid, {"a": left, "b": memory_of(b, shape.b_contiguous == "n"), "c": c})
    return c.reshape(shape.batch, shape.m, shape.n)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("layouts", ["kn", "kk", "mn", "mk"])
@pytest.mark.parametrize("size", [(2, 67, 43, 83), (1, 37, 150, 901), (3, 256, 64, 64)], ids=str)
def test_compiled_for_this_host(size: tuple[int, int, int, int], layouts: str) -> None:
    rng = np.random.default_rng(1)
    batch, m, n, k = size
    a, b = operand(rng, (batch, m, k), DType.F32), operand(rng, (batch, k, n), DType.F32)
    shape = MatmulShape(batch, m, n, k, layouts[0], layouts[1], DType.F32, DType.F32)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(compiled(shape, a, b), expected, rtol=1e-5, atol=1e-5 * k**0.5)


@pytest.mark.parametrize(("dtype", "accumulate"), TYPES)
def test_compiled_element_types(dtype: DType, accumulate: DType) -> None:
    rng = np.random.default_rng(2)
    a, b = small_integers(rng, (2, 21, 19), dtype), small_integers(rng, (2, 19, 35), dtype)
    shape = MatmulShape(2, 21, 35, 19, "m", "k", dtype, accumulate)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(compiled(shape, a, b), expected.astype(NUMPY[accumulate]))
