"""Activation functions. float16 and bfloat16 are computed in float32 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable

from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import as_float, once, real_axis, text
from stack.framework.expr.public import layer, operator


def rounded_once(function: Callable[[Node], Node], x: Node) -> Node:
    """function(x) computed in at least float32 and given in x's own float type."""
    found: Node = once(function)(as_float(x))
    return found


@operator(layer=True, in_place=True, aten="relu", onnx="Relu")
def relu(x: Node) -> Node:
    """x where it is positive, else 0; NaN stays. The gradient at 0 is 0."""
    zero = g.full_like(x, 0)
    return g.where(g.le(x, zero), zero, x)


@layer(in_place=True, aten="leaky_relu", onnx="LeakyRelu")
@once
def leaky_relu(input: Node, negative_slope: float = 0.01) -> Node:
    """x where it is positive, else negative_slope * x."""
    return e.where(e.gt(input, 0), input, e.mul(input, negative_slope))


@layer(in_place=True, aten="silu")
def silu(input: Node) -> Node:
    """x * sigmoid(x)."""
    return rounded_once(lambda v: g.mul(v, e.sigmoid(v)), input)


@layer(aten="softplus", onnx="Softplus")
def softplus(input: Node, beta: float = 1, threshold: float = 20) -> Node:
    """log(1 + exp(beta * x)) / beta, without overflow; x itself where beta * x > threshold."""

    def function(x: Node) -> Node:
        v = e.mul(x, beta)
        return e.where(e.gt(v, threshold), x, e.div(log1p_exp(v), beta))

    return rounded_once(function, input)


def log1p_exp(x: Node) -> Node:
    """log(1 + exp(x)), without overflow."""
    far = e.where(e.gt(x, 0), g.neg(x), x)  # -|x| with the slope of the branch that relu takes at 0
    return g.add(relu(x), g.log1p(g.exp(far)))


@layer(aten="log_sigmoid")
def logsigmoid(input: Node) -> Node:
    """log(sigmoid(x)), without overflow."""
    return rounded_once(lambda v: g.neg(log1p_exp(g.neg(v))), input)


@layer(in_place=True, aten="elu", onnx="Elu")
def elu(input: Node, alpha: float = 1.0) -> Node:
    """x where it is positive, else alpha * (exp(x) - 1)."""
    return rounded_once(lambda v: _elu(v, alpha), input)


def _elu(x: Node, alpha: float) -> Node:
    below = e.where(e.gt(x, 0), 0.0, x)
    return e.where(e.gt(x, 0), x, e.mul(g.expm1(below), alpha))


@layer(in_place=True, aten="celu", onnx="Celu")
def celu(input: Node, alpha: float = 1.0) -> Node:
    """x where it is positive, else alpha * (exp(x / alpha) - 1)."""
    return rounded_once(lambda v: e.mul(_elu(e.div(v, alpha), 1.0), alpha), input)


@layer(in_place=True, aten="selu", onnx="Selu")
def selu(input: Node) -> Node:
    """elu with the scale and alpha that keep mean 0 and variance 1."""
    scale, alpha = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
    return rounded_once(lambda v: e.mul(_elu(v, alpha), scale), input)


@layer(in_place=True, aten="relu6")
def relu6(input: Node) -> Node:
    """x limited to [0, 6]."""
    return hardtanh(input, 0.0, 6.0)


@layer(in_place=True, aten="hardtanh", onnx="Clip")
def hardtanh(input: Node, min_val: float = -1.0, max_val: float = 1.0) -> Node:
    """x limited to [min_val, max_val]; the gradient at the limits is 0."""
    low, high = e.le(input, min_val), e.le(max_val, input)
    return e.where(low, min_val, e.where(high, max_val, input))


@layer(in_place=True, aten="hardsigmoid", onnx="HardSigmoid")
def hardsigmoid(input: Node) -> Node:
    """x / 6 + 1/2 limited to [0, 1]."""
    return rounded_once(lambda v: e.div(hardtanh(e.add(v, 3), 0.0, 6.0), 6), input)


@layer(in_place=True, aten="hardswish", onnx="HardSwish")
def hardswish(input: Node) -> Node:
    """x * hardsigmoid(x)."""
    return rounded_once(lambda v: g.mul(v, e.div(hardtanh(e.add(v, 3), 0.0, 6.0), 6)), input)


@layer(aten="hardshrink")
def hardshrink(input: Node, lambd: float = 0.5) -> Node:
    """x, but 0 within [-lambd, lambd]."""
    return e.where(e.le(g.abs(input), lambd), 0.0, input)


@layer(aten="softshrink", onnx="Shrink")
@once
def softshrink(input: Node, lambd: float = 0.5) -> Node:
    """x moved by lambd towards 0, and 0 within [-lambd, lambd]."""
    above = e.where(e.gt(input, lambd), e.sub(input, lambd), e.mul(input, 0.0))
    return e.where(e.lt(input, -lambd), e.add(input, lambd), above)


@layer(aten="tanhshrink")
@once
def tanhshrink(input: Node) -> Node:
    """x - tanh(x)."""
    return e.sub(input, g.tanh(as_float(input)))


@layer(aten="softsign", onnx="Softsign")
@once
def softsign(input: Node) -> Node:
    """x / (1 + |x|)."""
    return e.div(input, e.add(g.abs(input), 1))


@layer(in_place=True, aten="mish", onnx="Mish")
def mish(input: Node) -> Node:
    """x * tanh(softplus(x))."""
    return rounded_once(lambda v: g.mul(v, g.tanh(log1p_exp(v))), input)


@layer(in_place=True, aten="threshold", onnx="ThresholdedRelu")
def threshold(input: Node, threshold: float, value: float) -> Node:
    """x where it is above the threshold, else value."""
    return e.where(e.le(input, threshold), value, input)


@operator(method=True, layer=True, aten="prelu", onnx="PRelu")
def prelu(input: Node, weight: Node) -> Node:
    """x where it is positive, else weight * x; weight has one value, or one for each channel,
    axis 1."""
    if weight.type.size > 1:
        line = (weight.shape[0], *[1] * (len(input.shape) - 2))
        weight = g.reshape(weight, line if len(input.shape) > 1 else weight.shape)
    elif len(input.shape) < len(weight.shape):
        weight = g.reshape(weight, ())
    return e.where(e.gt(input, 0), input, e.mul(weight, input))


@layer(aten="glu")
@once
def glu(input: Node, dim: int = -1) -> Node:
    """a * sigmoid(b) for the halves a and b of an axis."""
    a = real_axis(dim, input, "halve")
    n = input.shape[a]
    if n % 2:
        raise TensorError(f"dim {dim} of {text(input)} has no halves")
    left, right = (g.slice_axis(input, a, i * n // 2, (i + 1) * n // 2) for i in (0, 1))
    return e.mul(left, e.sigmoid(right))


@layer(aten="gelu", onnx="Gelu")
def gelu(input: Node, approximate: str = "none") -> Node:
    """x * Phi(x) for the normal distribution's Phi; "tanh" approximates it."""
    if approximate not in ("none", "tanh"):
        raise TensorError(f'approximate is "none" or "tanh", got {approximate!r}')
    return rounded_once(_gelu_tanh if approximate == "tanh" else _gelu, input)


def _gelu(x: Node) -> Node:
    return g.mul(e.mul(x, 0.5), e.add(g.erf(e.mul(x, math.sqrt(0.5))), 1.0))


def _gelu_tanh(x: Node) -> Node:
    cubic = g.mul(x, e.add(e.mul(g.mul(x, x), 0.044715), 1.0))
    return g.mul(e.mul(x, 0.5), e.add(g.tanh(e.mul(cubic, math.sqrt(2 / math.pi))), 1.0))
