"""Kernels that the compiler makes for groups of lanes, interpreted."""

from __future__ import annotations

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.node import Type
from stack import ops as g
from tests.compiler.lowered import run_lowered
from tests.compiler.simt.machine import groups_of
from tests.compiler.test_random_graphs import small_thresholds


@pytest.mark.parametrize("sizes", [(37, 29, 41), (1, 300, 16), (200, 40, 130)])
@pytest.mark.parametrize("lanes", [16, 256])
def test_products_for_groups(sizes: tuple[int, int, int], lanes: int) -> None:
    m, k, n = sizes
    rng = np.random.default_rng(m)
    left, right = (rng.integers(-3, 4, s).astype(np.float32) for s in ((m, k), (k, n)))
    a, b = g.input(0, Type((m, k), DType.F32)), g.input(1, Type((k, n), DType.F32))
    (found,), _ = run_lowered([g.matmul(a, b)], [a, b], [left, right], info=groups_of(lanes))
    np.testing.assert_array_equal(found, left @ right)


def test_an_instance_computes_whole_tiles() -> None:
    x = g.input(0, Type((8, 16, 3), DType.F64))
    value = np.arange(384.0).reshape(8, 16, 3)
    with small_thresholds():
        found, _ = run_lowered([g.mul(x, x)], [x], [value], info=groups_of(64))
    np.testing.assert_array_equal(found[0], value * value)
