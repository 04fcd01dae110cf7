"""Attention as a graph, and by numpy."""

from __future__ import annotations

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.framework.expr.movement import lower


def attention(
    shape: tuple[int, ...],
    keys: int,
    causal: bool,
    dtype: DType = DType.F32,
    mask: Node | None = None,
) -> tuple[Node, list[Node]]:
    """A graph of attention with scaled scores, of keys where a mask [rows, keys] holds, and its
    inputs q, k and v."""
    q = g.input(0, Type(shape, dtype))
    k, v = (g.input(i, Type((*shape[:-2], keys, shape[-1]), dtype)) for i in (1, 2))
    turned = g.permute(k, (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
    scores = g.matmul(q, turned, dtype=DType.F32)
    scores = g.mul(scores, g.full_like(scores, 1 / np.sqrt(shape[-1])))
    mask = lower(shape[-2], keys) if causal else mask
    if mask is not None:
        alone = (1,) * (len(shape) - 2)
        seen = g.expand(g.reshape(mask, (*alone, shape[-2], keys)), scores.shape)
        scores = g.where(seen, scores, g.full_like(scores, -np.inf))
    last = (len(shape) - 1,)
    power = g.exp(g.sub(scores, g.expand(g.reduce("max", scores, last), scores.shape)))
    over = g.expand(g.recip(g.reduce("sum", power, last)), scores.shape)
    return g.matmul(g.cast(g.mul(power, over), dtype), v), [q, k, v]


def attention_of(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool, mask: np.ndarray | None = None
) -> np.ndarray:
    """What it is, in f64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    mask = np.tri(*scores.shape[-2:], dtype=bool) if causal else mask
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v
