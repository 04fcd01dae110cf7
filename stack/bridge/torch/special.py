"""Rows of the functions of physics that only torch's `special` has: polynomials, Bessel functions,
Hurwitz' zeta function. None of them has a gradient in torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.bridge.torch.kernels import call
from stack.bridge.torch.rows import row
from stack.bridge.torch.tape import Row
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import Operand, as_float, meet, once
from stack.framework.expr.public import METHODS, SPECIAL


def _floats(x: Operand, y: Operand) -> tuple[Node, ...]:
    return tuple(as_float(v) for v in meet(x, y))


# Polynomials of Chebyshev, of whole orders

_STEPS = 8
"""The highest order that is computed by the recurrence; from there on by angles."""


def _turned(t: Node, by: Any, inside: Node, even: bool) -> Node:
    """cos(by t) or sin(by t) inside of [-1, 1], cosh or sinh beyond."""
    angle = e.mul(t, by)
    wave, far = (g.cos, g.cosh) if even else (g.sin, g.sinh)
    return g.where(inside, wave(e.where(inside, angle, 0.0)), far(e.where(inside, 0.0, angle)))


def _by_angles(kind: str, size: Node, n: Node) -> Node:
    """Of x >= 0, where t, the inverse cosine of x, gives cos(n t) or a quotient of two waves."""
    inside = e.le(size, 1)
    t = g.where(inside, g.acos(e.where(inside, size, 0.0)), g.acosh(e.where(inside, 1.0, size)))
    if kind == "t":
        return _turned(t, n, inside, True)
    whole = e.add(n, 1) if kind == "u" else e.add(n, 0.5)
    below = t if kind == "u" else e.mul(t, 0.5)
    even = kind == "v"
    made = e.div(_turned(t, whole, inside, even), _turned(below, 1.0, inside, even))
    at_one = {"u": whole, "v": g.full_like(n, 1), "w": e.mul(whole, 2)}[kind]
    return e.where(e.eq(t, 0), at_one, made)


def _chebyshev(kind: str, x: Node, n: Node) -> Node:
    twice = e.add(x, x)
    second = {"t": x, "u": twice, "v": e.sub(twice, 1), "w": e.add(twice, 1)}[kind]
    values = [g.full_like(x, 1), second]
    while len(values) <= _STEPS:
        values.append(e.sub(e.mul(twice, values[-1]), values[-2]))
    sign = e.where(e.eq(e.remainder(n, 2), 0), 1.0, g.full_like(x, -1))
    size = g.abs(x)
    mirrored = {"v": "w", "w": "v"}.get(kind, kind)
    below = e.mul(_by_angles(mirrored, size, n), sign)
    made = e.where(e.lt(x, 0), below, _by_angles(kind, size, n))
    for order, value in enumerate(values):
        made = e.where(e.eq(n, order), value, made)
    return e.where(e.lt(n, 0), 0.0, made)


def _publish_chebyshev(kind: str) -> None:
    @row(f"special_chebyshev_polynomial_{kind}", pointwise=True)
    @once
    def plain(x: Operand, n: Operand) -> Node:
        v, order = _floats(x, n)
        return _chebyshev(kind, v, g.trunc(order))

    @row(f"special_shifted_chebyshev_polynomial_{kind}", pointwise=True)
    @once
    def shifted(x: Operand, n: Operand) -> Node:
        v, order = _floats(x, n)
        return _chebyshev(kind, e.sub(e.add(v, v), 1), g.trunc(order))


for _kind in "tuvw":
    _publish_chebyshev(_kind)


# Other orthogonal polynomials: by their recurrences up to the highest order that is asked for

_ORDERS = 1000
"""The highest order."""
_HERMITE = {DType.F32: 128, DType.F64: 512}
"""The highest order of Hermite's polynomials, beyond which torch gives NaN."""

_Step = Callable[[int, Node, Node, Node], Node]
_RECURRENCES: dict[str, tuple[Callable[[Node], Node], _Step]] = {
    "hermite_polynomial_h": (
        lambda x: e.add(x, x),
        lambda k, x, q, p: e.sub(e.mul(e.add(x, x), q), e.mul(p, 2 * k)),
    ),
    "hermite_polynomial_he": (
        lambda x: x,
        lambda k, x, q, p: e.sub(e.mul(x, q), e.mul(p, k)),
    ),
    "laguerre_polynomial_l": (
        lambda x: e.sub(1.0, x),
        lambda k, x, q, p: e.div(e.sub(e.mul(e.sub(2 * k + 1, x), q), e.mul(p, k)), k + 1),
    ),
    "legendre_polynomial_p": (
        lambda x: x,
        lambda k, x, q, p: e.div(e.sub(e.mul(e.mul(x, 2 * k + 1), q), e.mul(p, k)), k + 1),
    ),
}
"""The polynomial of order 1, and the one of order k + 1 of those of orders k and k - 1."""


def _orthogonal(name: str) -> Callable[..., Node]:
    first, step = _RECURRENCES[name]

    def lower(x: Operand, n: Operand, most: int) -> Node:
        v, given = _floats(x, n)
        order, limit = g.trunc(given), most
        if name.startswith("hermite"):
            limit = min(most, _HERMITE[v.dtype.computed_in])
        p, q = g.full_like(v, 1), first(v)
        made = e.where(e.eq(order, 1), q, e.where(e.lt(order, 0), 0.0, p))
        for k in range(1, limit):
            p, q = q, step(k, v, q, p)
            made = e.where(e.eq(order, k + 1), q, made)
        return e.where(e.gt(order, limit), math.nan, made)

    return once(lower)


def _orthogonal_kernel(name: str) -> Callable[..., Tensor]:
    table = Row(f"special_{name}", _orthogonal(name), pointwise=True)

    def kernel(x: Any, n: Any) -> Tensor:
        # The highest order that is asked for, which is waited for.
        highest = n
        if isinstance(n, Tensor):
            highest = n[n.isfinite()].max().item() if n.isfinite().any() else 1
        most = int(highest)
        if most > _ORDERS and not name.startswith("hermite"):
            raise NotImplementedError(f"special_{name} of order {most} on hal: at most {_ORDERS}")
        return call(table, (x, n, max(1, min(most, _ORDERS))), {})[0]

    return kernel


# Bessel functions

_EULER = 0.5772156649015328606
_FAR = 16.0
"""From here on J and Y are computed by their expansions for large arguments."""
_NODES = 24
"""Of the midpoint rule on a quarter of the circle: it finds the means of cos(x sin t) cos(2k t),
which are the Bessel functions of order 2k, for x up to 16 to the last bit of float64, since those
of orders from 48 on are 0 there."""
_TERMS = 20


def _bessel_near(x: Node, order: int, second: bool) -> Node:
    """J or Y of 0 < x < 16."""
    first = sums = g.full_like(x, 0)
    slope = g.full_like(x, 0)
    # The sine of each node, and what sum_k (-1)^k cos(2k t) / k is there: Neumann's series of Y_0
    # as one weight.
    found = []
    for j in range(_NODES):
        t = (j + 0.5) * math.pi / (2 * _NODES)
        terms = [(-1) ** k * math.cos(2 * k * t) / k for k in range(1, _NODES + 1)]
        found.append((math.sin(t), sum(terms)))
    for sine, weight in found:
        wave, other = g.cos(e.mul(x, sine)), e.mul(g.sin(e.mul(x, sine)), sine)
        first = e.add(first, wave)
        slope = e.add(slope, other)
        sums = e.add(sums, e.mul(other if order else wave, weight))
    first, slope, sums = (e.div(s, _NODES) for s in (first, slope, sums))
    if not second:
        return slope if order else first
    level = e.mul(e.add(g.log(e.mul(x, 0.5)), _EULER), 2 / math.pi)
    if not order:
        return e.sub(e.mul(level, first), e.mul(sums, 4 / math.pi))
    made = e.sub(e.mul(level, slope), e.mul(sums, 4 / math.pi))
    return e.sub(made, e.div(e.mul(first, 2 / math.pi), x))


def _bessel_far(x: Node, order: int, second: bool) -> Node:
    """J or Y by Hankel's expansion."""
    inverse = g.recip(x)
    parts = [g.full_like(x, 1), g.full_like(x, 0)]
    power, factor = g.full_like(x, 1), 1.0
    for k in range(1, _TERMS):
        factor *= (4 * order * order - (2 * k - 1) ** 2) / (8 * k)
        power = g.mul(power, inverse)
        parts[k % 2] = e.add(parts[k % 2], e.mul(power, factor * (-1) ** (k // 2)))
    sine, cosine = g.sin(x), g.cos(x)
    if order:
        wave, other = e.sub(sine, cosine), g.neg(e.add(sine, cosine))
    else:
        wave, other = e.add(sine, cosine), e.sub(sine, cosine)
    p, q = parts
    made = (
        e.add(g.mul(p, other), g.mul(q, wave)) if second else e.sub(g.mul(p, wave), g.mul(q, other))
    )
    return e.mul(made, g.rsqrt(e.mul(x, math.pi)))


def _bessel(x: Node, order: int, second: bool) -> Node:
    v = as_float(x)
    size = g.abs(v)
    is_near = e.lt(size, _FAR)
    near = _bessel_near(e.where(is_near, size, 1.0), order, second)
    made = g.where(is_near, near, _bessel_far(e.where(is_near, _FAR, size), order, second))
    made = e.where(e.isnan(v), math.nan, made)
    if second:
        return e.where(e.lt(v, 0), math.nan, e.where(e.eq(v, 0), -math.inf, made))
    return e.where(e.lt(v, 0), g.neg(made), made) if order else made


_SCALE = 1 / 3
_GAUSS = [(j * _SCALE) ** 2 for j in range(1, 20)]
"""Of the trapezoidal rule for K: the squares of its nodes behind 0."""


def _decaying(x: Node, order: int, scaled: bool) -> Node:
    """K of order 0 or 1: by its series up to 2; beyond as the integral of exp(-s s) over
    sqrt(2 x + s s), twice, for order 1 times 1 + s s / x."""
    v = as_float(x)
    is_near = e.lt(v, 2)
    low = e.where(is_near, v, 1.0)
    quarter = e.mul(g.mul(low, low), 0.25)
    power, grown, other = g.full_like(v, 1), g.full_like(v, 0), g.full_like(v, 0)
    harmonic = -_EULER
    for k in range(14):
        inner = math.factorial(k) * math.factorial(k + order)
        above = harmonic + (1 / (k + 1) if order else 0)
        grown = e.add(grown, e.mul(power, 1 / inner))
        other = e.add(other, e.mul(power, (harmonic + above if order else harmonic) / inner))
        power = g.mul(power, quarter)
        harmonic += 1 / (k + 1)
    level = g.log(e.mul(low, 0.5))
    if order:
        half = e.mul(low, 0.5)
        near = e.add(g.recip(low), g.mul(half, e.sub(g.mul(level, grown), e.mul(other, 0.5))))
    else:
        near = e.sub(other, g.mul(level, grown))
    high = e.where(is_near, 2.0, v)
    twice, inverse = e.mul(high, 2.0), g.recip(high)
    far = e.mul(g.rsqrt(twice), _SCALE)
    for square in _GAUSS:
        term = e.mul(g.rsqrt(e.add(twice, square)), 2 * _SCALE * math.exp(-square))
        far = e.add(far, g.mul(term, e.add(e.mul(inverse, square), 1.0)) if order else term)
    if scaled:
        near = g.mul(near, g.exp(low))
    else:
        far = g.mul(far, g.exp(g.neg(high)))
    made = g.where(is_near, near, far)
    made = e.where(e.isinf(v), 0.0, made)
    return e.where(e.lt(v, 0), math.nan, e.where(e.eq(v, 0), math.inf, made))


def _spherical(x: Node) -> Node:
    """sin(x) / x."""
    v = as_float(x)
    small = e.lt(g.abs(v), 0.5)
    square = e.where(small, g.mul(v, v), 0.0)
    near = g.full_like(v, 0)
    for k in reversed(range(8)):
        near = e.add(g.mul(near, square), (-1) ** k / math.factorial(2 * k + 1))
    far = e.where(g.or_(small, e.isinf(v)), 1.0, v)
    return g.where(small, near, e.where(e.isinf(v), 0.0, g.div(g.sin(far), far)))


def _publish(name: str, function: Callable[..., Node], *given: Any) -> None:
    row(f"special_{name}", pointwise=True)(once(lambda x: function(x, *given)))


for _order in (0, 1):
    _publish(f"bessel_j{_order}", _bessel, _order, False)
    _publish(f"bessel_y{_order}", _bessel, _order, True)
    _publish(f"modified_bessel_k{_order}", _decaying, _order, False)
    _publish(f"scaled_modified_bessel_k{_order}", _decaying, _order, True)
_publish("modified_bessel_i0", METHODS["i0"].expression)
_publish("modified_bessel_i1", SPECIAL["i1"].expression)
_publish("spherical_bessel_j0", _spherical)


# Hurwitz' zeta function

_BERNOULLI = (
    *(1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160),
    *(-691 / 1307674368000, 1 / 74724249600),
)
"""Bernoulli's numbers of even order by the factorials of their orders."""
_SUMMED = 10
"""Where the sum ends and the formula of Euler and Maclaurin begins."""


def _zeta(x: Operand, q: Operand, steps: int) -> Node:
    """The sum of 1 / (q + k) ** x over k: `steps` terms, and Euler's and Maclaurin's formula."""
    order, at = _floats(x, q)
    low = g.neg(order)
    total = g.full_like(at, 0)
    for k in range(steps):
        total = e.add(total, g.pow(e.add(at, k), low))
    end = e.add(at, steps)
    power = g.pow(end, low)
    total = e.add(total, e.div(g.mul(power, end), e.sub(order, 1)))
    total = e.add(total, e.mul(power, 0.5))
    inverse, factor = g.recip(end), order
    term = g.mul(power, inverse)
    for k, number in enumerate(_BERNOULLI):
        total = e.add(total, e.mul(g.mul(term, factor), number))
        factor = g.mul(factor, g.mul(e.add(order, 2 * k + 1), e.add(order, 2 * k + 2)))
        term = g.mul(term, g.mul(inverse, inverse))
    is_pole = g.and_(e.le(at, 0), e.eq(at, g.floor(at)))
    is_none = g.and_(e.le(at, 0), e.ne(order, g.floor(order)))
    total = e.where(is_pole, math.inf, e.where(is_none, math.nan, total))
    return e.where(e.eq(order, 1), math.inf, e.where(e.lt(order, 1), math.nan, total))


_ZETA = Row("special_zeta", once(_zeta), pointwise=True)


def zeta(x: Any, q: Any) -> Tensor:
    least = q
    if isinstance(q, Tensor):
        least = q.min().item() if q.numel() else 1.0
    steps = _SUMMED + math.ceil(max(0.0, -least)) if math.isfinite(least) else _SUMMED
    if steps > _ORDERS:
        raise NotImplementedError(f"special_zeta of {least} on hal: at least {_SUMMED - _ORDERS}")
    return call(_ZETA, (x, q, steps), {})[0]


KERNELS: dict[str, Callable[..., Any]] = {
    "special_zeta": zeta,
    **{f"special_{name}": _orthogonal_kernel(name) for name in _RECURRENCES},
}
"""By operator."""
