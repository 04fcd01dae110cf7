"""Windows: what a tensor shows of the memory of another one, as graph expressions.

A value is a node and never changes, so memory that is shared is a matter of names: reading through
a window is a chain of movements of the whole value, and writing through it makes another value of
the whole, in which the part is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Attrs, Node, node
from stack import ops as g

Shape = tuple[int, ...]

_MOVES = frozenset({"reshape", "permute", "expand", "slice"})
"""The operations whose results can be windows."""


@dataclass(frozen=True, slots=True)
class Step:
    """One movement: an operator, its result's shape, its attributes."""

    op: str
    shape: Shape
    attrs: Attrs

    def __call__(self, x: Node) -> Node:
        return node(self.op, x.type.with_shape(self.shape), (x,), **dict(self.attrs))


def contiguous_strides(shape: Shape) -> Shape:
    """The strides of elements in row-major order."""
    strides, apart = [], 1
    for n in reversed(shape):
        strides.append(apart)
        apart *= max(n, 1)
    return tuple(strides[::-1])


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Window:
    """The result of `steps` on a whole value. `strides` and `offset` count elements of the memory
    that the whole lies in."""

    shape: Shape
    strides: Shape
    offset: int = 0
    steps: tuple[Step, ...] = ()

    def __hash__(self) -> int:
        return hash((self.shape, self.strides, self.offset))

    @staticmethod
    def whole(shape: Shape) -> Window:
        """All of a value, in row-major order."""
        return Window(shape, contiguous_strides(shape))

    def through(self, steps: Sequence[Step]) -> Window | None:
        """What these steps show of what this window shows. None where memory would have to be
        copied: by a reshape that joins axes which do not lie one after the other."""
        shape, strides, offset = self.shape, self.strides, self.offset
        for step in steps:
            attrs = dict(step.attrs)
            if step.op == "permute":
                strides = tuple(strides[p] for p in attrs["perm"])
            elif step.op == "slice":
                offset += sum(lo * s for lo, s in zip(attrs["start"], strides, strict=True))
                strides = tuple(by * s for by, s in zip(attrs["step"], strides, strict=True))
            elif step.op == "expand":
                grown = zip(shape, step.shape, strides, strict=True)
                strides = tuple(s if m == n else 0 for m, n, s in grown)
            else:
                found = _reshaped(shape, strides, step.shape)
                if found is None:
                    return None
                strides = found
            shape = step.shape
        return Window(shape, strides, offset, (*self.steps, *steps))

    def own(self) -> Window:
        """The same place in memory, as what is shown of itself: without steps."""
        return Window(self.shape, self.strides, self.offset)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one after the other in row-major order."""
        plain = contiguous_strides(self.shape)
        pairs = zip(self.shape, self.strides, plain, strict=True)
        return 0 in self.shape or all(n == 1 or s == p for n, s, p in pairs)

    @property
    def repeats(self) -> bool:
        """Whether it shows elements that were repeated. Such a window cannot be written."""
        return any(step.op == "expand" for step in self.steps)

    def read(self, whole: Node) -> Node:
        """What it shows of the whole value."""
        for step in self.steps:
            whole = step(whole)
        return whole

    def write(self, whole: Node, part: Node) -> Node:
        """The whole value with `part`, of the window's shape, in the place of what it shows. Not
        for windows that repeat elements."""
        if 0 in self.shape:
            return whole
        values = list(accumulate(self.steps, lambda x, step: step(x), initial=whole))[:-1]
        for step, old in zip(self.steps[::-1], values[::-1], strict=True):
            # The value before the step that has `part` where the step shows something, and else is
            # as `old`.
            attrs = dict(step.attrs)
            if step.op == "permute":
                order = attrs["perm"]
                part = g.permute(part, sorted(range(len(order)), key=order.__getitem__))
            elif step.op != "slice":
                part = g.reshape(part, old.shape)
            else:
                start, by = attrs["start"], attrs["step"]
                places = _spread(g.full(part.shape, True, DType.BOOL), start, by, old.shape)
                part = g.where(places, _spread(part, start, by, old.shape), old)
        return part


def steps_between(whole: Node, part: Node) -> tuple[Step, ...] | None:
    """The movements that lead from one value to the other, or None where there are others
    between."""
    steps: list[Step] = []
    while part is not whole:
        if part.op not in _MOVES:
            return None
        steps.append(Step(part.op, part.shape, part.attrs))
        part = part.srcs[0]
    return tuple(steps[::-1])


def _reshaped(shape: Shape, strides: Shape, wanted: Shape) -> Shape | None:
    """The strides under another shape, None where elements would have to be copied: each run of
    axes that lie one after the other is divided on its own."""
    if 0 in shape:
        return contiguous_strides(wanted)
    runs: list[tuple[int, int]] = []  # elements of a run, and between two of them
    for n, s in zip(shape, strides, strict=True):
        if n == 1:
            continue
        if runs and runs[-1][1] == n * s:
            runs[-1] = (runs[-1][0] * n, s)
        else:
            runs.append((n, s))
    result = [1] * len(wanted)
    left, apart = 1, 1
    for a in range(len(wanted) - 1, -1, -1):
        if wanted[a] == 1:
            result[a] = apart
            continue
        if left == 1:
            left, apart = runs.pop()
        if left % wanted[a]:
            return None
        result[a] = apart
        left, apart = left // wanted[a], apart * wanted[a]
    return tuple(result)


def _spread(part: Node, start: Sequence[int], step: Sequence[int], shape: Shape) -> Node:
    """The part at its places of a larger value, and 0 elsewhere."""
    for a, by in enumerate(step):
        part = g.dilate(part, a, by)
    after = [n - lo - m for n, lo, m in zip(shape, start, part.shape, strict=True)]
    return g.pad(part, start, after)
