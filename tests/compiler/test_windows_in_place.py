"""Windows that products read where they lie: exact, and without packing what is seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hal.core.description import MatrixUnit
from hal.core.dtypes import DType
from hal.tile.kernel import Alloc, Kernel
from hal.tile.node import Node, Type
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.ir.interpret import interpret
from tests.compiler.lowered import SIMD, run_lowered

IMAGES, TAPS = 2, 3
OUTER = 12
"""Two vectors of sums, so that six rows fill the registers."""
NEAR = replace(SIMD, limits=replace(SIMD.limits, caches=(1 << 10, 16 << 10)))
"""Caches in which the depth takes several blocks."""
PAIRS = replace(
    SIMD, matrix_units=(MatrixUnit(1, 8, 2, DType.BF16, DType.F32, together=2, call="dots"),)
)


def _rooms(kernel: Kernel) -> set[str]:
    return {s.memory.name for s in kernel.body if isinstance(s, Alloc)}


def _number(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    return rng.integers(-3, 4, shape).astype(NUMPY[dtype])


def _product(images: Node, weights: Node, stride: int, edge: int) -> Node:
    """Windows of images [N, C, sizes] by weights [outer, C * taps]."""
    n, c, *sizes = images.shape
    edges = (0, 0, *(edge for _ in sizes))
    x = g.pad(images, edges, edges)
    for i in range(len(sizes)):
        x = g.window(x, 2 + 2 * i, TAPS, stride, 1)
    numbers, taps = range(2, len(x.shape), 2), range(3, len(x.shape), 2)
    x = g.permute(x, (0, 1, *taps, *numbers))
    x = g.reshape(x, (n, c * TAPS ** len(sizes), -(-x.type.size // (n * c * TAPS ** len(sizes)))))
    rows = g.expand(g.reshape(weights, (1, *weights.shape)), (n, *weights.shape))
    return g.matmul(rows, x, DType.F32)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("sizes", [(4, 12), (12,), (4, 11), (11,)])
@pytest.mark.parametrize(("stride", "edge"), [(1, 1), (1, 0), (2, 1)])
@pytest.mark.parametrize("target", ["plain", "near", "pairs"])
def test_windows_are_read_in_place(
    sizes: tuple[int, ...], stride: int, edge: int, target: str
) -> None:
    """Of images with and without edges and strides, of rows that register tiles divide and that
    they reach beyond, in one block of the depth or three, one by one and in words of two channels.
    Integers that bfloat16 has, whose sums are exact."""
    dtype = DType.BF16 if target == "pairs" else DType.F32
    *above, width = sizes
    sizes = (*above, stride * (width - 1) + TAPS - 2 * edge)
    rng, channels = np.random.default_rng(width + stride), 24
    x = _number(rng, (IMAGES, channels, *sizes), dtype)
    w = _number(rng, (OUTER, channels * TAPS ** len(sizes)), dtype)
    images, weights = (g.input(i, Type(a.shape, dtype)) for i, a in enumerate((x, w)))
    made = _product(images, weights, stride, edge)
    info = {"plain": SIMD, "near": NEAR, "pairs": PAIRS}[target]
    found, program = run_lowered([made], [images, weights], [x, w], info=info)
    np.testing.assert_array_equal(found[0], interpret([made], {images: x, weights: w})[0])
    (kernel,) = [c.kernel for c in program.calls if "matmul" in c.kernel.name]
    rooms = _rooms(kernel)
    # Few windows are not worth to pack weights in the order of words.
    few = target == "pairs" and np.prod(made.shape[-1]) * IMAGES < 4 * OUTER
    assert ("packed_a" in rooms) == few
    assert ("partial_c" in rooms) == (target == "near")


@pytest.mark.parametrize("width", [24, 29])
def test_the_depth_of_words_may_lie_evenly(width: int) -> None:
    """Of two channels in words taps follow one another as their elements do."""
    rng = np.random.default_rng(width)
    x = _number(rng, (IMAGES, 2, width + TAPS - 1), DType.BF16)
    w = _number(rng, (OUTER, 2 * TAPS), DType.BF16)
    images, weights = (g.input(i, Type(a.shape, DType.BF16)) for i, a in enumerate((x, w)))
    made = _product(images, weights, 1, 0)
    found, program = run_lowered([made], [images, weights], [x, w], info=PAIRS)
    np.testing.assert_array_equal(found[0], interpret([made], {images: x, weights: w})[0])
    assert all("packed_a" not in _rooms(c.kernel) for c in program.calls)


@pytest.mark.parametrize("width", [24, 29])
def test_windows_of_what_is_turned(width: int) -> None:
    """Windows along the first axis, which is the innermost one in memory."""
    rng, channels = np.random.default_rng(width), 4
    x = _number(rng, (channels, width), DType.F32)
    w = _number(rng, (channels * TAPS, OUTER), DType.F32)
    lines, weights = (g.input(i, Type(a.shape, DType.F32)) for i, a in enumerate((x, w)))
    turned = g.pad(g.permute(lines, (1, 0)), (1, 0), (1, 0))
    windows = g.permute(g.window(turned, 0, TAPS, 1, 1), (0, 2, 1))
    made = g.matmul(g.reshape(windows, (width, channels * TAPS)), weights)
    found, program = run_lowered([made], [lines, weights], [x, w], info=SIMD)
    np.testing.assert_array_equal(found[0], interpret([made], {lines: x, weights: w})[0])
    assert all("packed_a" not in _rooms(c.kernel) for c in program.calls)
