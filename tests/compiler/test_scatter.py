"""Scatters, of which several instances share the slots or one has a block of rows, and gathers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ml_dtypes import bfloat16

from hal.core.dtypes import DType
from hal.tile.kernel import Alloc, Kernel, Scatter, Store
from hal.tile.node import Node, Type
from hal.tile.walk import statements
from stack import ops as g
from stack.compiler.templates import scatter
from stack.compiler.text.llvm import ahead
from tests.compiler.lowered import SIMD, run_lowered

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("kind", ["sum", "set", "max"])
@pytest.mark.parametrize(("rows", "slots", "after"), [(1, 37, ()), (2, 9, ()), (1, 16, (5,))])
def test_instances_that_share_slots_give_what_one_gives(monkeypatch, kind, rows, slots, after):
    shape, count = (rows, slots, *after), 40
    base = RNG.standard_normal(shape).astype(np.float32)
    index = RNG.integers(-3, slots + 3, (rows, count))
    updates = RNG.standard_normal((rows, count, *after)).astype(np.float32)
    x, i, u = (
        g.input(n, Type(a.shape, DType.I64 if n == 1 else DType.F32))
        for n, a in enumerate((base, index, updates))
    )
    output = g.scatter(kind, x, i, u, 1, batch=True)
    found, grids = [], []
    for cores, many in ((1, scatter.MANY), (7, 32)):
        monkeypatch.setattr(scatter, "MANY", many)
        info = replace(SIMD, limits=replace(SIMD.limits, instances=cores))
        results, program = run_lowered([output], [x, i, u], [base, index, updates], info=info)
        found.append(results[0])
        grids.append(max(call.grid[0] for call in program.calls))
    np.testing.assert_array_equal(found[0], found[1])
    each = -(-slots // (7 // rows))
    assert grids == [rows, rows * -(-slots // each)]
    expected = base.copy()
    combine = {"sum": np.add, "max": np.maximum, "set": lambda old, new: new}[kind]
    for row in range(rows):
        for place, update in zip(index[row], updates[row], strict=True):
            if 0 <= place < slots:
                expected[row, place] = combine(expected[row, place], update)
    np.testing.assert_array_equal(found[1], expected)


@pytest.mark.parametrize("kind", ["sum", "set", "max"])
@pytest.mark.parametrize(
    ("slots", "after", "count"),
    [
        *((9, (70,), 12), (9, (70,), 40), (6, (3, 300), 9), (5, (1100,), 20), (1, (40,), 3)),
        *((1100, (), 50), (70, (), 90)),
    ],
)
def test_rows_and_slots_are_written_in_tiles(monkeypatch, kind, slots, after, count):
    """Rows go where they are unless there are many for each slot, of which a block is held then."""
    monkeypatch.setattr(scatter, "MANY", 16)
    base = RNG.standard_normal((slots, *after)).astype(np.float32)
    index = RNG.integers(-2, slots + 2, count)
    updates = RNG.standard_normal((count, *after)).astype(np.float32)
    x, i, u = (
        g.input(n, Type(a.shape, DType.I64 if n == 1 else DType.F32))
        for n, a in enumerate((base, index, updates))
    )
    output = g.scatter(kind, x, i, u, 0)
    expected = base.copy()
    combine = {"sum": np.add, "max": np.maximum, "set": lambda old, new: new}[kind]
    for place, update in zip(index, updates, strict=True):
        if 0 <= place < slots:
            expected[place] = combine(expected[place], update)
    for cores in (1, 2, 7):
        info = replace(SIMD, limits=replace(SIMD.limits, instances=cores))
        (found,), program = run_lowered([output], [x, i, u], [base, index, updates], info=info)
        np.testing.assert_array_equal(found, expected)
        (call,) = program.calls
        held = any(isinstance(s, Alloc) for s in call.kernel.body)
        assert held == (not after or count > scatter.OFTEN * slots)
        wide = after or slots >= (32 if cores == 1 else 32 * scatter.FEW * cores)
        assert any(s.value.shape == (32,) for s in _stores(call.kernel)) == bool(wide)


@pytest.mark.parametrize("kind", ["sum", "set", "max"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("slots", [2, 300])
def test_slots_that_no_cache_holds_are_asked_for(monkeypatch, kind, rows, slots):
    """And instances that share them write theirs without a branch."""
    monkeypatch.setattr(scatter, "MANY", 16)
    base = RNG.standard_normal((rows, slots)).astype(np.float32)
    index = RNG.integers(-2, slots + 2, (rows, 85))
    updates = RNG.standard_normal((rows, 85)).astype(np.float32)
    x, i, u = (
        g.input(n, Type(a.shape, DType.I64 if n == 1 else DType.F32))
        for n, a in enumerate((base, index, updates))
    )
    output = g.scatter(kind, x, i, u, 1, batch=True)
    expected = base.copy()
    combine = {"sum": np.add, "max": np.maximum, "set": lambda old, new: new}[kind]
    for row in range(rows):
        for place, update in zip(index[row], updates[row], strict=True):
            if 0 <= place < slots:
                expected[row, place] = combine(expected[row, place], update)
    for cores, cache in ((1, 4), (2, 4), (7, 4), (1, 8 << 10)):
        limits = replace(SIMD.limits, instances=cores, caches=(32 << 10, cache))
        info = replace(SIMD, limits=limits)
        (found,), program = run_lowered([output], [x, i, u], [base, index, updates], info=info)
        np.testing.assert_array_equal(found, expected)
        (call,) = program.calls
        assert any(a.result.shape == (2,) for a in ahead.unused(call.kernel)) == (cache == 4)
        shared = cache == 4 and call.grid[0] > rows
        assert any(isinstance(s, Scatter) for s in statements(call.kernel.body)) == shared


def _stores(kernel: Kernel) -> list[Store]:
    return [s for s in statements(kernel.body) if isinstance(s, Store)]


SIZES = [(33, 12), (16, 9), (5, 7)]
COMBINE = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def _one_by_one(kind: str, base: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
    """A scatter along the first axis, each column by its own index, in order."""
    found = base.copy()
    for k in range(len(index)):
        for column, place in enumerate(index[k]):
            if 0 <= place < len(found):
                old, new = found[place, column], updates[k, column]
                found[place, column] = new if kind == "set" else COMBINE[kind](old, new)
    return found


def _along_columns(kind: str, x: Node, i: Node, u: Node) -> Node:
    """A scatter of the graph, whose axis is the last one, along the first."""
    turned = (g.permute(n, (1, 0)) for n in (x, i, u))
    return g.scatter(kind, *turned, 1, batch=True)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(k, DType.F32) for k in (*COMBINE, "set")] + [("sum", d) for d in (DType.F64, DType.I8)],
)
@pytest.mark.parametrize("caches", [(32 << 10, 512 << 10), (32 << 10, 1 << 10)])
def test_columns_by_an_index_of_their_own_are_one_kernel(kind, dtype, caches):
    info = replace(SIMD, limits=replace(SIMD.limits, caches=caches))
    for columns, slots in SIZES:
        base = RNG.integers(-4, 5, (slots, columns)).astype(dtype.numpy)
        updates = RNG.integers(-2, 3, (9, columns)).astype(dtype.numpy)
        index = RNG.integers(-2, slots + 2, (9, columns))
        x, i, u = (
            g.input(n, Type(a.shape, DType.I64 if n == 1 else dtype))
            for n, a in enumerate((base, index, updates))
        )
        with np.errstate(over="ignore"):
            expected = _one_by_one(kind, base, index, updates)
        turned = _along_columns(kind, x, i, u)
        alone, both = [g.permute(turned, (1, 0))], [turned, g.permute(turned, (1, 0))]
        for outputs in (alone, both):
            found, program = run_lowered(outputs, [x, i, u], [base, index, updates], info=info)
            np.testing.assert_array_equal(found[-1], expected)
            assert len(program.calls) == 1
        np.testing.assert_array_equal(found[0], expected.T)


def test_sums_of_narrow_floats_by_an_index_are_rounded_once():
    ones = np.ones((260, 8), np.float32)
    x, i, u = (
        g.input(n, Type(s, d))
        for n, (s, d) in enumerate(
            (((3, 8), DType.BF16), ((260, 8), DType.I64), ((260, 8), DType.BF16))
        )
    )
    arrays = [a.astype(bfloat16) for a in (np.zeros((3, 8), np.float32), ones)]
    output = g.permute(_along_columns("sum", x, i, u), (1, 0))
    index = np.full((260, 8), 1)
    (found,), _ = run_lowered([output], [x, i, u], [arrays[0], index, arrays[1]])
    np.testing.assert_array_equal(found[1], np.full(8, 260.0).astype(bfloat16))


def test_a_scatter_is_turned_by_its_own_kernel_only_where_slots_stay_at_even_distances():
    """Its axis may come apart, as long as the parts lie in their order."""
    base, index, updates = (
        RNG.standard_normal((3, 12)).astype(np.float32),
        RNG.integers(0, 12, (3, 20)),
        RNG.standard_normal((3, 20)).astype(np.float32),
    )
    x, i, u = (
        g.input(n, Type(a.shape, DType.I64 if n == 1 else DType.F32))
        for n, a in enumerate((base, index, updates))
    )
    done = g.reshape(g.scatter("sum", x, i, u, 1, batch=True), (3, 4, 3))
    expected = base.copy()
    np.add.at(expected, (np.arange(3)[:, None], index), updates)
    for perm, calls in (((1, 2, 0), 1), ((2, 1, 0), 2), ((1, 0, 2), 2)):
        (found,), program = run_lowered([g.permute(done, perm)], [x, i, u], [base, index, updates])
        np.testing.assert_allclose(found, expected.reshape(3, 4, 3).transpose(perm), rtol=1e-6)
        assert len(program.calls) == calls


@pytest.mark.parametrize(("rows", "size", "count"), [(9, 1024, 1024), (5, 1000, 515), (6, 64, 64)])
@pytest.mark.parametrize("own", [True, False])
def test_a_gather_asks_for_the_rows_behind(rows, size, count, own):
    """What is asked for lies within the arrays, and changes nothing."""
    x = RNG.standard_normal((rows, size)).astype(np.float32)
    index = RNG.integers(-2, size + 2, (rows, count) if own else (count,))
    a, i = g.input(0, Type(x.shape, DType.F32)), g.input(1, Type(index.shape, DType.I64))
    output = g.gather(a, i, 1, batch=own)
    (found,), program = run_lowered([output], [a, i], [x, index])
    each = np.broadcast_to(index, (rows, count))
    inside = (each >= 0) & (each < size)
    chosen = np.take_along_axis(x, np.where(inside, each, 0), 1)
    np.testing.assert_array_equal(found, np.where(inside, chosen, 0))
    (call,) = program.calls
    assert ahead.unused(call.kernel)


@pytest.mark.parametrize(("slots", "columns", "count"), [(20, 45, 33), (7, 64, 3), (3, 32, 9)])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I64])
def test_columns_choose_from_a_strip_of_rows(slots, columns, count, dtype):
    """Also within a larger expression, with axes around them."""
    numpy = np.dtype(bfloat16) if dtype is DType.BF16 else np.dtype(dtype.numpy)
    x = RNG.integers(-9, 10, (2, slots, columns)).astype(numpy)
    index = RNG.integers(-2, slots + 2, (2, count, columns))
    a, i = g.input(0, Type(x.shape, dtype)), g.input(1, Type(index.shape, DType.I64))
    turned = (g.permute(n, (0, 2, 1)) for n in (a, i))
    found = g.permute(g.gather(*turned, 2, batch=True), (0, 2, 1))
    output = g.add(found, g.full(found.shape, 1, dtype))
    (result,), program = run_lowered([output], [a, i], [x, index])
    inside = (index >= 0) & (index < slots)
    chosen = np.take_along_axis(x, np.where(inside, index, 0), 1)
    expected = (np.where(inside, chosen, 0) + np.ones((), numpy)).astype(numpy)
    np.testing.assert_array_equal(result.astype(np.float64), expected.astype(np.float64))
    (call,) = program.calls
    assert any(isinstance(s, Alloc) for s in call.kernel.body)


@pytest.mark.parametrize("after", [(24,), (3, 24), (2048,)])
def test_a_gather_of_rows_asks_for_the_rows_behind(after):
    """Wherever these are, and only for such as there are."""
    x = RNG.standard_normal((7, *after)).astype(np.float32)
    index = RNG.integers(-9, 16, (40,))
    a, i = g.input(0, Type(x.shape, DType.F32)), g.input(1, Type(index.shape, DType.I64))
    (found,), program = run_lowered([g.gather(a, i, 0)], [a, i], [x, index])
    inside = (index >= 0) & (index < 7)
    expected = np.where(inside.reshape(-1, *(1 for _ in after)), x[np.where(inside, index, 0)], 0)
    np.testing.assert_array_equal(found, expected)
    (call,) = program.calls
    assert ahead.unused(call.kernel)
