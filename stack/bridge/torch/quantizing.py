"""Rows of what training for quantized numbers calls: floats that are rounded to those."""

from __future__ import annotations

from typing import Any

from hal.tile.node import Node
from stack import ops as g
from stack.bridge.torch.rows import row
from stack.framework.expr import elementwise as e


def _rounded(x: Node, scale: Any, zero: Any, least: int, most: int) -> list[Node]:
    """The nearest of the multiples of `scale` that quantized numbers are, and which elements lie
    between the least and the greatest."""
    steps = e.mul(x, e.div(1.0, scale))
    exact = isinstance(zero, Node) and zero.dtype.is_float  # a zero between two numbers
    at = e.round(e.add(steps, zero)) if exact else e.add(e.round(steps), zero)
    inside = g.and_(e.ge(at, least), e.le(at, most))
    return [g.cast(e.mul(e.sub(e.clamp(at, least, most), zero), scale), x.dtype), inside]


@row("fake_quantize_per_tensor_affine_cachemask")
def _per_tensor(x: Node, scale: float, zero: int, least: int, most: int) -> list[Node]:
    return _rounded(x, g.full((), scale, x.dtype), zero, least, most)


@row("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def _per_tensor_given(
    x: Node, scale: Node, zero: Node, enabled: Node, least: int, most: int
) -> list[Node]:
    on = g.reshape(e.ne(enabled, 0), ())
    made, inside = _rounded(x, g.reshape(scale, ()), g.reshape(zero, ()), least, most)
    return [e.where(on, made, x), e.where(on, inside, True)]


@row("fake_quantize_per_channel_affine_cachemask")
def _per_channel(x: Node, scale: Node, zero: Node, axis: int, least: int, most: int) -> list[Node]:
    line = tuple([n if i == axis % len(x.shape) else 1 for i, n in enumerate(x.shape)])
    return _rounded(x, g.reshape(scale, line), g.reshape(zero, line), least, most)
