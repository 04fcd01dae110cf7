"""Gradients of samples by their parameters, where no formula draws them from other numbers: the
sample moves so that its cumulative probability stays."""

from __future__ import annotations

from hal.tile.node import Node
from stack import ops as g
from stack.bridge.torch.rows import row
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import as_float, meet, once

_COEFFICIENTS = (
    (
        (0.16009398, -0.094634809, 0.025146376, -0.0030648343),
        (0.53487893, 0.1298071, 0.065735949, -0.0015649758),
        (0.040121004, -0.0065914022, -0.0026286047, -0.0013441777),
    ),
    (
        (1.0, 0.32668115, 0.10406089, 0.0014179084),
        (0.16639465, 0.020070113, -0.0035938915, -0.00058392623),
        (0.017050642, -0.0021309326, 0.00085092367, -1.5247877e-07),
    ),
)
"""Those of torch's rational function of the logarithms of x / alpha and of alpha: above and below
the line, by the power of the first, then of the second."""


def _near_zero(alpha: Node, x: Node) -> Node:
    """By the series of the cumulative probability, for x below 0.8."""
    number, below = g.full_like(x, 1), alpha
    first, second = e.div(1.0, alpha), e.div(1.0, e.mul(alpha, alpha))
    for i in range(1, 6):
        number = e.mul(number, e.div(g.neg(x), float(i)))
        below = e.add(below, 1.0)
        part = e.div(number, below)
        first, second = e.add(first, part), e.add(second, e.div(part, below))
    slope = e.sub(e.mul(e.sub(g.log(x), g.digamma(alpha)), first), second)
    made = e.mul(g.neg(slope), e.mul(x, g.exp(x)))
    return e.where(e.eq(made, made), made, 0.0)


def _on_the_ridge(alpha: Node, x: Node) -> Node:
    """Of a large alpha, for x within a tenth of it."""
    square = e.mul(alpha, alpha)
    one = e.add(e.mul(e.add(e.mul(alpha, 12.0), 1.0), e.mul(alpha, 24.0)), 1.0)
    two = e.add(e.mul(square, 1440.0), e.mul(e.mul(x, 6.0), e.sub(53.0, e.mul(x, 120.0))))
    two = e.sub(two, e.div(e.mul(e.mul(x, x), 65.0), alpha))
    two = e.add(two, e.mul(alpha, e.add(e.mul(x, 3600.0), 107.0)))
    return e.div(e.mul(one, two), e.mul(e.mul(square, square), 1244160.0))


def _beside_the_ridge(alpha: Node, x: Node) -> Node:
    """Of a large alpha, by Rice's expansion around the saddle."""
    scale, apart, ratio = g.sqrt(e.mul(alpha, 8.0)), e.sub(alpha, x), g.log(e.div(x, alpha))
    far = e.pow(g.abs(e.sub(g.neg(apart), e.mul(alpha, ratio))), -1.5)
    side = e.add(e.div(scale, apart), e.where(e.lt(x, alpha), g.neg(far), far))
    root = e.mul(g.sqrt(e.div(2.0, alpha)), e.div(e.add(alpha, x), e.mul(apart, apart)))
    part = e.div(1.0, alpha)
    stirling = e.add(e.mul(e.div(part, 12.0), e.add(e.div(part, 24.0), 1.0)), 1.0)
    whole = e.mul(x, e.sub(e.mul(ratio, side), root))
    return e.div(e.mul(g.neg(stirling), whole), scale)


def _between(alpha: Node, x: Node) -> Node:
    u, v = g.log(e.div(x, alpha)), g.log(alpha)

    def polynomial(rows: tuple[tuple[float, ...], ...]) -> Node:
        made: Node | None = None
        for a, b, c in zip(*map(reversed, rows), strict=True):
            term = e.add(e.mul(e.add(e.mul(u, c), b), u), a)
            made = term if made is None else e.add(e.mul(made, v), term)
        assert made is not None, "polynomials have terms"
        return made

    above, below = map(polynomial, _COEFFICIENTS)
    return g.exp(e.div(above, below))


@row("_standard_gamma_grad", pointwise=True)
@once
def standard_gamma_grad(alpha: Node, sample: Node) -> Node:
    """torch's own approximations, each where it holds."""
    a, x = (as_float(v) for v in meet(alpha, sample))
    near = e.logical_and(e.ge(x, e.mul(a, 0.9)), e.le(x, e.mul(a, 1.1)))
    large = e.where(near, _on_the_ridge(a, x), _beside_the_ridge(a, x))
    made = e.where(e.gt(a, 8.0), large, _between(a, x))
    return e.where(e.lt(x, 0.8), _near_zero(a, x), made)
