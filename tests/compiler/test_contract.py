"""Sums of products become products, where nothing else reads the terms and nothing is rounded
between."""

from __future__ import annotations

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.node import Node, Type, toposort
from stack import ops as g
from stack.compiler.graph.contract import fold_sums
from stack.ir.interpret import interpret


def products(dtype: DType = DType.F32) -> tuple[Node, list[Node]]:
    inputs = [g.input(0, Type((2, 3, 4, 5), dtype)), g.input(1, Type((2, 3, 5, 6), dtype))]
    return g.matmul(*inputs), inputs


def has(outputs: tuple[Node, ...], op: str) -> bool:
    return any(n.op == op for n in toposort(outputs))


def assert_same(before: Node, after: Node, inputs: list[Node]) -> None:
    """Asserts that both mean the same; whole numbers are exact in any order."""
    rng = np.random.default_rng(0)
    arrays = {n: rng.integers(-4, 5, n.shape).astype(np.float32) for n in inputs}
    first, second = interpret([before, after], arrays)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_a_sum_over_a_batch_joins_the_depth(axes: tuple[int, ...]) -> None:
    x, inputs = products()
    total = g.reduce("sum", x, axes)
    (folded,) = fold_sums((total,))
    assert not has((folded,), "reduce")
    assert_same(total, folded, inputs)


def test_a_sum_stays_where_it_is_no_product() -> None:
    x, _ = products()
    for total in (
        g.reduce("sum", x, (0, 2)),
        g.reduce("max", x, (0,)),
        g.add(g.reduce("sum", x, (0,)), g.slice_axis(x, 0, 0, 1)),
    ):
        assert fold_sums((total,)) == (total,)
    total = g.reduce("sum", x, (0,))
    assert fold_sums((total, x)) == (total, x)


def windows(stride: int, rows: bool, dtype: DType = DType.F32) -> tuple[Node, Node, list[Node]]:
    """A product of 4 windows of 3, with their numbers as rows or columns; what adds them up."""
    inputs = [g.input(0, Type((4, 2), dtype)), g.input(1, Type((2, 15), dtype))]
    x = g.matmul(*inputs)
    if not rows:
        inputs = [g.input(0, Type((15, 2), dtype)), g.input(1, Type((2, 4), dtype))]
        x = g.transpose(g.matmul(*inputs))
    return x, g.overlap_add(g.reshape(x, (4, 3, 5)), 0, 3 * stride + 5, stride, 2), inputs


@pytest.mark.parametrize("cut", [None, (2, 7), (3, 4)])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_windows_that_are_added_up_join_the_depth(
    stride: int, rows: bool, cut: tuple[int, int] | None
) -> None:
    _, total, inputs = windows(stride, rows)
    if cut:
        total = g.slice_axis(total, 0, *cut)
    (folded,) = fold_sums((total,))
    assert not has((folded,), "overlap_add")
    assert has((folded,), "window")
    assert_same(total, folded, inputs)


def test_sums_of_products_of_sums_of_products() -> None:
    """As the gradients of a network's layers: all are found, though one is made of the other."""
    _, total, inputs = windows(1, rows=True)
    second = g.input(2, Type((5, 12), DType.F32))
    above = g.matmul(g.slice_axis(total, 0, 1, 7), second)
    again = g.overlap_add(g.reshape(above, (6, 3, 4)), 0, 8)
    batch = g.matmul(g.reshape(again, (2, 4, 4)), g.reshape(again, (2, 4, 4)))
    before = g.reduce("sum", batch, (0,))
    (after,) = fold_sums((before,))
    assert not has((after,), "overlap_add")
    assert not has((after,), "reduce")
    assert_same(before, after, [*inputs, second])


def test_windows_stay_where_they_are_no_product() -> None:
    x, total, _ = windows(1, rows=True)
    assert fold_sums((total, x)) == (total, x)
    for stays in (
        g.overlap_add(g.reshape(x, (2, 2, 15)), 0, 3),
        g.overlap_add(g.input(5, Type((4, 3), DType.F32)), 0, 6),
        g.overlap_add(g.reshape(x, (4, 1, 15)), 0, 7, 2),
    ):
        assert fold_sums((stays,)) == (stays,)
    channels = g.slice(total, (0, 1), (8, 3))
    assert has(fold_sums((channels,)), "slice")
