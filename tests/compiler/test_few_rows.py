"""Products of few rows by a matrix that lies along k or along n."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hal.core.description import MatrixUnit
from hal.core.dtypes import DType
from hal.tile.kernel import Alloc
from hal.tile.node import Type, toposort
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.compiler.graph.prepare import LARGE, lowerable
from stack.compiler.templates.few_rows import DEEPEST, FOLDED, MOST, grouped
from stack.compiler.templates.few_rows_across import across
from stack.compiler.text.llvm.ahead import unused
from tests.compiler.lowered import SIMD, run_lowered
from tests.draw import sample

BF16, F32, F64, I32 = DType.BF16, DType.F32, DType.F64, DType.I32


CASES = [(2, F32), (3, BF16), (5, F64), (7, I32), (MOST, F32), (MOST + 1, F32)]
SIZES = [(0, 2), (3, 3), (8, 17)]
"""By how much the depth exceeds the least one, and the columns."""


@pytest.mark.parametrize(
    ("rows", "dtype", "more", "columns", "along"),
    sample("few rows", [(*c, *s, along) for c in CASES for s in SIZES for along in "kn"], 12),
)
def test_few_rows_by_a_matrix(rows: int, dtype: DType, more: int, columns: int, along: str) -> None:
    """Exact on small integers, with a computed left operand, batches and an epilogue."""
    depth = FOLDED * rows + more
    shapes = (
        (2, rows, depth),
        (2, *((columns, depth) if along == "k" else (depth, columns))),
        (columns,),
    )
    x, w, bias = (g.input(i, Type(s, dtype)) for i, s in enumerate(shapes))
    data = [np.random.default_rng(i).integers(-3, 4, s) for i, s in enumerate(shapes)]
    total = F32 if dtype is BF16 else dtype
    product = g.matmul(g.neg(x), g.transpose(w) if along == "k" else w, total)
    wide = g.expand(g.reshape(g.cast(bias, total), (1, 1, columns)), product.shape)
    given = [a.astype(NUMPY[dtype]) for a in data]
    (found,), program = run_lowered([g.add(product, wide)], [x, w, bias], given)
    left, right, added = (a.astype(np.float64) for a in data)
    right = right.swapaxes(1, 2) if along == "k" else right
    np.testing.assert_array_equal(found, -left @ right + added)
    statements = [s for call in program.calls for s in call.kernel.body]
    scratch = {s.memory.name for s in statements if isinstance(s, Alloc)}
    assert ("packed_b" in scratch) == (rows > MOST)


@pytest.mark.parametrize(
    ("rows", "along"), [(MOST, "k"), (MOST + 1, "k"), (MOST // 2, "n"), (MOST // 2 + 1, "n")]
)
def test_few_rows_are_not_packed_for_a_unit_either(rows: int, along: str) -> None:
    unit = MatrixUnit(1, 8, 2, BF16, F32, together=2, call="dots")
    depth = 2 * FOLDED * MOST
    sizes = (rows, depth), ((9, depth) if along == "k" else (depth, 9))
    x, w = (g.input(i, Type(size, BF16)) for i, size in enumerate(sizes))
    data = [np.random.default_rng(i).integers(-3, 4, n.shape) for i, n in enumerate((x, w))]
    given = [a.astype(NUMPY[BF16]) for a in data]
    product = g.matmul(x, g.transpose(w) if along == "k" else w, F32)
    (found,), program = run_lowered(
        [product], [x, w], given, info=replace(SIMD, matrix_units=(unit,))
    )
    np.testing.assert_array_equal(found, data[0] @ (data[1].T if along == "k" else data[1]))
    memories = [s.memory for c in program.calls for s in c.kernel.body if isinstance(s, Alloc)]
    packed = [m.dtype for m in memories if m.name == "packed_b"]
    assert packed == ([BF16] if rows > (MOST if along == "k" else MOST // 2) else [])


def is_packed(program) -> bool:
    """Whether a row of the left operand is, as few rows are."""
    bodies = [s for call in program.calls for s in call.kernel.body]
    return any(isinstance(s, Alloc) and s.memory.name == "packed_a" for s in bodies)


LONG = across(SIMD).least
"""Columns of a matrix that a row is multiplied by as a product."""


@pytest.mark.parametrize(("dtype", "more"), [(BF16, 5), (F32, 0)])
def test_a_row_by_a_matrix_along_its_rows_is_a_product(dtype: DType, more: int) -> None:
    """With a row that is stored as a line, a computed matrix, and an epilogue."""
    depth, columns = LARGE // LONG + more, LONG + more
    x, w, bias = (
        g.input(i, Type(s, dtype)) for i, s in enumerate(((depth,), (depth, columns), (columns,)))
    )
    total = F32 if dtype is BF16 else dtype
    product = g.matmul(g.reshape(g.cast(x, total), (1, depth)), g.cast(w, total), total)
    added = g.add(product, g.reshape(g.cast(bias, total), product.shape))
    data = [np.random.default_rng(i).integers(-3, 4, n.shape) for i, n in enumerate((x, w, bias))]
    given = [a.astype(NUMPY[dtype]) for a in data]
    (found,), program = run_lowered([added], [x, w, bias], given)
    np.testing.assert_array_equal(found, (data[0] @ data[1] + data[2])[None])
    assert is_packed(program)


def stays(left: tuple[int, ...], right: tuple[int, ...], turned: str = "", **how: Any) -> bool:
    """Whether a row by a matrix stays a product; `turned` says which operands are stored so."""
    dtype, cores = how.get("dtype", F32), how.get("cores", SIMD.limits.instances)
    stored = (g.input(i, Type(shape, dtype)) for i, shape in enumerate((left, right)))
    a, b = (g.transpose(n) if c in turned else n for n, c in zip(stored, "xw", strict=True))
    outputs = lowerable((g.matmul(a, b),), cores, across(SIMD))
    return "matmul" in {n.op for n in toposort(outputs)}


def test_a_row_by_another_matrix_is_a_reduction() -> None:
    depth, deepest = LARGE // LONG, across(SIMD).deepest
    assert stays((1, depth), (depth, LONG))
    assert not stays((1, depth), (depth, LONG // 2)), "of short rows"
    assert not stays((1, depth // 2), (depth // 2, LONG)), "of few elements"
    assert not stays((1, depth), (LONG, depth), turned="w"), "along k"
    assert not stays((depth, 1), (depth, LONG), turned="x"), "over a batch: in pairs"
    assert not stays((2, 1, depth), (2, depth, LONG)), "of several"
    assert not stays((1, depth), (depth, LONG), dtype=I32)
    assert deepest == DEEPEST
    assert stays((1, deepest), (deepest, LONG))
    assert not stays((1, deepest + 1), (deepest + 1, LONG)), "better summed in pairs"
    assert not stays((1, deepest), (deepest, 512)), "cores would share few columns"
    assert stays((1, deepest), (deepest, 512), cores=1)


@pytest.mark.parametrize("registers", [16, 32])
def test_groups_of_rows_fill_the_registers(registers: int) -> None:
    for rows in range(2, MOST + 1):
        columns, groups = grouped(rows, registers)
        assert [r for first, size in groups for r in range(first, first + size)] == [*range(rows)]
        sizes = [size for _, size in groups]
        assert max(sizes) - min(sizes) <= 1
        # Sums, a vector of each column, and one of A; another column would not fit.
        used = [size * columns + columns + 1 for size in sizes]
        assert max(used) <= registers < max(used) + max(sizes) + 1
    assert grouped(8, registers)[1] == [(0, 4), (4, 4)]


def test_columns_of_the_next_strip_are_asked_for_with_all_groups() -> None:
    """By loads that nothing uses, of which each group has its part, in strips of several columns
    and of one; that they stay within the matrix shows where the interpreter makes them, above."""
    x, w = (g.input(i, Type((n, 80), F32)) for i, n in enumerate((8, 12)))
    data = [np.random.default_rng(i).integers(-3, 4, n.shape) for i, n in enumerate((x, w))]
    (found,), program = run_lowered(
        [g.matmul(x, g.transpose(w))], [x, w], [a.astype(np.float32) for a in data]
    )
    np.testing.assert_array_equal(found, data[0] @ data[1].T)
    columns, _ = grouped(8, SIMD.limits.registers or 16)
    assert [len(unused(c.kernel)) for c in program.calls] == [columns + 1]


def test_the_next_rows_are_asked_for() -> None:
    """Of a matrix along n, from the last rows on again and again."""
    x, w = (g.input(i, Type(size, F32)) for i, size in enumerate(((8, 67), (67, 50))))
    data = [np.random.default_rng(i).integers(-3, 4, n.shape) for i, n in enumerate((x, w))]
    given = [a.astype(np.float32) for a in data]
    (found,), program = run_lowered([g.matmul(x, w)], [x, w], given)
    np.testing.assert_array_equal(found, data[0] @ data[1])
    assert [len(unused(c.kernel)) for c in program.calls] == [4 + 3]
