"""Where a loop nest finds an element: affine index arithmetic over loop axes.

An `Index` locates one element of a tensor for every point of a loop nest. Its `shape` is any
factorisation of the tensor's row-major order, not necessarily the tensor's own shape: a reshape
therefore costs nothing, and an axis is split into two loops only when some view needs the boundary
(`NeedSplit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any


@dataclass(eq=False, slots=True)
class Axis:
    """A loop axis of `size` steps; for a data-dependent index `source` is the expression that gives
    it."""

    size: int
    source: Any = None

    def __repr__(self) -> str:
        return f"axis{id(self) % 9973}<{self.size}>"


@dataclass(frozen=True, slots=True)
class Affine:
    """const + sum(coefficient * axis)."""

    const: int = 0
    terms: tuple[tuple[Axis, int], ...] = ()

    def plus(self, other: Affine) -> Affine:
        merged = dict(self.terms)
        for axis, c in other.terms:
            merged[axis] = merged.get(axis, 0) + c
        return Affine(self.const + other.const, tuple((a, c) for a, c in merged.items() if c))

    def times(self, k: int) -> Affine:
        return Affine(self.const * k, tuple((a, c * k) for a, c in self.terms) if k else ())

    def shift(self, k: int) -> Affine:
        return Affine(self.const + k, self.terms)

    def bounds(self) -> tuple[int, int]:
        """The least and the greatest value."""
        spans = [c * (a.size - 1) for a, c in self.terms]
        return self.const + sum(min(s, 0) for s in spans), self.const + sum(
            max(s, 0) for s in spans
        )

    def coefficient(self, axis: Axis) -> int:
        return next((c for a, c in self.terms if a is axis), 0)


ZERO = Affine()


@dataclass(frozen=True, slots=True)
class Guard:
    """The element exists where lo <= value < hi."""

    value: Affine
    lo: int
    hi: int

    def always(self) -> bool:
        """Whether the element exists for every point of the loop nest."""
        low, high = self.value.bounds()
        return self.lo <= low and high < self.hi

    def never(self) -> bool:
        """Whether the element exists for none."""
        low, high = self.value.bounds()
        return high < self.lo or self.hi <= low


@dataclass(frozen=True, slots=True)
class Index:
    """Position `at[i]` along each dimension of `shape`, a factorisation of the tensor's elements in
    order."""

    shape: tuple[int, ...]
    at: tuple[Affine, ...]

    def flat(self) -> Affine:
        """The row-major element number."""
        const, stride = 0, 1
        terms: dict[Axis, int] = {}
        for size, value in zip(reversed(self.shape), reversed(self.at), strict=True):
            const += value.const * stride
            for axis, c in value.terms:
                terms[axis] = terms.get(axis, 0) + c * stride
            stride *= size
        return Affine(const, tuple((a, c) for a, c in terms.items() if c))


@dataclass(eq=False, slots=True)
class NeedSplit(Exception):
    """An index is affine once `axis` is two loops, the inner one of `inner` steps."""

    axis: Axis
    inner: int = field(default=1)


class NotAffineError(Exception):
    """An index that affine arithmetic cannot express. `view` is the node that needs a buffer of its
    own, if any."""

    def __init__(self, view: Any = None) -> None:
        super().__init__(view)
        self.view = view


def axis_index(axes: Iterable[Axis]) -> Index:
    """The element at the axes' own position, for a tensor whose order is that of the axes."""
    chosen = tuple(axes)
    return Index(tuple(a.size for a in chosen), tuple(Affine(0, ((a, 1),)) for a in chosen))


def regroup(index: Index, shape: Sequence[int]) -> Index:
    """The same element under another factorisation of the same order.

    Raises NeedSplit when splitting an axis makes it possible, NotAffineError when nothing does.
    """
    target = tuple(shape)
    if index.shape == target:
        return index
    source = [(s, a) for s, a in zip(index.shape, index.at, strict=True) if s != 1]
    wanted = [d for d in target if d != 1]
    out: list[Affine] = []
    i = j = 0
    while i < len(source):
        old, new, i_end, j_end = source[i][0], wanted[j], i + 1, j + 1
        while old != new:
            if old < new:
                old, i_end = old * source[i_end][0], i_end + 1
            else:
                new, j_end = new * wanted[j_end], j_end + 1
        run = Index(tuple(s for s, _ in source[i:i_end]), tuple(a for _, a in source[i:i_end]))
        out.extend(_digits(run.flat(), tuple(wanted[j:j_end])))
        i, j = i_end, j_end
    digits = iter(out)
    return Index(target, tuple(ZERO if d == 1 else next(digits) for d in target))


def _digits(value: Affine, dims: tuple[int, ...]) -> list[Affine]:
    """`value` in the mixed radix of `dims`, none of which is 1."""
    out: list[Affine] = []
    rest = value
    for k, size in enumerate(dims[:-1]):
        stride = prod(dims[k + 1 :])
        if any(c < 0 or (c >= stride and c % stride) for _, c in rest.terms):
            raise NotAffineError
        digit = Affine(
            rest.const // stride, tuple((a, c // stride) for a, c in rest.terms if c >= stride)
        )
        rest = Affine(rest.const % stride, tuple((a, c) for a, c in rest.terms if c < stride))
        _check_digit(digit, size, first=k == 0)
        _check_rest(rest, stride)
        out.append(digit)
    return [*out, rest]


def _check_digit(digit: Affine, size: int, first: bool) -> None:
    low, high = digit.bounds()
    if not first and (low < 0 or high >= size):
        raise NotAffineError


def _check_rest(rest: Affine, stride: int) -> None:
    """What is left for the lower digits must stay below one step of this digit."""
    if rest.bounds()[1] < stride:
        return
    for axis, c in rest.terms:
        inner, odd = divmod(stride, c)
        if (
            c * (axis.size - 1) >= stride
            and not odd
            and axis.size % inner == 0
            and axis.source is None
        ):
            raise NeedSplit(axis, inner)
    raise NotAffineError
