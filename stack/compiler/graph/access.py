"""Where a loop nest finds an element: affine index arithmetic over loop axes.

An `Index` locates one element of a tensor for every point of a loop nest. Its `shape` is any
factorisation of the tensor's row-major order, not necessarily the tensor's own shape: a reshape
therefore costs nothing, and an axis is split into two loops only when some view needs the boundary
(`Split`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

from hal.core.facts import dataclass
from hal.tile.size import divides, equal, is_fixed, is_one, less


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


@dataclass(frozen=True, slots=True)
class Split:
    """Wanted: `axis` as two loops, the inner one of `inner` steps."""

    axis: Axis
    inner: int


@dataclass(frozen=True, slots=True)
class Materialise:
    """Wanted: a buffer for the value of a node, because no split makes an index affine.

    `node` is None where the element's own place cannot be expressed, and not a view of it.
    """

    node: Any = None


Want = Split | Materialise
Regroup = Callable[["Index", Sequence[int]], "Index"]
"""The same element under another factorisation of the same order."""


class Wants:
    """Index arithmetic of one attempt: what it wants first is kept, and what comes after it means
    nothing."""

    def __init__(self) -> None:
        self.first: Want | None = None
        self.node: Any = None
        """Which node's element is being looked for."""

    def regroup(self, index: Index, shape: Sequence[int]) -> Index:
        """As `regroup`; an index without a meaning where something is wanted."""
        found = regroup(index, shape)
        if isinstance(found, Index):
            return found
        if self.first is None:
            self.first = Materialise(self.node) if found is None else found
        return Index(tuple(shape), (ZERO,) * len(shape))


def axis_index(axes: Iterable[Axis]) -> Index:
    """The element at the axes' own position, for a tensor whose order is that of the axes."""
    chosen = tuple(axes)
    return Index(tuple(a.size for a in chosen), tuple(Affine(0, ((a, 1),)) for a in chosen))


def regrouped(index: Index, shape: Sequence[int]) -> Index:
    """As `regroup`, where it is known that nothing is wanted."""
    found = regroup(index, shape)
    assert isinstance(found, Index), f"{index} has no place in {tuple(shape)}: {found}"
    return found


def regroup(index: Index, shape: Sequence[int]) -> Index | Split | None:
    """The same element under another factorisation of the same order; else the split that makes it
    possible, or None when nothing does."""
    target = tuple(shape)
    if len(index.shape) == len(target) and all(map(equal, index.shape, target)):
        return index
    source = [(s, a) for s, a in zip(index.shape, index.at, strict=True) if s != 1]
    wanted = [d for d in target if d != 1]
    out: list[Affine] = []
    i = j = 0
    while i < len(source):
        old, new, i_end, j_end = source[i][0], wanted[j], i + 1, j + 1
        while not equal(old, new):
            if i_end == len(source) and j_end == len(wanted):
                assert old == new, "the order has as many elements under both factorisations"
                break
            if i_end < len(source) and (j_end == len(wanted) or is_below(old, new)):
                old, i_end = old * source[i_end][0], i_end + 1
            else:
                new, j_end = new * wanted[j_end], j_end + 1
        run = Index(tuple(s for s, _ in source[i:i_end]), tuple(a for _, a in source[i:i_end]))
        digits = _digits(run.flat(), tuple(wanted[j:j_end]))
        if not isinstance(digits, list):
            return digits
        out += digits
        i, j = i_end, j_end
    found = iter(out)
    return Index(target, tuple(ZERO if d == 1 else next(found) for d in target))


def is_below(part: int, whole: int) -> bool:
    """Whether a product of the first sizes of an order is to grow until it is another one: of sizes
    that are data, where it is not known to be a multiple of it. To join too many is right, too."""
    if is_fixed(part) and is_fixed(whole):
        return part < whole
    return not equal(part, whole) and not divides(whole, part)


def _digits(value: Affine, dims: tuple[int, ...]) -> list[Affine] | Split | None:
    """`value` in the mixed radix of `dims`, none of which is 1, or what that wants."""
    out: list[Affine] = []
    rest = value
    for k, size in enumerate(dims[:-1]):
        stride = prod(dims[k + 1 :])
        for _, c in rest.terms:
            if not (divides(stride, c) or is_one(abs(c)) or less(abs(c), stride)):
                return None
        lower = Affine(rest.const, tuple((a, c) for a, c in rest.terms if abs(c) < stride))
        whole = lower.bounds()[0] // stride
        digit = Affine(whole, tuple((a, c // stride) for a, c in rest.terms if abs(c) >= stride))
        rest = lower.shift(-whole * stride)
        low, high = digit.bounds()
        if k and (low < 0 or high >= size):
            return None
        if rest.bounds()[1] >= stride:
            # The split after which what is left for the lower digits stays below one step of this
            # one.
            for axis, c in rest.terms:
                step = abs(c)
                # Of sizes that are data it is to be known, and not a condition: the loops' sizes
                # would not be known to make up the axis.
                fits = divides(step, stride) and divides(stride // step, axis.size)
                if fits and step * (axis.size - 1) >= stride and axis.source is None:
                    return Split(axis, stride // step)
            return None
        out.append(digit)
    return [*out, rest]
