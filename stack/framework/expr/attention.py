"""Scaled dot-product attention as plain graph operations that a compiler may fuse."""

from __future__ import annotations

import math

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr import reduce as r
from stack.framework.expr.contract import matmul, product_operands
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
    if is_causal:
        scores = e.where(lower(*scores.shape[-2:]), scores, -math.inf)
    if attn_mask is None:
        return softmax(scores, -1)
    if attn_mask.dtype is DType.BOOL:
        return softmax(e.where(attn_mask, scores, -math.inf), -1)
    return softmax(e.add(scores, attn_mask), -1)


def attended(
    query: Node,
    key: Node,
    value: Node,
    attn_mask: Node | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Node:
    """attention_weights @ value. Rows without a key that the mask lets through give 0. With
    enable_gqa each head of key and value, axis -3, serves as many of query's."""
    if enable_gqa:
        key, value = (shared(x, query) for x in (key, value))
    attn_mask, has_key = _opened(attn_mask)
    weights = attention_weights(query, key, attn_mask, is_causal, scale)
    found = matmul(g.cast(weights, value.dtype), value)
    return found if has_key is None else e.where(has_key, found, 0.0)


def open_weights(
    query: Node,
    key: Node,
    attn_mask: Node | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Node:
    """`attention_weights`, of which rows without a key that the mask lets through are 0."""
    attn_mask, has_key = _opened(attn_mask)
    weights = attention_weights(query, key, attn_mask, is_causal, scale)
    return weights if has_key is None else e.where(has_key, weights, 0.0)


def _opened(attn_mask: Node | None) -> tuple[Node | None, Node | None]:
    """A mask that lets keys through in every row, and which rows have some by themselves."""
    if attn_mask is None:
        return None, None
    is_open = attn_mask if attn_mask.dtype is DType.BOOL else e.ne(attn_mask, -math.inf)
    has_key = r.any_(is_open, -1, keepdim=True)
    free = True if attn_mask.dtype is DType.BOOL else 0.0
    return e.where(has_key, attn_mask, free), has_key


def shared(x: Node, query: Node) -> Node:
    """Keys or values with a head for each of query's, by `enable_gqa`."""
    heads, own = query.shape[-3], x.shape[-3]
    if not own or heads % own:
        raise TensorError(f"{heads} heads of query are no multiple of {own} of {text(x)}")
    apart = g.reshape(x, (*x.shape[:-2], 1, *x.shape[-2:]))
    grown = g.expand(apart, (*x.shape[:-2], heads // own, *x.shape[-2:]))
    return g.reshape(grown, (*x.shape[:-3], heads, *x.shape[-2:]))
