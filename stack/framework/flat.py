"""Several tensors in one flat array, so that one launch updates them all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from weakref import WeakValueDictionary

from hal.tile.node import Node
from stack import ops as g
from stack.framework import store
from stack.framework.cell import (
    Cell,
    add_settler,
    become,
    governing,
    here,
    place,
    rebind,
    tracing,
    under_way,
)
from stack.framework.realize import refuse_in_trace
from stack.framework.tensor import Tensor

ALIGNMENT = 16
"""Parts begin at multiples of this many elements, so that vector loads of each part are aligned."""


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """Where tensors of these shapes lie in a flat array of `size` elements; gaps hold 0."""

    shapes: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    size: int

    @staticmethod
    def of(shapes: Sequence[tuple[int, ...]]) -> FlatLayout:
        ends = accumulate((-(-math.prod(s) // ALIGNMENT) * ALIGNMENT for s in shapes), initial=0)
        starts = tuple(ends)
        return FlatLayout(tuple(shapes), starts[:-1], starts[-1])

    def split(self, flat: Node) -> list[Node]:
        """The parts as views."""
        return [self._part(flat, i) for i in range(len(self.shapes))]

    def join(self, parts: Sequence[Node]) -> Node:
        """The flat array of these parts: the array itself when they are all views of one, split as
        here."""
        known = [store.named(p) for p in parts]
        base = _base(known[0])
        if base.shape == (self.size,) and all(
            p is self._part(base, i) for i, p in enumerate(known)
        ):
            return base
        return g.concat([self.padded(p, i) for i, p in enumerate(parts)], 0)

    def _part(self, flat: Node, i: int) -> Node:
        start = self.starts[i]
        cut = g.slice(flat, (start,), (start + math.prod(self.shapes[i]),))
        return g.reshape(cut, self.shapes[i])

    def padded(self, part: Node, i: int) -> Node:
        """Part i as a vector, with the gap behind it."""
        end = self.starts[i + 1] if i + 1 < len(self.starts) else self.size
        row = g.reshape(part, (part.type.size,))
        return g.pad(row, (0,), (end - self.starts[i] - part.type.size,))


def _base(n: Node) -> Node:
    """What a reshaped slice was cut from."""
    for op in ("reshape", "slice"):
        n = n.srcs[0] if n.op == op else n
    return n


class FlatParameters:
    """The home of tensors of one element type and device: `cell` holds them all, they are views of
    it.

    A member that is given other values is gathered again by `settle`.
    """

    def __init__(self, members: Sequence[Tensor]) -> None:
        refuse_in_trace("an optimizer was made")
        self.members = list(members)
        self.layout = FlatLayout.of([m.shape for m in members])
        joined = store.barrier(self.layout.join([m.node for m in members]))
        self.cell = Tensor(joined, members[0].device, owns=True)
        self._views: list[Node] = []
        self._place()
        for m in members:
            homes[m.serial] = governing[m.serial] = self
        governing[self.cell.serial] = self
        self.context = here.context
        add_settler(self)

    def settle(self) -> None:
        if any(m.node is not v for m, v in zip(self.members, self._views, strict=True)):
            own = tracing()
            others = [t for t in list(under_way) if t is not own]
            if any(m in t.old for t in others for m in self.members):
                return  # another thread's trace has changed them: it makes them what they were
            joined = self.layout.join([m.node for m in self.members])
            if joined is self.cell.node:  # as they were before a trace
                self._views = [m.node for m in self.members]
            else:
                self.assign(joined)

    def assign(self, flat: Node) -> None:
        """Give all members new values."""
        with store.lock:
            rebind(self.cell, flat)
            self._place()

    def hold(self, leaf: Node) -> None:
        """Give all members the values of a leaf that has an array: nothing is computed."""
        with store.lock:
            become(self.cell, leaf)
            self._place()

    def _place(self) -> None:
        self._views = self.layout.split(self.cell.node)
        for m, view in zip(self.members, self._views, strict=True):
            place(m, view)


homes: WeakValueDictionary[int, FlatParameters] = WeakValueDictionary()
"""The newest home of each tensor, by the tensor's serial number."""


def home_of(cells: Sequence[Cell]) -> FlatParameters | None:
    """The flat array of which these are exactly the members."""
    home = homes.get(cells[0].serial) if cells else None
    if home is None or {m.serial for m in home.members} != {c.serial for c in cells}:
        return None
    return home
