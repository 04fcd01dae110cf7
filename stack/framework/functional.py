"""Layers as functions: `import stack.framework.functional as F`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stack.framework import layers
from stack.framework.errors import TensorError
from stack.framework.expr import attention, create, norm
from stack.framework.layers import *
from stack.framework.modes import no_grad
from stack.framework.random import dropout
from stack.framework.recorded import record
from stack.framework.tensor import Tensor, apply, call_several

for _expression in (
    *(attention.attended, create.one_hot),
    *(norm.batch_norm_given, norm.instance_norm_own),
):
    record(_expression)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """The forms in place."""
        return getattr(layers, name)


__all__ = ["batch_norm", "dropout", "instance_norm", "scaled_dot_product_attention"]
__all__ += layers.__all__


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value over the last two axes; scores in float32 for
    halves.

    A bool mask keeps the True places, another one is added; a row with every key masked gives 0.
    Causal keeps places <= the row's own. With enable_gqa each head of key and value, axis -3,
    serves as many heads of query.
    """
    if not dropout_p:
        how = (attn_mask, is_causal, scale, enable_gqa)
        return apply(attention.attended, query, key, value, *how)
    if enable_gqa:
        key, value = (apply(attention.shared, x, query) for x in (key, value))
    weights = apply(attention.open_weights, query, key, attn_mask, is_causal, scale)
    return dropout(weights, dropout_p).to(value.dtype) @ value


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias for each channel, axis 1 of x.

    In training the statistics are the batch's own, and the running ones, if given, move towards
    them in place by `momentum`; else the running ones are taken.
    """
    if not input.numel():
        return input * 1.0
    if not training:
        if running_mean is None or running_var is None:
            raise TensorError("batch_norm: without training it needs running_mean and running_var")
        given = (running_mean, running_var, weight, bias, eps)
        return apply(norm.batch_norm_given, input, *given)
    y, mean, variance = call_several(norm.batch_norm_own, input, weight, bias, eps)
    if running_mean is not None and running_var is not None:
        _follow(running_mean, mean, momentum)
        _follow(running_var, variance, momentum)
    return y


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """batch_norm of each image by itself; running statistics follow the means over the images."""
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None and running_var is not None:
        with no_grad():
            every = input.detach().float().flatten(2)
            _follow(running_mean, every.mean(2).mean(0), momentum)
            _follow(running_var, every.var(2).mean(0), momentum)
    return apply(norm.instance_norm_own, input, weight, bias, eps)


def _follow(running: Tensor, now: Tensor, momentum: float) -> None:
    with no_grad():
        running.copy_(running * (1 - momentum) + now.detach() * momentum)
