"""Activation functions. float16 and bfloat16 are computed in float32 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable

from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import as_float
from stack.framework.expr.public import operator


def rounded_once(function: Callable[[Node], Node], x: Node) -> Node:
    """function(x) computed in at least float32 and given in x's own float type."""
    v = as_float(x)
    wide = g.cast(v, v.dtype.computed_in)
    return g.cast(function(wide), v.dtype)


@operator(layer=True, aten="relu", onnx="Relu")
def relu(x: Node) -> Node:
    """x where it is positive, else 0; NaN stays. The gradient at 0 is 0."""
    zero = g.full_like(x, 0)
    return g.where(g.le(x, zero), zero, x)


@operator(function=False, method=False, layer=True, aten="leaky_relu", onnx="LeakyRelu")
def leaky_relu(x: Node, negative_slope: float = 0.01) -> Node:
    """x where it is positive, else negative_slope * x."""
    return e.where(e.gt(x, 0), x, e.mul(x, negative_slope))


@operator(function=False, method=False, layer=True, aten="silu")
def silu(x: Node) -> Node:
    """x * sigmoid(x)."""
    return rounded_once(lambda v: g.mul(v, e.sigmoid(v)), x)


@operator(function=False, method=False, layer=True, aten="softplus", onnx="Softplus")
def softplus(x: Node) -> Node:
    """log(1 + exp(x)), without overflow."""
    return rounded_once(_softplus, x)


def _softplus(x: Node) -> Node:
    tail = g.log(e.add(g.exp(g.neg(g.abs(x))), 1.0))
    return g.add(relu(x), tail)


@operator(function=False, method=False, layer=True, aten="gelu", onnx="Gelu")
def gelu(x: Node, approximate: str = "none") -> Node:
    """x * Phi(x) for the normal distribution's Phi; "tanh" approximates it."""
    if approximate not in ("none", "tanh"):
        raise TensorError(f'approximate is "none" or "tanh", got {approximate!r}')
    return rounded_once(_gelu_tanh if approximate == "tanh" else _gelu, x)


def _gelu(x: Node) -> Node:
    return g.mul(e.mul(x, 0.5), e.add(g.erf(e.mul(x, math.sqrt(0.5))), 1.0))


def _gelu_tanh(x: Node) -> Node:
    cubic = g.mul(x, e.add(e.mul(g.mul(x, x), 0.044715), 1.0))
    return g.mul(e.mul(x, 0.5), e.add(g.tanh(e.mul(cubic, math.sqrt(2 / math.pi))), 1.0))
