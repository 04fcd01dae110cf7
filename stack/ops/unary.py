"""Elementwise operations of one operand."""

from __future__ import annotations

import math

import numpy as np

from hal.tile.node import Node
from stack.ir import build as g
from stack.ir.record import OpRecord
from stack.ops.table import by, elementwise, exactly

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _neg(n: Node, d: Node) -> tuple[Node]:
    return (g.neg(d),)


def _abs(n: Node, d: Node) -> tuple[Node]:
    (x,), zero = n.srcs, g.full_like(d, 0)
    return (g.where(g.lt(x, zero), g.neg(d), g.where(g.eq(x, zero), zero, d)),)


def _exp(n: Node, d: Node) -> tuple[Node]:
    return (g.mul(d, n),)


def _log(n: Node, d: Node) -> tuple[Node]:
    return (g.div(d, n.srcs[0]),)


def _sin(n: Node, d: Node) -> tuple[Node]:
    return (g.mul(d, g.cos(n.srcs[0])),)


def _cos(n: Node, d: Node) -> tuple[Node]:
    return (g.neg(g.mul(d, g.sin(n.srcs[0]))),)


def _tanh(n: Node, d: Node) -> tuple[Node]:
    return (g.mul(d, g.sub(g.full_like(n, 1), g.mul(n, n))),)


def _erf_gradient(n: Node, d: Node) -> tuple[Node]:
    (x,) = n.srcs
    bell = g.mul(g.exp(g.neg(g.mul(x, x))), g.full_like(x, 2 / math.sqrt(math.pi)))
    return (g.mul(d, bell),)


def _sqrt(n: Node, d: Node) -> tuple[Node]:
    return (g.div(d, g.add(n, n)),)


def _rsqrt(n: Node, d: Node) -> tuple[Node]:
    return (g.mul(g.mul(d, g.full_like(n, -0.5)), g.mul(n, g.mul(n, n))),)


def _recip(n: Node, d: Node) -> tuple[Node]:
    return (g.neg(g.mul(d, g.mul(n, n))),)


UNARY: tuple[OpRecord, ...] = (
    elementwise("neg", "-x; integers wrap", by(np.negative), _neg),
    elementwise("abs", "|x|; integers wrap", by(np.abs), _abs),
    elementwise("not", "every bit inverted", by(np.invert)),
    elementwise("exp", "e to the x", exactly(np.exp), _exp),
    elementwise("log", "natural logarithm", exactly(np.log), _log),
    elementwise("sin", "sine of x radians", exactly(np.sin), _sin),
    elementwise("cos", "cosine of x radians", exactly(np.cos), _cos),
    elementwise("tanh", "hyperbolic tangent", exactly(np.tanh), _tanh),
    elementwise("erf", "error function", exactly(_erf), _erf_gradient),
    elementwise("sqrt", "square root", exactly(np.sqrt), _sqrt),
    elementwise("rsqrt", "1 / sqrt(x)", exactly(lambda x: 1 / np.sqrt(x)), _rsqrt),
    elementwise("recip", "1 / x", exactly(lambda x: 1 / x), _recip),
    elementwise("floor", "the greatest whole number <= x", by(np.floor)),
    elementwise("ceil", "the least whole number >= x", by(np.ceil)),
    elementwise("round", "the nearest whole number, ties to even", by(np.rint)),
)
