"""Normalisation. float16 and bfloat16 are computed in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr import reduce as r
from stack.framework.expr.operand import as_float, once, text
from stack.framework.expr.public import layer, operator
from stack.framework.modes import autocast_dtype


@layer(aten="layer_norm", onnx="LayerNormalization")
def layer_norm(
    x: Node,
    normalized_shape: Sequence[int],
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Node:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axes; float32 under
    autocast."""
    dims = _last(x, normalized_shape)
    return _affine(x, _standard(_wide(x), dims, eps), weight, bias)


@operator(method=False, layer=True, aten="rms_norm", onnx="RMSNormalization")
def rms_norm(
    x: Node, normalized_shape: Sequence[int], weight: Node | None = None, eps: float | None = None
) -> Node:
    """x / sqrt(mean(x * x) + eps) * weight over the last axes; float32 under autocast."""
    dims = _last(x, normalized_shape)
    v = _wide(x)
    small = 2.0**-23 if eps is None else eps
    mean = r.mean(g.mul(v, v), dims, keepdim=True)
    return _affine(x, e.mul(v, g.rsqrt(e.add(mean, small))), weight, None)


class Normalised(NamedTuple):
    """What a normalisation by statistics of its own gives."""

    output: Any
    mean: Any
    """float32 or float64 [C]."""
    variance: Any
    """Of all but one free values, so as running statistics hold it."""


def batch_norm_own(
    x: Node, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5
) -> Normalised:
    """batch_norm by the batch's own statistics, and these."""
    v, dims = _wide(x), [i for i in range(len(x.shape)) if i != 1]
    mean = r.mean(v, dims, keepdim=True)
    centred = e.sub(v, mean)
    variance = r.mean(g.mul(centred, centred), dims, keepdim=True)
    y = e.mul(centred, g.rsqrt(e.add(variance, eps)))
    n, c = x.type.size // max(1, x.shape[1]), (x.shape[1],)
    free = e.mul(variance, n / (n - 1) if n > 1 else float("nan"))
    return Normalised(_by_channel(x, y, weight, bias), g.reshape(mean, c), g.reshape(free, c))


def batch_norm_given(
    x: Node,
    mean: Node,
    variance: Node,
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Node:
    """batch_norm by given statistics of each channel."""
    v = _wide(x)
    centred = e.sub(v, _channels(mean, v))
    y = e.mul(centred, g.rsqrt(e.add(_channels(variance, v), eps)))
    return _by_channel(x, y, weight, bias)


@layer(aten="group_norm", onnx="GroupNormalization")
def group_norm(
    input: Node,
    num_groups: int,
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Node:
    """(x - mean) / sqrt(variance + eps) * weight + bias over each of num_groups groups of channels,
    axis 1, and all axes behind it."""
    shape = input.shape
    if len(shape) < 2 or num_groups < 1 or shape[1] % num_groups:
        raise TensorError(f"{num_groups} groups do not divide the channels of {text(input)}")
    per = input.type.size // max(1, shape[0] * num_groups)
    v = g.reshape(_wide(input), (shape[0], num_groups, per))
    return _by_channel(input, g.reshape(_standard(v, (2,), eps), shape), weight, bias)


def instance_norm_own(
    input: Node, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5
) -> Node:
    """instance_norm by each image's own statistics."""
    dims = tuple(range(2, len(input.shape)))
    return _by_channel(input, _standard(_wide(input), dims, eps), weight, bias)


@layer(aten="local_response_norm", onnx="LRN")
@once
def local_response_norm(
    input: Node, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Node:
    """x / (k + alpha * mean of squares over `size` neighbouring channels) ** beta."""
    rank = len(input.shape)
    if rank < 3:
        raise TensorError(f"input has a batch, channels and at least one axis: {text(input)}")
    lo, hi = ([size // 2 if i == 1 else 0 for i in range(rank)],
              [(size - 1) // 2 if i == 1 else 0 for i in range(rank)])  # fmt: skip
    near = g.window(g.pad(e.square(input), lo, hi), 1, size)
    mean = e.div(r.sum(near, 2), size)
    return e.div(input, e.pow(e.add(e.mul(mean, alpha), k), beta))


@layer(aten="norm", onnx="LpNormalization")
@once
def normalize(input: Node, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Node:
    """x divided by its p-norm along an axis, which counts as at least eps."""
    return e.div(input, e.clamp(r.norm(input, p, dim, keepdim=True), min=eps))


def _standard(v: Node, dims: tuple[int, ...], eps: float) -> Node:
    centred = e.sub(v, r.mean(v, dims, keepdim=True))
    variance = r.mean(g.mul(centred, centred), dims, keepdim=True)
    return e.mul(centred, g.rsqrt(e.add(variance, eps)))


def _channels(facts: Node, like: Node) -> Node:
    """A value of each channel, as axis 1 of `like`."""
    if len(like.shape) < 2 or facts.shape != (like.shape[1],):
        raise TensorError(f"{text(facts)} has no value for each channel of {text(like)}")
    return g.reshape(g.cast(facts, like.dtype), (1, facts.shape[0], *[1] * (len(like.shape) - 2)))


def _by_channel(x: Node, y: Node, weight: Node | None, bias: Node | None) -> Node:
    if weight is not None:
        y = e.mul(y, _channels(weight, y))
    if bias is not None:
        y = e.add(y, _channels(bias, y))
    return y if autocast_dtype() else g.cast(y, as_float(x).dtype)


@operator("native_layer_norm", method=False, aten="native_layer_norm")
def _native_layer_norm(
    x: Node, normalized_shape: Sequence[int], weight: Node | None, bias: Node | None, eps: float
) -> list[Node]:
    """layer_norm, the mean, and 1 / sqrt(variance + eps)."""
    dims, v = _last(x, normalized_shape), _wide(x)
    mean = r.mean(v, dims, keepdim=True)
    variance = r.mean(e.square(e.sub(v, mean)), dims, keepdim=True)
    return [layer_norm(x, normalized_shape, weight, bias, eps), mean, g.rsqrt(e.add(variance, eps))]


def _last(x: Node, shape: Sequence[int]) -> tuple[int, ...]:
    n = len(shape)
    if not n or x.shape[-n:] != tuple(shape):
        raise TensorError(f"the last axes of {text(x)} are not the normalised shape {list(shape)}")
    return tuple(range(len(x.shape) - n, len(x.shape)))


def _wide(x: Node) -> Node:
    v = as_float(x)
    return g.cast(v, v.dtype.computed_in)


def _affine(x: Node, y: Node, weight: Node | None, bias: Node | None) -> Node:
    if weight is not None:
        y = e.mul(y, g.cast(weight, y.dtype))
    if bias is not None:
        y = e.add(y, g.cast(bias, y.dtype))
    return y if autocast_dtype() else g.cast(y, as_float(x).dtype)
