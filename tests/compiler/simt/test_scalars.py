"""Tiles of one element as scalars, by both lowerings."""

from __future__ import annotations

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.build import Builder, add, binary, mul, reshape
from tests.compiler.c.agreement import agree
from tests.compiler.c.machine import run as run_alone
from tests.compiler.simt.machine import run as run_in_groups


@pytest.mark.parametrize("run", [run_alone, run_in_groups])
def test_a_tile_of_one_element_gives_a_scalar(run) -> None:
    b = Builder("one")
    x, y = b.buffer("x", DType.F32), b.buffer("y", DType.F32, writes=True)
    one = b.load(x, 3, (1,), (1,))
    scalar = add(reshape(mul(one, one), ()), 1)
    b.store(y, 0, binary("max", scalar, reshape(one, ())))
    b.store(y, 1, add(reshape(one, (1, 1)), scalar), (1, 1))
    buffers = {"x": np.arange(4, dtype=np.float32), "y": np.zeros(2, np.float32)}
    agree(b.kernel(), (1,), buffers, run=run)
