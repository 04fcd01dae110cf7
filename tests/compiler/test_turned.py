"""Elementwise kernels whose elements lie along two axes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from hal.tile.numeric import NUMPY
from hal.tile.walk import statements
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.compiler.text.llvm import render
from stack.compiler.text.llvm.ahead import LINE_NBYTES, unused
from stack.ir.interpret import interpret
from tests.compiler.lowered import SIMD, lowered, run_lowered

SMALL = replace(SIMD, limits=replace(SIMD.limits, caches=(512, 4096)))
"""A cache of eight lines: short rows lose theirs."""


def turned(x: Node) -> list[Node]:
    return [g.contiguous(g.permute(x, (1, 0)))]


def batched(x: Node) -> list[Node]:
    return [g.neg(g.permute(x, (0, 2, 1)))]


def both_ways(x: Node) -> list[Node]:
    return [g.add(x, g.permute(x, (1, 0)))]


def reversed_axes(x: Node) -> list[Node]:
    return [g.contiguous(g.permute(x, (3, 2, 1, 0)))]


def cropped(x: Node) -> list[Node]:
    part = g.slice(g.permute(x, (1, 0)), (1, 3), (x.shape[1], x.shape[0]))
    return [g.pad(part, (0, 2), (1, 1)), g.exp(part)]


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I8], ids=lambda d: d.short)
@pytest.mark.parametrize(
    ("graph", "shape"),
    [
        (turned, (16, 24)),
        (turned, (45, 37)),
        (turned, (300, 4)),
        (batched, (2, 19, 35)),
        (both_ways, (21, 21)),
        (reversed_axes, (9, 2, 7, 17)),
        (cropped, (23, 41)),
        (turned, (130, 200)),
        (batched, (2, 70, 97)),
        (both_ways, (100, 100)),
        (cropped, (75, 69)),
    ],
)
def test_tiles_of_two_axes_compute_the_graph(graph, shape: tuple[int, ...], dtype: DType) -> None:
    if graph is cropped and dtype is DType.I8:
        pytest.skip("integers have no exponential")
    x = g.input(0, Type(shape, dtype))
    data = np.random.default_rng(0).integers(-50, 50, shape).astype(NUMPY[dtype])
    if graph is cropped:
        data = (data.astype(np.float32) / 50).astype(NUMPY[dtype])
    outputs = graph(x)
    found, _ = run_lowered(outputs, [x], [data], info=SMALL)
    for one, other in zip(found, interpret(outputs, {x: data}), strict=True):
        one, other = (np.asarray(a).astype(np.float64) for a in (one, other))
        np.testing.assert_allclose(one, other, rtol=1e-2 if dtype is DType.BF16 else 1e-5)


@pytest.mark.parametrize(("shape", "expected"), [((64, 64), 1), ((512, 64), 2), ((256, 1024), 2)])
def test_only_where_a_cache_loses_lines(shape: tuple[int, int], expected: int) -> None:
    """64 lines stay until the next row; 512 do not, nor 256 that share the sets of a few."""
    x = g.input(0, Type(shape, DType.F32))
    (call,) = lowered(GraphRequest(tuple(turned(x)), (x,))).calls
    tiles = [s.value for s in statements(call.kernel.body) if hasattr(s, "value")]
    assert max(len(t.shape) for t in tiles) == expected


def test_a_tile_is_turned_in_registers() -> None:
    x = g.input(0, Type((512, 64), DType.F32))
    (call,) = lowered(GraphRequest(tuple(turned(x)), (x,))).calls
    text = render(call.kernel, SIMD).text
    assert "load <8 x float>" in text
    assert "load float" not in text


def test_the_next_block_is_asked_for_line_by_line() -> None:
    """By a load that nothing uses, which is not made; that it stays within the operand shows where
    the interpreter makes it, above."""
    x = g.input(0, Type((512, 256), DType.F32))
    (call,) = lowered(GraphRequest(tuple(turned(x)), (x,))).calls
    (asked,) = unused(call.kernel)
    assert asked.result.type.nbytes == LINE_NBYTES
    text = render(call.kernel, SIMD).text
    assert text.count("call void @llvm.prefetch") == 1
    # The rows of a tile, and a line of what is laid, stored past the caches or in them
    assert text.count("load <8 x float>") == 8 + 2 * 2
