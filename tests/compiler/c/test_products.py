"""Matrix products: single ones, chains of them in loops, and the template of the compiler."""

from __future__ import annotations

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.build import Builder, add, dot, mul
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.compiler.program import GraphRequest
from tests.compiler import models
from tests.compiler.c.agreement import agree
from tests.compiler.c.machine import run
from tests.compiler.lowered import SIMD, lowered


def small(dtype: DType, count: int) -> np.ndarray:
    """Integers whose products and sums are exact."""
    return np.random.default_rng(count).integers(-3, 4, count).astype(NUMPY[dtype])


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(
    ("narrow", "dtype"),
    [
        (DType.F32, DType.F32),
        (DType.F64, DType.F64),
        (DType.BF16, DType.F32),
        (DType.F16, DType.F16),
        (DType.I8, DType.I32),
    ],
)
def test_products_alone_and_in_loops(narrow: DType, dtype: DType) -> None:
    b = Builder("products")
    x, w, y = b.buffer("x", narrow), b.buffer("w", narrow), b.buffer("y", dtype, writes=True)

    def step(k: Node, total: Node) -> list[Node]:
        for u in range(2):
            left = b.load(x, add(mul(k, 2), u), (3, 2), (8, 1))
            right = b.load(w, mul(add(k, u), 12), (2, 12), (12, 1))
            total = dot(left, right, total)
        return [total]

    start = b.load(y, 0, (3, 12), (12, 1))
    (total,) = b.loop(0, 4, 2, step, [start])
    b.store(y, 36, total, (12, 1))
    whole = b.load(x, 0, (3, 5), (1, 3), (2, None))
    b.store(y, 72, dot(whole, b.load(w, 0, (5, 12), (12, 1)), start), (12, 1))
    agree(
        b.kernel(), (1,), {"x": small(narrow, 64), "w": small(narrow, 96), "y": small(dtype, 108)}
    )


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("sizes", [(37, 29, 41), (8, 300, 16)])
def test_the_compilers_matmul(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    a, b = models.source(0, m, k), models.source(1, k, n)
    product = g.matmul(a, b)
    program = lowered(GraphRequest((product,), (a, b), ()), SIMD)
    x, y = small(DType.F32, m * k), small(DType.F32, k * n)
    places = {("input", 0): x, ("input", 1): y, ("output", 0): np.zeros(m * n, np.float32)}
    (call,) = program.calls
    names = [p.name for p in call.kernel.params]
    chosen = (places[c.kind, c.index] for c in call.buffers)
    run(call.kernel, call.grid, dict(zip(names, chosen, strict=True)))
    np.testing.assert_array_equal(
        places["output", 0].reshape(m, n), x.reshape(m, k) @ y.reshape(k, n)
    )
