"""Normalisation over the last axes. float16 and bfloat16 are computed in float32."""

from __future__ import annotations

from collections.abc import Sequence

from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr import reduce as r
from stack.framework.expr.operand import as_float, text
from stack.framework.expr.public import operator
from stack.framework.mode import autocast_dtype


@operator(function=False, method=False, layer=True, aten="layer_norm", onnx="LayerNormalization")
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
    v = _wide(x)
    centred = e.sub(v, r.mean(v, dims, keepdim=True))
    variance = r.mean(g.mul(centred, centred), dims, keepdim=True)
    return _affine(x, e.mul(centred, g.rsqrt(e.add(variance, eps))), weight, bias)


@operator(function=False, method=False, layer=True, aten="rms_norm", onnx="RMSNormalization")
def rms_norm(
    x: Node, normalized_shape: Sequence[int], weight: Node | None = None, eps: float | None = None
) -> Node:
    """x / sqrt(mean(x * x) + eps) * weight over the last axes; float32 under autocast."""
    dims = _last(x, normalized_shape)
    v = _wide(x)
    small = 2.0**-23 if eps is None else eps
    mean = r.mean(g.mul(v, v), dims, keepdim=True)
    return _affine(x, e.mul(v, g.rsqrt(e.add(mean, small))), weight, None)


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
