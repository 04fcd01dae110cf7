"""Rows of the incomplete gamma functions: which part of a gamma distribution of shape a lies below
x, and which above. Of both parts the smaller one is computed; the other is what is missing to 1. Of
their gradients torch has those by x, as formulas of other operators, and none by a."""

from __future__ import annotations

import math

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.bridge.torch.rows import row
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import Operand, as_float, meet, once

_LARGE = 20.0
"""Shapes from here on are integrated; below there are a series and a continued fraction."""
_TERMS = {DType.F32: (32, 24), DType.F64: (56, 96)}
"""Those of the series and of the fraction: for all shapes below `_LARGE` to the last bit."""
_LOW = 1.1
"""At most this: the fraction would need more terms."""
_POINTS = tuple(
    (float(x + 1) / 2, float(w) / 2)
    for x, w in zip(*np.polynomial.legendre.leggauss(32), strict=True)
)
"""Gauss' and Legendre's, and their weights, on [0, 1]."""
_EULER = 0.5772156649015328606
_NEAR = 0.2
"""Where lgamma(1 + a) is a series."""


def _zeta(k: int) -> float:
    """Riemann's function of a whole number: a sum, and the formula of Euler and Maclaurin."""
    n = 40.0
    rest = n ** (1 - k) / (k - 1) + n**-k / 2 + k * n ** (-k - 1) / 12
    rest -= k * (k + 1) * (k + 2) * n ** (-k - 3) / 720
    return math.fsum(i**-k for i in range(1, int(n))) + rest


def _polynomial(x: Node, coefficients: list[float]) -> Node:
    """From the highest power to the constant."""
    made = g.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        made = e.add(g.mul(made, x), c)
    return made


def _log_gamma_above(a: Node) -> Node:
    """lgamma(1 + a), with the digits that 1 + a loses for a small a."""
    small = e.lt(a, _NEAR)
    near = e.where(small, a, 0.0)
    parts = [(-1) ** k * _zeta(k) / k for k in range(25, 1, -1)]
    series = g.mul(near, _polynomial(near, [*parts, -_EULER]))
    return g.where(small, series, g.lgamma(e.add(e.where(small, 1.0, a), 1.0)))


def _less_logarithm(m: Node) -> Node:
    """m - log(1 + m), with the digits that the difference loses for a small m."""
    small = e.lt(g.abs(m), 0.2)
    near = e.where(small, m, 0.0)
    parts = [(-1) ** k / k for k in range(25, 1, -1)]
    series = g.mul(g.mul(near, near), _polynomial(near, parts))
    far = e.where(small, 1.0, m)
    return g.where(small, series, e.sub(far, g.log1p(far)))


def _stirling(a: Node) -> Node:
    """log of gamma(a) over Stirling's formula, for a from 10 on."""
    inverse = g.recip(a)
    parts = [1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12]
    return g.mul(inverse, _polynomial(g.mul(inverse, inverse), parts))


def _density(a: Node, x: Node) -> Node:
    """x^a exp(-x) / gamma(1 + a), for shapes below `_LARGE`."""
    some = e.ge(a, 10.0)
    high = e.where(some, a, 10.0)
    apart = e.mul(_less_logarithm(e.div(e.sub(x, high), high)), high)
    scaled = e.mul(e.add(g.log(high), math.log(2 * math.pi)), 0.5)
    large = g.neg(e.add(e.add(apart, scaled), _stirling(high)))
    small = e.sub(e.sub(g.mul(a, g.log(x)), x), _log_gamma_above(a))
    return g.exp(g.where(some, large, small))


def _series(a: Node, x: Node, terms: int) -> Node:
    """The lower part over the density, for x up to a + 1."""
    made = g.full_like(x, 1)
    for n in range(terms, 0, -1):
        made = e.add(g.mul(made, e.div(x, e.add(a, n))), 1.0)
    return made


def _fraction(a: Node, x: Node, terms: int) -> Node:
    """The upper part over the density times a, for x from a + 1 on: Legendre's fraction."""
    made = e.add(e.sub(x, a), 2.0 * terms + 1)
    for n in range(terms, 0, -1):
        above = e.mul(e.sub(a, n), n)
        made = e.add(e.add(e.sub(x, a), 2.0 * n - 1), e.div(above, made))
    return g.recip(made)


def _upper_of_low(a: Node, x: Node) -> Node:
    """The upper part for x up to `_LOW`, with the digits that 1 - lower loses for a small a."""
    level = e.sub(g.mul(a, g.log(x)), _log_gamma_above(a))
    number, total = g.full_like(x, 1), g.full_like(x, 0)
    for n in range(1, 22):
        number = e.mul(g.mul(number, x), -1 / n)
        total = e.add(total, e.div(number, e.add(a, n)))
    return e.sub(g.neg(g.expm1(level)), g.mul(g.mul(g.exp(level), a), total))


def _integral(a: Node, x: Node) -> tuple[Node, Node]:
    """Of a large shape whether x is above the most likely value, and the part beyond x."""
    top = e.sub(a, 1.0)
    width = g.sqrt(top)
    above = e.gt(x, top)
    high = e.maximum(e.add(top, e.mul(width, 14.0)), e.add(x, e.mul(width, 10.0)))
    low = e.minimum(e.sub(top, e.mul(width, 9.0)), e.sub(x, e.mul(width, 7.0)))
    reach = e.sub(g.where(above, high, e.clamp(low, min=0.0)), x)
    first = e.sub(x, top)
    total = g.full_like(x, 0)
    for place, weight in _POINTS:
        m = e.div(e.add(first, e.mul(reach, place)), top)
        total = e.add(total, e.mul(g.exp(g.neg(e.mul(_less_logarithm(m), top))), weight))
    scale = e.mul(g.exp(g.neg(_stirling(top))), 1 / math.sqrt(2 * math.pi))
    return above, g.mul(g.mul(total, g.abs(reach)), e.div(scale, width))


def _parts(given: Operand, at: Operand) -> tuple[Node, Node, Node, Node]:
    """a, x, and the lower and the upper part where a > 0, x > 0 and both are finite."""
    a, x = (as_float(v) for v in meet(given, at))
    whole = g.and_(g.and_(e.gt(a, 0), e.gt(x, 0)), g.and_(e.isfinite(a), e.isfinite(x)))
    large = g.and_(whole, e.ge(a, _LARGE))
    above, part = _integral(e.where(large, a, _LARGE), e.where(large, x, _LARGE))
    small = g.and_(whole, e.lt(a, _LARGE))
    b, y = e.where(small, a, 1.0), e.where(small, x, 1.0)
    terms, steps = _TERMS[a.dtype.computed_in]
    density = _density(b, y)
    up = e.gt(y, e.maximum(e.add(b, 1.0), _LOW))
    lower = g.mul(density, _series(b, e.where(up, 1.0, y), terms))
    tail = g.mul(g.mul(density, b), _fraction(b, e.where(up, y, e.add(b, 2.0)), steps))
    lower = g.where(up, e.sub(1.0, tail), lower)
    near = e.le(y, _LOW)
    low = _upper_of_low(b, e.where(near, y, 1.0))
    upper = g.where(up, tail, g.where(near, low, e.sub(1.0, lower)))
    rest = e.sub(1.0, part)
    return (
        a,
        x,
        g.where(large, g.where(above, rest, part), lower),
        g.where(large, g.where(above, part, rest), upper),
    )


def _at_ends(a: Node, x: Node, made: Node, none: float, all_: float) -> Node:
    """Where a or x is 0 or infinite: `none` or all of it lies on this side."""
    made = e.where(g.or_(e.eq(a, 0), e.isinf(x)), all_, made)
    made = e.where(g.or_(e.eq(x, 0), e.isinf(a)), none, made)
    both = g.or_(g.and_(e.eq(a, 0), e.eq(x, 0)), g.and_(e.isinf(a), e.isinf(x)))
    wrong = g.or_(g.or_(e.lt(a, 0), e.lt(x, 0)), g.or_(e.isnan(a), e.isnan(x)))
    return e.where(g.or_(both, wrong), math.nan, made)


@row("igamma", pointwise=True)
@once
def _igamma(given: Operand, at: Operand) -> Node:
    a, x, lower, _ = _parts(given, at)
    return _at_ends(a, x, lower, 0.0, 1.0)


@row("igammac", pointwise=True)
@once
def _igammac(given: Operand, at: Operand) -> Node:
    a, x, _, upper = _parts(given, at)
    return _at_ends(a, x, upper, 1.0, 0.0)
