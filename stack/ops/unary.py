"""Elementwise operators of one operand."""

from __future__ import annotations

import math

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.ops.operator import Face, Operator
from stack.ops.sharding import elementwise
from stack.ops.table import FLOATS, INTS, NUMBERS, by, exactly, unary

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _abs(n: Node, d: Node) -> tuple[Node]:
    (x,), zero = n.srcs, g.full_like(d, 0)
    return (g.where(g.lt(x, zero), g.neg(d), g.where(g.eq(x, zero), zero, d)),)


def _erf_gradient(n: Node, d: Node) -> tuple[Node]:
    (x,) = n.srcs
    bell = g.mul(g.exp(g.neg(g.mul(x, x))), g.full_like(x, 2 / math.sqrt(math.pi)))
    return (g.mul(d, bell),)


_POSITIVE = ((0.5, 2.0),)

neg: Operator = unary(
    "neg",
    NUMBERS,
    "-x; integers wrap",
    by(np.negative),
    lambda n, d: (g.neg(d),),
    sharding=elementwise((0,)),
    face=Face(aliases=("negative",), symbol="-x", in_place=True, aten="neg", onnx="Neg"),
)
abs: Operator = unary(
    "abs",
    NUMBERS,
    "|x|; integers wrap",
    by(np.abs),
    _abs,
    face=Face(symbol="abs(x)", in_place=True, aten="abs", onnx="Abs"),
)
not_: Operator = unary("not", INTS | {DType.BOOL}, "every bit inverted", by(np.invert))
exp: Operator = unary(
    "exp",
    FLOATS,
    "e to the x",
    exactly(np.exp),
    lambda n, d: (g.mul(d, n),),
    expensive=True,
    face=Face(in_place=True, aten="exp", onnx="Exp"),
)
log: Operator = unary(
    "log",
    FLOATS,
    "the natural logarithm of x",
    exactly(np.log),
    lambda n, d: (g.div(d, n.srcs[0]),),
    expensive=True,
    smooth=_POSITIVE,
    face=Face(in_place=True, aten="log", onnx="Log"),
)
sin: Operator = unary(
    "sin",
    FLOATS,
    "the sine of x radians",
    exactly(np.sin),
    lambda n, d: (g.mul(d, g.cos(n.srcs[0])),),
    expensive=True,
    face=Face(in_place=True, aten="sin", onnx="Sin"),
)
cos: Operator = unary(
    "cos",
    FLOATS,
    "the cosine of x radians",
    exactly(np.cos),
    lambda n, d: (g.neg(g.mul(d, g.sin(n.srcs[0]))),),
    expensive=True,
    face=Face(in_place=True, aten="cos", onnx="Cos"),
)
tanh: Operator = unary(
    "tanh",
    FLOATS,
    "the hyperbolic tangent of x",
    exactly(np.tanh),
    lambda n, d: (g.mul(d, g.sub(g.full_like(n, 1), g.mul(n, n))),),
    expensive=True,
    face=Face(layer=True, in_place=True, aten="tanh", onnx="Tanh"),
)
erf: Operator = unary(
    "erf",
    FLOATS,
    "the error function of x",
    exactly(_erf),
    _erf_gradient,
    expensive=True,
    face=Face(in_place=True, aten="erf", onnx="Erf"),
)
sqrt: Operator = unary(
    "sqrt",
    FLOATS,
    "the square root of x",
    exactly(np.sqrt),
    lambda n, d: (g.div(d, g.add(n, n)),),
    smooth=_POSITIVE,
    face=Face(in_place=True, aten="sqrt", onnx="Sqrt"),
)
rsqrt: Operator = unary(
    "rsqrt",
    FLOATS,
    "1 / sqrt(x)",
    exactly(lambda x: 1 / np.sqrt(x)),
    lambda n, d: (g.mul(g.mul(d, g.full_like(n, -0.5)), g.mul(n, g.mul(n, n))),),
    smooth=_POSITIVE,
    face=Face(in_place=True, aten="rsqrt"),
)
recip: Operator = unary(
    "recip",
    FLOATS,
    "1 / x",
    exactly(lambda x: 1 / x),
    lambda n, d: (g.neg(g.mul(d, g.mul(n, n))),),
    smooth=_POSITIVE,
    face=Face("reciprocal", in_place=True, aten="reciprocal", onnx="Reciprocal"),
)
floor: Operator = unary("floor", FLOATS, "the greatest whole number <= x", by(np.floor))
ceil: Operator = unary("ceil", FLOATS, "the least whole number >= x", by(np.ceil))
round: Operator = unary("round", FLOATS, "the nearest whole number, ties to even", by(np.rint))
