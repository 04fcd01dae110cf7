"""Scaled dot-product attention as plain graph operations that a compiler may fuse."""

from __future__ import annotations

import math

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr.contract import product_operands
from stack.framework.expr.movement import lower
from stack.framework.expr.operand import broadcast_shape, text
from stack.framework.expr.reduce import softmax


def attention_weights(
    query: Node,
    key: Node,
    attn_mask: Node | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Node:
    """softmax(query @ key.T * scale + mask) [..., L, S], in float32 for float16 and bfloat16.

    A bool mask keeps the True places, another one is added. Causal keeps places <= the row's own.
    """
    if len(query.shape) < 2 or len(key.shape) < 2 or query.shape[-1] != key.shape[-1]:
        raise TensorError(f"query {text(query)} does not fit key {text(key)}")
    a, b = product_operands(query, key)
    batch = broadcast_shape([a.shape[:-2], b.shape[:-2]])
    q, k = (g.broadcast(n, (*batch, *n.shape[-2:])) for n in (a, b))
    wide = q.dtype.computed_in if q.dtype.is_narrow else None
    scores = g.matmul(q, g.transpose(k), dtype=wide)
    scores = e.mul(scores, 1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    return softmax(_masked(scores, attn_mask, is_causal), -1)


def _masked(scores: Node, mask: Node | None, is_causal: bool) -> Node:
    if is_causal:
        scores = e.where(lower(*scores.shape[-2:]), scores, -math.inf)
    if mask is None:
        return scores
    if mask.dtype is DType.BOOL:
        return e.where(mask, scores, -math.inf)
    return e.add(scores, mask)
