"""Functions of statistics and physics, in the namespace `special` as well as here."""

from __future__ import annotations

import math
from collections.abc import Callable

from hal.tile.node import Node
from stack import ops as g
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import Operand, as_float, meet
from stack.framework.expr.public import operator, special


@special(aten="special_ndtr")
def ndtr(x: Node) -> Node:
    """The share of a normal distribution below x."""
    return e.mul(g.erfc(e.mul(as_float(x), -math.sqrt(0.5))), 0.5)


@special(aten="special_ndtri")
def ndtri(x: Node) -> Node:
    """What x is ndtr of."""
    return e.mul(g.erfinv(e.sub(e.mul(as_float(x), 2), 1)), math.sqrt(2))


@special(aten="special_log_ndtr")
def log_ndtr(x: Node) -> Node:
    """log(ndtr(x)), also far below 0."""
    v = as_float(x)
    t = e.mul(v, math.sqrt(0.5))
    far = e.lt(v, -1)
    tail = g.log(e.div(g.erfcx(g.neg(e.where(far, t, -1.0))), 2))
    below = e.sub(tail, e.mul(t, t))
    near = g.log1p(e.div(g.neg(g.erfc(e.where(far, 0.0, t))), 2))
    return g.where(far, below, near)


@special(aten="special_entr")
def entr(x: Node) -> Node:
    """-x * log(x), 0 at 0, -inf below."""
    v = as_float(x)
    inside = e.gt(v, 0)
    value = g.neg(g.mul(v, g.log(e.where(inside, v, 1.0))))
    return e.where(inside, value, e.where(e.eq(v, 0), 0.0, e.where(e.isnan(v), v, -math.inf)))


@special(aten="special_xlog1py")
def xlog1py(x: Operand, y: Operand) -> Node:
    """x * log(1 + y), but 0 where x is 0 and y is no NaN."""
    a, b = (as_float(v) for v in meet(x, y))
    has_log = g.and_(e.gt(b, -1), e.lt(b, math.inf))
    zero = g.and_(e.eq(a, 0), g.not_(g.or_(e.isnan(b), has_log)))
    return e.where(zero, 0.0, e.mul(a, g.log1p(e.where(zero, 1.0, b))))


@special(aten="special_erfcx")
def erfcx(x: Node) -> Node:
    """erfc(x) * exp(x * x)."""
    return g.erfcx(as_float(x))


@operator(aten="polygamma", method=False, special=True)
def polygamma(n: int, input: Node) -> Node:
    """The derivative of order n of digamma; beyond the first of what is above -10."""
    v = as_float(input)
    if n == 0:
        return g.digamma(v)
    return e.mul(g.zeta(n + 1, v), (-1.0) ** (n + 1) * math.factorial(n))


@operator(in_place=True, aten="mvlgamma")
def mvlgamma(x: Node, p: int) -> Node:
    """The logarithm of the gamma function of p dimensions."""
    v = as_float(x)
    total = g.full_like(v, p * (p - 1) / 4 * math.log(math.pi))
    for j in range(p):
        total = g.add(total, g.lgamma(e.sub(v, j / 2)))
    return total


def _publish_bessel(name: str, order: int, scaled: bool, doc: str) -> None:
    def bessel(x: Node) -> Node:
        # I of order 0 or 1: its power series up to 24; beyond, its expansion in 1 / x times e^x,
        # whose least term is e^(-2x): at 12 that would be 1e-10.
        v, end = as_float(x), 24.0
        near = e.clamp(v, -end, end)
        quarter = e.mul(g.mul(near, near), 0.25)
        inner = term = g.full_like(v, 1)
        for k in range(1, 42):
            term = e.mul(g.mul(term, quarter), 1 / (k * (k + order)))
            inner = g.add(inner, term)
        if order:
            inner = g.mul(inner, e.mul(near, 0.5))
        inner = g.mul(inner, g.exp(g.neg(g.abs(near)))) if scaled else inner
        far = e.clamp(g.abs(v), min=end)
        inverse, series, part = g.recip(far), g.full_like(v, 1), g.full_like(v, 1)
        for k in range(1, 16):
            factor = -(4 * order * order - (2 * k - 1) ** 2) / (8 * k)
            part = e.mul(g.mul(part, inverse), factor)
            series = g.add(series, part)
        outer = g.mul(series, g.rsqrt(e.mul(far, 2 * math.pi)))
        if not scaled:
            half = g.exp(e.mul(far, 0.5))  # e^x alone overflows before the function does
            outer = g.mul(g.mul(outer, half), half)
        outer = g.where(e.lt(v, 0), g.neg(outer), outer) if order else outer
        return g.where(e.lt(g.abs(v), end), inner, outer)

    bessel.__name__, bessel.__doc__ = name, doc
    decorate: Callable[[Callable[..., Node]], Callable[..., Node]] = (
        operator(in_place=True, aten="i0") if name == "i0" else special(aten=f"special_{name}")
    )
    decorate(bessel)


_publish_bessel("i0", 0, False, "The modified Bessel function of the first kind, of order 0.")
_publish_bessel("i0e", 0, True, "i0(x) * exp(-|x|).")
_publish_bessel("i1", 1, False, "The modified Bessel function of the first kind, of order 1.")
_publish_bessel("i1e", 1, True, "i1(x) * exp(-|x|).")
