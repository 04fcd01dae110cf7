"""Products with one row or one column."""

from __future__ import annotations

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from hal.tile.numeric import NUMPY
from stack import ops as g
from tests.compiler.lowered import run_lowered

BF16, F32, I32 = DType.BF16, DType.F32, DType.I32


@pytest.mark.parametrize(
    "types", [(F32, F32), (BF16, BF16), (BF16, F32), (I32, I32)], ids=lambda t: f"{t[0]}-{t[1]}"
)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [((1, 40), (40, 33)), ((37, 70), (70, 1)), ((3, 1, 19), (3, 19, 5)), ((1, 50), (50, 1))],
)
def test_thin_products_are_no_products(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], turned: bool, types: tuple[DType, DType]
) -> None:
    """Exact on small integers, with computed operands and an epilogue, in one or two kernels that
    are no matmul."""
    dtype, sums = types

    def operand(slot: int, shape: tuple[int, ...]) -> tuple[Node, Node, np.ndarray]:
        lies = (*shape[:-2], shape[-1], shape[-2]) if turned else shape
        x = g.input(slot, Type(lies, dtype))
        data = np.random.default_rng(slot).integers(-3, 4, lies).astype(NUMPY[dtype])
        return x, g.transpose(x) if turned else x, data

    (a, left, one), (b, right, other) = operand(0, a_shape), operand(1, b_shape)
    product = g.matmul(g.neg(left), right, sums)
    found, program = run_lowered([g.abs(product)], [a, b], [one, other])
    wide = [x.astype(np.float64) for x in (one, other)]
    left_side, right_side = (x.swapaxes(-1, -2) if turned else x for x in wide)
    expected = np.abs(left_side @ right_side).astype(NUMPY[sums])
    np.testing.assert_array_equal(found[0], expected)
    assert not any("matmul" in call.kernel.name for call in program.calls)


def test_a_product_of_depth_one_beside_a_sum_keeps_its_elements() -> None:
    """Both derivatives of a 1x1 convolution of one channel: one spread over the places, the other
    summed over them."""
    w, d, x = (g.input(i, Type(s, F32)) for i, s in enumerate(((1, 1), (1, 40), (1, 40))))
    arrays = [np.random.default_rng(i).integers(-3, 4, n.shape) for i, n in enumerate((w, d, x))]
    w_of, d_of, x_of = (a.astype(np.float32) for a in arrays)
    outputs = [g.matmul(w, d), g.matmul(d, g.transpose(x))]
    found, _ = run_lowered(outputs, [w, d, x], [w_of, d_of, x_of])
    np.testing.assert_array_equal(found[0], w_of @ d_of)
    np.testing.assert_array_equal(found[1], d_of @ x_of.T)
