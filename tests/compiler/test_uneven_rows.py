"""Products of what is seen through windows: exact, with the images' elements as rows where a target
wants that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hal.core.description import MatrixUnit
from hal.core.dtypes import DType
from hal.tile.kernel import Alloc
from hal.tile.node import Node, Type
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.compiler.templates.blocking import MatmulShape
from stack.compiler.tune import tunables
from stack.framework.reverse import gradients
from stack.ir.interpret import interpret
from tests.compiler.llvm.machine import info
from tests.compiler.lowered import SIMD, run_lowered
from tests.draw import sample

IMAGES, CHANNELS, OUTER, TAPS = 2, 2, 3, 3
CASES = [(width, *how) for width in (7, 13, 14) for how in ((1, 1), (2, 0), (3, 2))]
"""Width of the images, stride and edge of the windows; a third of them is drawn."""


def seen(x: Node, stride: int, edge: int) -> Node:
    """Windows of images as (image, channel and tap, place)."""
    x = g.pad(x, (0, 0, edge, edge), (0, 0, edge, edge))
    x = g.window(g.window(x, 3, TAPS, stride, 1), 2, TAPS, stride, 1)
    n, c, rows, _, columns, _ = x.shape
    return g.reshape(g.permute(x, (0, 1, 3, 5, 2, 4)), (n, c * TAPS * TAPS, rows * columns))


def by_numpy(x: np.ndarray, stride: int, edge: int) -> np.ndarray:
    x = np.pad(x, ((0, 0), (0, 0), (edge, edge), (edge, edge)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (TAPS, TAPS), (2, 3))
    windows = windows[:, :, ::stride, ::stride].transpose(0, 1, 4, 5, 2, 3)
    return windows.reshape(len(x), x.shape[1] * TAPS * TAPS, -1)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(("width", "stride", "edge"), sample("uneven rows", CASES, 3))
def test_windows_times_weights(width: int, stride: int, edge: int) -> None:
    """The images by the weights, and the weights' gradient; exact on small integers."""
    rng = np.random.default_rng(width)

    def number(shape: tuple[int, ...]) -> np.ndarray:
        return rng.integers(-3, 4, shape).astype(np.float32)

    x, w = number((IMAGES, CHANNELS, 4, width)), number((OUTER, CHANNELS * TAPS * TAPS))
    windows = by_numpy(x, stride, edge)
    y = number((IMAGES, OUTER, windows.shape[-1]))
    images, weights, above = (g.input(i, Type(a.shape, DType.F32)) for i, a in enumerate((x, w, y)))
    node = seen(images, stride, edge)
    forward = g.matmul(g.expand(g.reshape(weights, (1, *w.shape)), (IMAGES, *w.shape)), node)
    gradient = g.reduce("sum", g.matmul(above, g.transpose(node)), (0,))
    found, _ = run_lowered([forward, gradient], [images, weights, above], [x, w, y])
    np.testing.assert_array_equal(found[0], w @ windows)
    np.testing.assert_array_equal(found[1][0], (y @ windows.swapaxes(1, 2)).sum(0))


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(("stride", "edge"), [(1, 0), (1, 1), (1, 2), (2, 1)])
def test_pieces_that_no_edge_cuts(stride: int, edge: int) -> None:
    """Of rows of 32 elements some pieces lie within the image for all taps, some for a few and
    some for none; and the last register tile has less rows than others. By the weights, two panels
    of such a row are packed at a time."""
    rng = np.random.default_rng(stride + edge)
    width = (32 - 1) * stride + TAPS - 2 * edge
    x = rng.integers(-3, 4, (IMAGES, CHANNELS + 1, 5, width)).astype(np.float32)
    windows = by_numpy(x, stride, edge)
    w = rng.integers(-3, 4, (OUTER, windows.shape[1])).astype(np.float32)
    y = rng.integers(-3, 4, (IMAGES, OUTER, windows.shape[-1])).astype(np.float32)
    images, weights, above = (g.input(i, Type(a.shape, DType.F32)) for i, a in enumerate((x, w, y)))
    node = seen(images, stride, edge)
    forward = g.matmul(g.expand(g.reshape(weights, (1, *w.shape)), (IMAGES, *w.shape)), node)
    gradient = g.reduce("sum", g.matmul(above, g.transpose(node)), (0,))
    found, _ = run_lowered([forward, gradient], [images, weights, above], [x, w, y])
    np.testing.assert_array_equal(found[0], w @ windows)
    np.testing.assert_array_equal(found[1][0], (y @ windows.swapaxes(1, 2)).sum(0))


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("width", [4, 7])
def test_depths_that_begin_and_end_within_windows(width: int) -> None:
    """Panels are packed for some channels and some of their taps, in rows of one image row or of
    two; forward taps are innermost in depth, in the images' gradient channels are."""
    near = replace(SIMD, limits=replace(SIMD.limits, caches=(1 << 10, 16 << 10)))
    rng = np.random.default_rng(width)
    channels, outer = 3, 5
    x = rng.integers(-3, 4, (IMAGES, channels, 3, width)).astype(np.float32)
    w = rng.integers(-3, 4, (outer, channels * TAPS * TAPS)).astype(np.float32)
    y = rng.integers(-3, 4, (IMAGES, outer, 3 * width)).astype(np.float32)
    images, weights, above = (g.input(i, Type(a.shape, DType.F32)) for i, a in enumerate((x, w, y)))
    node = seen(images, 1, 1)
    rows = g.expand(g.reshape(weights, (1, *w.shape)), (IMAGES, *w.shape))
    forward = g.matmul(rows, node)
    by_images = gradients([(forward, above)], lambda n: n is images)[images]
    inputs, arrays = [images, weights, above], [x, w, y]
    found, _ = run_lowered([forward, by_images], inputs, arrays, info=near)
    wanted = interpret([forward, by_images], dict(zip(inputs, arrays, strict=True)))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(("width", "stride"), [(4, 1), (7, 1), (8, 2)])
def test_narrow_windows_on_a_unit(width: int, stride: int) -> None:
    """A matrix unit multiplies images, and both gradients: edges are laid in memory, and neither
    rows nor depth need lie evenly, but that groups fit in the left operand's runs along the depth:
    rows of odd images are too short. Integers that bfloat16 has, whose sums are exact."""
    unit = MatrixUnit(1, 8, 2, DType.BF16, DType.F32, together=2, call="dots")
    rng = np.random.default_rng(width)
    channels, outer = 4, 6

    def number(shape: tuple[int, ...]) -> np.ndarray:
        return rng.integers(-3, 4, shape).astype(NUMPY[DType.BF16])

    x, w = number((IMAGES, channels, 4, width)), number((outer, channels * TAPS * TAPS))
    images, weights = (g.input(i, Type(a.shape, DType.BF16)) for i, a in enumerate((x, w)))
    node = seen(images, stride, 1)
    rows = g.expand(g.reshape(weights, (1, *w.shape)), (IMAGES, *w.shape))
    forward = g.matmul(rows, node, DType.F32)
    y = number(forward.shape)
    above = g.input(2, Type(y.shape, DType.BF16))
    loss = [(forward, g.cast(above, DType.F32))]
    by = gradients(loss, lambda n: n in (images, weights))
    outputs, inputs = [forward, by[images], by[weights]], [images, weights, above]
    info = replace(SIMD, matrix_units=(unit,))
    found, program = run_lowered(outputs, inputs, [x, w, y], info=info)
    wanted = interpret(outputs, dict(zip(inputs, (x, w, y), strict=True)))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    bodies = [c.kernel.body for c in program.calls if "matmul" in c.kernel.name]
    rooms = [s.memory for body in bodies for s in body if isinstance(s, Alloc)]
    narrow = [m for m in rooms if (m.name, m.dtype) == ("packed_b", DType.BF16)]
    assert len(narrow) == (len(bodies) if width % 2 == 0 else 2)


def test_rows_are_places_of_all_images() -> None:
    images, weights = (
        g.input(0, Type((4, 8, 14, 14), DType.F32)),
        g.input(1, Type((16, 72), DType.F32)),
    )
    node = seen(images, 1, 1)
    forward = g.matmul(g.expand(g.reshape(weights, (1, 16, 72)), (4, 16, 72)), node)
    ((problem,),) = [
        (t.problem,) for t in tunables(GraphRequest((forward,), (images, weights)), info(64))
    ]
    assert isinstance(problem, MatmulShape)
    assert (problem.batch, problem.m, problem.n, problem.k) == (1, 4 * 14 * 14, 16, 72)
    assert problem.m_run == 14
