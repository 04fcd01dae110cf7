"""Attention as one kernel, interpreted."""

from __future__ import annotations

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack.framework.expr.movement import lower
from stack.ir import build as g
from tests.compiler.lowered import run_lowered
from tests.compiler.mesh.machine import meshed


def _attention(shape: tuple[int, ...], keys: int, causal: bool) -> tuple[Node, list[Node]]:
    q = g.input(0, Type(shape, DType.F32))
    k, v = (g.input(i, Type((*shape[:-2], keys, shape[-1]), DType.F32)) for i in (1, 2))
    scores = g.matmul(q, g.permute(k, (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)))
    scores = g.mul(scores, g.full_like(scores, 1 / np.sqrt(shape[-1])))
    if causal:
        alone = (1,) * (len(shape) - 2)
        seen = g.expand(g.reshape(lower(shape[-2], keys), (*alone, shape[-2], keys)), scores.shape)
        scores = g.where(seen, scores, g.full_like(scores, -np.inf))
    last = (len(shape) - 1,)
    power = g.exp(g.sub(scores, g.expand(g.reduce("max", scores, last), scores.shape)))
    over = g.expand(g.recip(g.reduce("sum", power, last)), scores.shape)
    return g.matmul(g.mul(power, over), v), [q, k, v]


def _expected(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    scores = q.astype(np.float64) @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("shape", "keys"), [((2, 2, 21, 5), 21), ((70, 8), 33), ((1, 40, 3), 40)])
def test_attention(shape: tuple[int, ...], keys: int, causal: bool) -> None:
    rng = np.random.default_rng(keys)
    sizes = (shape, (*shape[:-2], keys, shape[-1]), (*shape[:-2], keys, shape[-1]))
    arrays = [rng.standard_normal(s).astype(np.float32) for s in sizes]
    out, inputs = _attention(shape, keys, causal)
    (found,), program = run_lowered([out], inputs, arrays, info=meshed(2, 2))
    assert len(program.calls) == 1
    np.testing.assert_allclose(found, _expected(*arrays, causal), rtol=1e-5, atol=1e-6)
