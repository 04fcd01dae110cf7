"""The elements that an access touches in all steps of some loops: how they lie in main memory, and
where each is in a dense copy of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.build import Operand, add, binary, index, mul, sub, where
from hal.tile.node import Node

I64 = DType.I64
_GAPS = 4
"""Loads take elements that are so far apart together with those between them."""


@dataclass(frozen=True, slots=True)
class Dim:
    """Steps of a loop or an axis of a block: at most `count` elements that are `stride` apart in
    main memory; `length` says how many there are (None: all)."""

    count: int
    stride: int
    length: Node | None = None

    @property
    def size(self) -> Operand:
        return self.count if self.length is None else self.length


@dataclass(frozen=True, slots=True)
class Run:
    """`length` elements, at most `count`, that are `stride` apart in main memory."""

    stride: int
    count: int
    length: Operand


@dataclass(frozen=True, slots=True)
class Footprint:
    """`runs` from the innermost to the outermost; a dense copy has `size` elements at most.

    `steps` are how far apart neighbours along each dimension lie in the copy. The copy begins with
    the element `first` of main memory, counted from the access's own first one, and that one is
    `start` elements behind its beginning.
    """

    runs: tuple[Run, ...]
    steps: tuple[Operand, ...]
    first: int
    start: Operand

    @property
    def size(self) -> int:
        return prod(r.count for r in self.runs)


def footprint(dims: Sequence[Dim], whole: bool) -> Footprint | None:
    """The footprint of dimensions; None where elements meet that are to be apart.

    `whole` says that the elements between may be copied as well, and any of them twice.
    """
    runs: list[Run] = []
    places: dict[int, tuple[int, int]] = {}
    for number in sorted(range(len(dims)), key=lambda i: abs(dims[i].stride)):
        d = dims[number]
        if d.stride == 0 or (d.count == 1 and d.length is None):
            if d.stride == 0 and d.count > 1 and not whole:
                return None
            continue
        step = _put(runs, d, whole)
        if step is None:
            return None
        places[number] = (len(runs) - 1, step)
    if not whole:
        # A row that lies nowhere else than the others still may be left out, and all with it.
        runs += [Run(1, 1, d.length) for d in dims if not d.stride and d.length is not None]
    return _placed(dims, runs, places)


def _put(runs: list[Run], d: Dim, whole: bool) -> int | None:
    """Add a dimension to the runs; how many of the last run's elements it steps over."""
    stride = abs(d.stride)
    if not runs and whole and 1 < stride <= _GAPS:
        runs.append(Run(1, 1, 1))
    if runs:
        last = runs[-1]
        reach = last.stride * last.count
        over = stride // last.stride
        fixed = isinstance(last.length, int)
        touching = stride == reach or (whole and stride % last.stride == 0 and over <= _GAPS)
        if fixed and (touching or (whole and stride < reach and stride % last.stride == 0)):
            count = last.count + (d.count - 1) * over
            if d.length is None:
                runs[-1] = Run(last.stride, count, count)
            else:
                missing = mul(sub(d.count, d.length), over)
                # No step touches nothing, not even what every step shares with the next.
                some = where(binary("lt", index(0), d.length), sub(count, missing), 0)
                runs[-1] = Run(last.stride, count, binary("max", some, 0))
            return over
        if stride < reach:
            return None
    runs.append(Run(stride, d.count, d.size))
    return 1


def _placed(
    dims: Sequence[Dim], runs: Sequence[Run], places: dict[int, tuple[int, int]]
) -> Footprint | None:
    pitches: list[Operand] = [1]
    for run in runs:
        pitches.append(times(pitches[-1], run.length))
    steps: list[Operand] = []
    first, start = 0, index(0)
    for number, d in enumerate(dims):
        if number not in places:
            steps.append(0)
            continue
        at, over = places[number]
        step = times(pitches[at], over)
        if d.stride < 0:
            if d.length is not None:
                return None
            first += (d.count - 1) * d.stride
            start = add(start, times(step, d.count - 1))
            step = times(step, -1)
        steps.append(step)
    value: Operand = int(start["value"]) if start.op == "const" else start
    return Footprint(tuple(runs), tuple(steps), first, value)


def times(a: Operand, b: Operand) -> Operand:
    """A product that stays a number where both are."""
    if isinstance(a, Node) or isinstance(b, Node):
        return mul(index(a), b)
    return a * b
