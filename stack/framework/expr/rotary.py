"""Places of tokens as angles by which pairs of features are turned (Su et al., 2021)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import text
from stack.framework.expr.public import layer


class Angles(NamedTuple):
    """[..., dim / 2]."""

    cos: Any
    sin: Any


@layer(aten="")
def rotary_angles(positions: Node, dim: int, base: float = 10000.0) -> Any:
    """Cosines and sines [..., dim / 2] of each position times base ** (-2 i / dim), in float32."""
    if dim % 2:
        raise TensorError(f"features are turned in pairs, and {dim} of them have none")
    steps = e.mul(g.arange(dim // 2, DType.F32), -2 / dim * math.log(base))
    angle = e.mul(g.reshape(g.cast(positions, DType.F32), (*positions.shape, 1)), g.exp(steps))
    return Angles(g.cos(angle), g.sin(angle))


@layer(aten="", onnx="RotaryEmbedding")
def rotary_embedding(input: Node, cos: Node, sin: Node, interleaved: bool = False) -> Node:
    """input [..., D] with the pair (i, i + D / 2) of features, or (2 i, 2 i + 1) where interleaved,
    turned by the angle whose cosine and sine [..., D / 2] broadcast; in float32, given in input's
    type."""
    n = input.shape[-1] if input.shape else 0
    if n % 2 or not n or cos.shape[-1:] != (n // 2,) or sin.shape != cos.shape:
        raise TensorError(f"{text(input)} is not turned by angles {text(cos)} and {text(sin)}")
    lead = input.shape[:-1]
    x = g.cast(input, input.dtype.computed_in)
    if interleaved:
        pairs = g.reshape(x, (*lead, n // 2, 2))
        a, b = (g.reshape(g.slice_axis(pairs, -1, i, i + 1), (*lead, n // 2)) for i in (0, 1))
    else:
        a, b = (g.slice_axis(x, -1, i * n // 2, (i + 1) * n // 2) for i in (0, 1))
    turned = e.sub(e.mul(a, cos), e.mul(b, sin)), e.add(e.mul(b, cos), e.mul(a, sin))
    if interleaved:
        parts = [g.reshape(v, (*v.shape, 1)) for v in turned]
        joined = g.concat(parts, len(parts[0].shape) - 1)
        found = g.reshape(joined, (*turned[0].shape[:-1], n))
    else:
        found = g.concat(list(turned), len(turned[0].shape) - 1)
    return g.cast(found, input.dtype)
