"""Kernels whose innermost axis is the phases of a stride: registers of all of them are one run."""

from __future__ import annotations

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.compiler.text.llvm import render
from stack.ir.interpret import interpret
from tests.compiler.lowered import SIMD, lowered, run_lowered


def spread(x: Node, w: Node) -> list[Node]:
    """One value for all phases, times another for each."""
    return [g.mul(x, g.expand(w, x.shape))]


def from_phases(x: Node, w: Node) -> list[Node]:
    """Each phase from a row of its own, and of what precedes it."""
    c, n, s = x.shape
    rows = g.permute(g.reshape(x, (c, s, n)), (0, 2, 1))
    before = g.pad(g.slice(w, (0, 0, 0), (c, n - 1, 1)), (0, 1, 0), (0, 0, 0))
    return [g.add(rows, g.expand(before, x.shape))]


def kept_and_summed(x: Node, w: Node) -> list[Node]:
    y = g.mul(x, g.expand(w, x.shape))
    return [y, g.reduce("sum", y, (1, 2)), g.reduce("max", g.mul(y, x), (1, 2))]


GRAPHS = [spread, from_phases, kept_and_summed]


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I32], ids=lambda d: d.short)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("shape", [(3, 28, 2), (2, 45, 3), (5, 16, 4), (2, 9, 2), (1, 33, 4)])
def test_phases_compute_the_graph(graph, shape: tuple[int, ...], dtype: DType) -> None:
    x, w = g.input(0, Type(shape, dtype)), g.input(1, Type((*shape[:2], 1), dtype))
    rng = np.random.default_rng(0)
    data = {n: rng.integers(-9, 9, n.shape).astype(NUMPY[dtype]) for n in (x, w)}
    outputs = graph(x, w)
    found, _ = run_lowered(outputs, [x, w], list(data.values()))
    for one, other in zip(found, interpret(outputs, data), strict=True):
        one, other = (np.asarray(a).astype(np.float64) for a in (one, other))
        np.testing.assert_array_equal(one, other)


def test_a_run_is_read_and_written_whole() -> None:
    x, w = g.input(0, Type((64, 32, 2), DType.F32)), g.input(1, Type((64, 32, 1), DType.F32))
    for graph, reads in ((spread, 1), (from_phases, 0)):
        call = lowered(GraphRequest(tuple(graph(x, w)), (x, w))).calls[0]
        text = render(call.kernel, SIMD).text
        assert "store <16 x float>" in text
        assert ("load <16 x float>" in text) == bool(reads)
        assert "load <2 x float>" not in text
