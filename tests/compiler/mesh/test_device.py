"""Products and attention on an emulated core group, whose 64 cores pass pieces along a mesh."""

from __future__ import annotations

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.compiler.templates.mesh_block import MeshBlock
from stack.runtime.engine import Engine
from tests.compiler.mesh.attention import attention, attention_of

PRODUCTS = [
    # shape of a, shape of b, type, and which of them lie turned in memory
    ((100, 37), (37, 53), DType.F32, ""),
    ((65, 130), (130, 33), DType.F32, "ab"),
    ((2, 3, 40, 16), (2, 3, 16, 70), DType.F32, "b"),
    ((70, 90), (90, 81), DType.F64, "a"),
    ((101, 37), (37, 53), DType.F16, "b"),
    ((128, 600), (600, 96), DType.BF16, ""),
    ((9, 20), (20, 7), DType.I32, ""),
]


def _input(slot: int, shape: tuple[int, ...], dtype: DType, turned: bool) -> tuple[Node, Node]:
    """An input that lies turned or not, and the matrix that it is."""
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    lying = tuple(shape[i] for i in order) if turned else shape
    x = g.input(slot, Type(lying, dtype))
    return x, g.permute(x, order) if turned else x


def _run(engine: Engine, out: Node, inputs: list[Node], arrays: list[np.ndarray]) -> np.ndarray:
    plan = engine.plan(GraphRequest((out,), tuple(inputs)))
    (found,) = plan.run([engine.put(a, x.dtype) for a, x in zip(arrays, inputs, strict=True)])
    return engine.get(found)


@pytest.mark.parametrize(("left", "right", "dtype", "turned"), PRODUCTS)
def test_products(
    engine: Engine, left: tuple[int, ...], right: tuple[int, ...], dtype: DType, turned: str
) -> None:
    """Sums of whole numbers are exact in any order; an epilogue follows."""
    rng = np.random.default_rng(left[-1])
    a, m = _input(0, left, dtype, "a" in turned)
    b, n = _input(1, right, dtype, "b" in turned)
    arrays = [rng.integers(-2, 3, x.shape).astype(NUMPY[dtype]) for x in (a, b)]
    product = g.matmul(m, n)
    found = _run(engine, g.add(product, product), [a, b], arrays)
    values = [x.astype(np.float64) for x in arrays]
    for i, letter in enumerate("ab"):
        values[i] = values[i].swapaxes(-1, -2) if letter in turned else values[i]
    expected = 2 * (values[0] @ values[1])
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(NUMPY[dtype]))


@pytest.mark.parametrize(
    ("shape", "keys", "causal", "dtype"),
    [
        ((2, 50, 16), 50, True, DType.F32),
        ((520, 8), 70, False, DType.F32),
        ((2, 40, 18), 70, False, DType.F16),
    ],
)
def test_attention(
    engine: Engine, shape: tuple[int, ...], keys: int, causal: bool, dtype: DType
) -> None:
    rng = np.random.default_rng(keys)
    out, inputs = attention(shape, keys, causal, dtype)
    arrays = [rng.standard_normal(x.shape).astype(NUMPY[dtype]) for x in inputs]
    found = _run(engine, out, inputs, arrays)
    least = 1e-6 if dtype is DType.F32 else 1e-3
    np.testing.assert_allclose(found, attention_of(*arrays, causal), rtol=10 * least, atol=least)


CUTS = [
    # shape of a, shape of b, turned, and a cut that the estimate would not choose
    ((13, 71), (71, 12), "b", MeshBlock(8, 16, 24, together=False, lines=8)),
    ((50, 90), (90, 30), "", MeshBlock(5, 8, 8, together=True, lines=1)),
]


@pytest.mark.parametrize(("left", "right", "turned", "cut"), CUTS)
def test_other_cuts(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    left: tuple[int, ...],
    right: tuple[int, ...],
    turned: str,
    cut: MeshBlock,
) -> None:
    monkeypatch.setattr("stack.compiler.templates.mesh_matmul.choose_block", lambda *facts: cut)
    test_products(engine, left, right, DType.I32, turned)
