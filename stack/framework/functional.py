"""Layers as functions: `import stack.framework.functional as F`."""

from __future__ import annotations

from stack.framework import layers
from stack.framework.expr import attention
from stack.framework.layers import *
from stack.framework.random import dropout
from stack.framework.tensor import Tensor, apply

__all__ = ["dropout", "scaled_dot_product_attention"]
__all__ += layers.__all__


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value over the last two axes; scores in float32 for
    halves.

    A bool mask keeps the True places, another one is added. Causal keeps places <= the row's own.
    """
    weights = apply(attention.attention_weights, query, key, attn_mask, is_causal, scale)
    return dropout(weights, dropout_p).to(value.dtype) @ value
