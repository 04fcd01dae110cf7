"""Products for cores in a mesh, interpreted: each instance alone gives its part."""

from __future__ import annotations

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.node import Type
from stack import ops as g
from tests.compiler.lowered import run_lowered
from tests.compiler.mesh.machine import meshed


@pytest.mark.parametrize("sizes", [(37, 29, 41), (1, 130, 16), (64, 40, 64), (8, 1, 3)])
@pytest.mark.parametrize("mesh", [(2, 2), (4, 2)])
def test_products(sizes: tuple[int, int, int], mesh: tuple[int, int]) -> None:
    m, k, n = sizes
    rng = np.random.default_rng(m)
    left, right = (rng.integers(-3, 4, s).astype(np.float32) for s in ((m, k), (k, n)))
    a, b = g.input(0, Type((m, k), DType.F32)), g.input(1, Type((k, n), DType.F32))
    (found,), _ = run_lowered([g.matmul(a, b)], [a, b], [left, right], info=meshed(*mesh))
    np.testing.assert_array_equal(found, left @ right)


@pytest.mark.parametrize("turned", [False, True])
def test_batches_of_turned_halves_with_an_epilogue(turned: bool) -> None:
    rng = np.random.default_rng(1)
    left, right = (rng.integers(-3, 4, s).astype(np.float16) for s in ((3, 20, 9), (3, 18, 9)))
    a, b = g.input(0, Type(left.shape, DType.F16)), g.input(1, Type(right.shape, DType.F16))
    product = g.matmul(a, g.permute(b, (0, 2, 1)))
    out = g.add(product, product) if turned else product
    (found,), _ = run_lowered([out], [a, b], [left, right], info=meshed(2, 2, 48 << 10))
    expected = (left @ right.transpose(0, 2, 1)) * (2 if turned else 1)
    np.testing.assert_array_equal(found, expected)
