"""Grids that are no multiple of a mesh: cores without an instance, or of another block, share
nothing, and every instance gives its part all the same."""

from __future__ import annotations

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.interpret import interpret
from hal.tile.kernel import Kernel
from hal.tile.node import Node, Type
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.compiler.lower.mesh.loop import products
from stack.compiler.lower.mesh.render import render_together
from stack.compiler.lower.mesh.stream import streams
from stack.compiler.program import GraphRequest
from stack.compiler.templates.mesh_block import MeshBlock
from stack.runtime.engine import Engine
from tests.compiler.lowered import lowered
from tests.compiler.mesh.attention import attention
from tests.compiler.scratchpad.machine import launch

GRIDS = [(1,), (65,), (32, 2), (96, 2), (64, 2)]
"""Of the last three, whose size is a multiple of 64, two begin a row of the grid within a mesh."""


def _kernel(engine: Engine, out: Node, inputs: list[Node]) -> Kernel:
    """The only kernel of a graph, which has work for 128 instances."""
    (call,) = lowered(GraphRequest((out,), tuple(inputs)), engine.device.info).calls
    assert call.grid == (128, 1, 1)
    return call.kernel


def _agree(
    engine: Engine, kernel: Kernel, grid: tuple[int, ...], arrays: list[np.ndarray], tol: float = 0
) -> None:
    """What a core group leaves in the buffers is what the interpreter leaves there. The rows of a
    grid do the same work, so one is interpreted."""
    names = [p.name for p in kernel.params]
    found, wanted = ({n: a.copy() for n, a in zip(names, arrays, strict=True)} for _ in "12")
    launch(engine.device, render_together(kernel, engine.device.info), grid, found, {})
    interpret(kernel, (grid[0], 1, 1), wanted, {})
    for name in names:
        said = f"{name} after grid {grid}"
        np.testing.assert_allclose(found[name], wanted[name], tol, tol, err_msg=said)


def test_products(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whole numbers, whose sums are exact. The second 64 instances have other columns."""
    cut = MeshBlock(5, 8, 8, together=True, lines=5)
    monkeypatch.setattr("stack.compiler.templates.mesh_matmul.choose_block", lambda *facts: cut)
    a, b = g.input(0, Type((30, 20), DType.F32)), g.input(1, Type((20, 100), DType.F32))
    kernel = _kernel(engine, g.matmul(a, b), [a, b])
    assert [p.together for p in products(kernel, engine.device.info).values()] == [(8, 8)]
    rng = np.random.default_rng(1)
    arrays = [rng.integers(-3, 4, n).astype(np.float32) for n in (30 * 20, 20 * 100, 30 * 100)]
    for grid in GRIDS:
        _agree(engine, kernel, grid, arrays)


def test_streams(engine: Engine) -> None:
    """The second 64 instances are at another head, with other keys and values."""
    out, inputs = attention((2, 512, 8), 16, False, DType.F32)
    kernel = _kernel(engine, out, inputs)
    assert [s.sharing for s in streams(kernel, engine.device.info, 0).values()] == [64]
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal(x.type.size).astype(NUMPY[x.dtype]) for x in inputs]
    for grid in GRIDS:
        _agree(engine, kernel, grid, [*arrays, np.zeros(out.type.size, np.float32)], 1e-6)
