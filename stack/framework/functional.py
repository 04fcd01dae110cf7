"""Layers as functions: `import stack.framework.functional as F`."""

from __future__ import annotations

from collections.abc import Sequence

from stack.framework.expr import activation, attention, contract, index, loss, movement, norm
from stack.framework.functions import log_softmax, logsumexp, one_hot, relu, sigmoid, softmax, tanh
from stack.framework.random import dropout
from stack.framework.tensor import Scalar, Tensor, apply

__all__ = [
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "logsumexp",
    "mse_loss",
    "one_hot",
    "pad",
    "relu",
    "rms_norm",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias; weight is [out, in]. Under autocast the result has its element type."""
    return apply(contract.linear, x, weight, bias)


def embedding(x: Tensor, weight: Tensor) -> Tensor:
    """weight's rows at the integers x, which must be in range (others give 0)."""
    return apply(index.embedding, weight, x)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x * Phi(x) for the normal distribution's Phi; "tanh" approximates it."""
    return apply(activation.gelu, x, approximate)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return apply(activation.silu, x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow."""
    return apply(activation.softplus, x)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x where it is positive, else negative_slope * x."""
    return apply(activation.leaky_relu, x, negative_slope)


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axes; float32 under
    autocast."""
    return apply(norm.layer_norm, x, tuple(normalized_shape), weight, bias, eps)


def rms_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """x / sqrt(mean(x * x) + eps) * weight over the last axes; float32 under autocast."""
    return apply(norm.rms_norm, x, tuple(normalized_shape), weight, eps)


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


def cross_entropy(
    input: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log softmax(input)[target]; classes are axis 1 (axis 0 of a single row), targets integers.

    Entries equal to ignore_index do not count. The mean is over those that count.
    """
    return apply(loss.cross_entropy, input, target, ignore_index, reduction, label_smoothing)


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The squares of the differences."""
    return apply(loss.mse_loss, input, target, reduction)


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The absolute differences."""
    return apply(loss.l1_loss, input, target, reduction)


def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, reduction: str = "mean"
) -> Tensor:
    """-(target * log sigmoid(input) + (1 - target) * log sigmoid(-input)), without overflow."""
    return apply(loss.binary_cross_entropy_with_logits, input, target, reduction)


def pad(x: Tensor, pad: Sequence[int], value: Scalar = 0) -> Tensor:
    """x with `value` around it: pairs (before, after) of the last axis, then of the one before it,
    ..."""
    return apply(movement.pad, x, tuple(pad), value)
