"""Numbers in fewer bits: by a scale in integers and float8, and in 4 bits with a scale for each
group. Compressed values are ordinary tensors; what computes with them casts them first."""

from __future__ import annotations

from typing import Any, NamedTuple

from hal.core.dtypes import DType
from hal.tile.node import Node
from hal.tile.numeric import bounds
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr import reduce as r
from stack.framework.expr.elementwise import largest
from stack.framework.expr.operand import Number, Operand, axis, text
from stack.framework.expr.public import layer, operator
from stack.framework.store import barrier


def _along(value: Operand, x: Node, dim: int | None) -> Operand:
    """A number for all of x, or one for each place of an axis."""
    if dim is None or not isinstance(value, Node) or not value.shape:
        return value
    a = axis(dim, len(x.shape))
    if value.shape != (x.shape[a],):
        raise TensorError(f"{text(value)} has no number for each place of dim {dim} of {text(x)}")
    return g.reshape(value, (x.shape[a], *[1] * (len(x.shape) - 1 - a)))


@layer(aten="quantize_per_channel", onnx="QuantizeLinear")
def quantize(
    input: Node,
    scale: Operand,
    zero_point: Operand | None = None,
    dtype: DType = DType.I8,
    dim: int | None = None,
) -> Node:
    """input / scale (+ zero_point) in an integer type, rounded with halves to even, or in float8;
    what is beyond the type becomes its last number. Scale and zero point are numbers, or tensors
    with one for each place of `dim`."""
    scaled = e.div(input, _along(scale, input, dim))
    if dtype.is_float:
        if zero_point is not None:
            raise TensorError("floats have no zero point")
        return g.cast(e.clamp(scaled, -largest(dtype), largest(dtype)), dtype)
    if not dtype.is_int or dtype.bits > 16:
        raise TensorError(f"quantize gives integers of 8 or 16 bits, or float8, not {dtype.numpy}")
    low, high = bounds(dtype)
    moved = g.round(scaled)
    if zero_point is not None:
        moved = e.add(moved, _along(zero_point, input, dim))
    return g.cast(e.clamp(moved, low, high), dtype)


@layer(aten="dequantize", onnx="DequantizeLinear")
def dequantize(
    input: Node,
    scale: Operand,
    zero_point: Operand | None = None,
    dim: int | None = None,
    dtype: DType = DType.F32,
) -> Node:
    """(input - zero_point) * scale, as a float type."""
    x = g.cast(input, DType.F32)
    if zero_point is not None:
        zero = _along(zero_point, input, dim)
        x = e.sub(x, g.cast(zero, DType.F32) if isinstance(zero, Node) else zero)
    return g.cast(e.mul(x, _along(scale, input, dim)), dtype)


class Groups(NamedTuple):
    """4-bit numbers, two in each byte, and the scale of each group."""

    packed: Any
    scales: Any


@layer(aten="")
def quantize_groups(input: Node, group_size: int = 32) -> Any:
    """uint8[..., n / 2] and float[..., n / group_size]: the last axis in groups, each of whole
    numbers from -7 to 7 times a scale, the size of its greatest element / 7. The low half of a byte
    holds the first of two elements, plus 8."""
    n = input.shape[-1] if input.shape else 0
    if group_size < 2 or group_size % 2 or not n or n % group_size:
        raise TensorError(f"{text(input)} has no groups of {group_size} along its last axis")
    lead = input.shape[:-1]
    x = g.reshape(input, (*lead, n // group_size, group_size))
    scales = e.div(r.amax(g.abs(x), -1, keepdim=True), 7.0)
    safe = e.where(e.eq(scales, 0), 1.0, scales)
    whole = g.cast(e.add(e.clamp(g.round(e.div(x, safe)), -7.0, 7.0), 8.0), DType.U8)
    pairs = g.reshape(whole, (*lead, n // 2, 2))
    low, high = (g.reshape(g.slice_axis(pairs, -1, i, i + 1), (*lead, n // 2)) for i in (0, 1))
    packed = e.bitwise_or(low, e.shift_left(high, 4))
    return Groups(packed, g.reshape(scales, (*lead, n // group_size)))


@layer(aten="")
def dequantize_groups(packed: Node, scales: Node) -> Node:
    """The numbers [..., n] of which quantize_groups gave these, in the scales' type."""
    halves = packed.shape[-1]
    groups = scales.shape[-1]
    if packed.dtype is not DType.U8 or not groups or (2 * halves) % groups:
        raise TensorError(f"{text(packed)} has no {groups} groups of 4-bit numbers")
    lead = packed.shape[:-1]
    low, high = e.bitwise_and(packed, 15), e.shift_right(packed, 4)
    pairs = [g.reshape(v, (*lead, halves, 1)) for v in (low, high)]
    whole = e.sub(g.cast(g.concat(pairs, len(lead) + 1), scales.dtype), 8.0)
    x = g.reshape(whole, (*lead, groups, 2 * halves // groups))
    return g.reshape(e.mul(x, g.reshape(scales, (*scales.shape, 1))), (*lead, 2 * halves))


@operator(method=False, aten="fake_quantize_per_tensor_affine")
def fake_quantize_per_tensor_affine(
    input: Node, scale: Operand, zero_point: Operand, quant_min: int, quant_max: int
) -> Node:
    """input rounded to the numbers that quant_min to quant_max stand for; the gradient passes
    where it was within them."""
    return _faked(input, scale, zero_point, quant_min, quant_max)


@operator(method=False, aten="fake_quantize_per_channel_affine")
def fake_quantize_per_channel_affine(
    input: Node, scale: Node, zero_point: Node, axis: int, quant_min: int, quant_max: int
) -> Node:
    """fake_quantize_per_tensor_affine with a scale and zero point for each place of an axis."""
    by, zero = (_along(v, input, axis) for v in (scale, zero_point))
    return _faked(input, by, zero, quant_min, quant_max)


def _faked(x: Node, scale: Operand, zero: Operand, low: Number, high: Number) -> Node:
    fixed = barrier(x)
    by = g.cast(scale, x.dtype) if isinstance(scale, Node) else scale
    at = g.cast(zero, x.dtype) if isinstance(zero, Node) else zero
    place = e.add(g.round(e.div(fixed, by)), at)
    held = e.mul(e.sub(e.clamp(place, low, high), at), by)
    inside = g.and_(e.le(low, place), e.le(place, high))
    passed = e.where(inside, e.sub(x, fixed), 0.0)
    return e.add(held, passed)
