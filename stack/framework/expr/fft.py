"""Discrete Fourier transforms of complex numbers as pairs of their parts.

A length is split into factors of at most 64, each a product with a small matrix of roots of unity,
with factors between them (Cooley and Tukey, 1965); a length with a greater prime becomes a
convolution by transforms of a power of 2 (Bluestein, 1970).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import as_float, real_axis, text

MOST = 64
"""The greatest length that is one product."""
DIRECT = 256
"""The greatest length with a great prime that is one product: beyond, three transforms of at least
twice the length take fewer operations."""


class Pair(NamedTuple):
    """The parts of complex numbers."""

    real: Node
    imag: Node


def transform(
    real: Node, imag: Node | None, dim: int, n: int | None, sign: int, scale: float
) -> Pair:
    """The sums of x[j] exp(sign 2 pi i j k / n) along an axis, times a scale, of x cut or filled up
    with zeros to n elements; without `imag` of real numbers."""
    a = real_axis(dim, real, "transform")
    parts = [as_float(v) for v in (real, imag) if v is not None]
    wide = [g.cast(v, v.dtype.computed_in) for v in parts]
    moved = [_last(_resized(v, a, n), a) for v in wide]
    if not moved[0].shape[-1]:
        raise TensorError(f"a transform of {text(real)} along dim {dim} has no elements")
    found = _dft(moved[0], moved[1] if len(moved) > 1 else None, sign)
    return Pair(*(_last(e.mul(v, scale), a, back=True) for v in found))


def half(x: Node, dim: int) -> Node:
    """The first n // 2 + 1 of the n elements of an axis: the others of a transform of real numbers
    are their conjugates."""
    a = real_axis(dim, x, "halve")
    return g.slice_axis(x, a, 0, x.shape[a] // 2 + 1)


def from_half(real: Node, imag: Node, dim: int, n: int | None) -> Pair:
    """The n elements (2 (m - 1) of m without n) of whose transform these are the first half."""
    a = real_axis(dim, real, "unfold")
    n = 2 * (real.shape[a] - 1) if n is None else n
    if n < 1:
        raise TensorError(f"a transform of {n} elements: {text(real)} along dim {dim}")
    re, im = (_resized(v, a, n // 2 + 1) for v in (real, imag))
    places = g.arange(n // 2 + 1)
    own = g.and_(e.ne(places, 0), e.ne(e.mul(places, 2), n))
    line = (n // 2 + 1, *[1] * (len(re.shape) - 1 - a))
    im = e.mul(im, g.reshape(g.cast(own, im.dtype), line))  # these sums are real
    rest = [g.flip(g.slice_axis(v, a, 1, (n + 1) // 2), (a,)) for v in (re, im)]
    return Pair(g.concat([re, rest[0]], a), g.concat([im, g.neg(rest[1])], a))


def added(frames: Node, hop: int) -> Node:
    """Windows [..., number, n], each hop elements behind the one before, added where they
    overlap."""
    *_, number, n = frames.shape
    return g.overlap_add(frames, len(frames.shape) - 2, (number - 1) * hop + n, hop, 1)


def _last(x: Node, a: int, back: bool = False) -> Node:
    """An axis moved behind the others, or back."""
    rank = len(x.shape)
    order = [*(i for i in range(rank) if i != a), a]
    return g.permute(x, [*range(a), rank - 1, *range(a, rank - 1)] if back else order)


def _resized(x: Node, a: int, n: int | None) -> Node:
    size = x.shape[a]
    if n is None or n == size:
        return x
    if n < size:
        return g.slice_axis(x, a, 0, n)
    rest = (*x.shape[:a], n - size, *x.shape[a + 1 :])
    return g.concat([x, g.full(rest, 0, x.dtype)], a)


def _roots(rows: int, columns: int, n: int, sign: int, dtype: DType) -> Pair:
    """exp(sign 2 pi i j k / n); the products of integers are reduced before they are angles."""
    places = e.mul(g.reshape(g.arange(rows), (rows, 1)), g.arange(columns))
    return _unit(e.remainder(places, n), n, sign, dtype)


def _unit(places: Node, n: int, sign: int, dtype: DType) -> Pair:
    angle = e.mul(g.cast(places, dtype), sign * 2 * math.pi / n)
    return Pair(g.contiguous(g.cos(angle)), g.contiguous(g.sin(angle)))


def _times(x: Pair, y: Pair) -> Pair:
    (a, b), (c, d) = x, y
    return Pair(e.sub(e.mul(a, c), e.mul(b, d)), e.add(e.mul(a, d), e.mul(b, c)))


def _dft(re: Node, im: Node | None, sign: int) -> Pair:
    """Along the last axis."""
    n = re.shape[-1]
    divisors = [d for d in range(2, MOST + 1) if n % d == 0]
    if n <= MOST or (not divisors and n <= DIRECT):
        roots = _roots(n, n, n, sign, re.dtype)
        return Pair(*_products(re, im, roots))
    if not divisors:
        return _chirp(re, im, sign)
    first = max(divisors)
    second = n // first
    lead = re.shape[:-1]
    inner = _roots(first, first, first, sign, re.dtype)
    x, y = (None if v is None else g.reshape(v, (*lead, first, second)) for v in (re, im))
    assert x is not None
    turned = [None if v is None else g.transpose(v) for v in (x, y)]
    assert turned[0] is not None
    found = _products(turned[0], turned[1], inner)  # [..., second, first]
    between = _roots(second, first, n, sign, re.dtype)
    a, b = _times(Pair(*found), between)
    done = _dft(g.transpose(a), g.transpose(b), sign)  # [..., first, second]
    return Pair(*(g.reshape(g.transpose(v), (*lead, n)) for v in done))


def _products(re: Node, im: Node | None, roots: Pair) -> tuple[Node, Node]:
    c, s = roots
    if im is None:
        return _product(re, c), _product(re, s)
    return (
        e.sub(_product(re, c), _product(im, s)),
        e.add(_product(re, s), _product(im, c)),
    )


def _product(x: Node, table: Node) -> Node:
    """x[..., k] @ table[k, n], in its own element type also under autocast."""
    rows = math.prod(x.shape[:-1])
    flat = g.matmul(g.reshape(x, (rows, x.shape[-1])), table)
    return g.reshape(flat, (*x.shape[:-1], table.shape[-1]))


def _chirp(re: Node, im: Node | None, sign: int) -> Pair:
    """By j k = (j j + k k - (k - j) (k - j)) / 2."""
    n = re.shape[-1]
    size = 1 << (2 * n - 2).bit_length()
    j = g.arange(n)
    chirp = _unit(e.remainder(e.mul(j, j), 2 * n), 2 * n, sign, re.dtype)
    x = _times(Pair(re, g.full_like(re, 0) if im is None else im), chirp)
    filled = [_resized(v, len(v.shape) - 1, size) for v in x]
    back = [g.flip(g.slice_axis(v, 0, 1, n), (0,)) for v in chirp]
    gap = g.full((size - 2 * n + 1,), 0, re.dtype)
    kernel = [g.concat([v, gap, b], 0) for v, b in zip(chirp, back, strict=True)]
    spectrum = _dft(kernel[0], g.neg(kernel[1]), -1)
    y = _times(_dft(filled[0], filled[1], -1), spectrum)
    whole = _dft(y.real, y.imag, 1)
    cut = (e.mul(g.slice_axis(v, -1, 0, n), 1 / size) for v in whole)
    return _times(Pair(*cut), chirp)
