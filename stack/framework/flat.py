"""Several tensors in one flat array, so that one launch updates them all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from weakref import WeakValueDictionary

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node, Type
from stack import ops as g
from stack.framework import store
from stack.framework.cell import (
    Cell,
    Part,
    add_settler,
    become,
    governing,
    here,
    note_change,
    place,
    rebind,
    tracing,
    under_way,
)
from stack.framework.realize import refuse_in_trace
from stack.framework.recorded import CellTape
from stack.framework.tensor import Tensor
from stack.recorder.window import Window, steps_between

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
        base = known[0]  # or what it was cut from, as a reshaped slice
        for op in ("reshape", "slice"):
            base = base.srcs[0] if base.op == op else base
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


@lru_cache(64)
def windows(layout: FlatLayout) -> tuple[Window, ...]:
    """The parts of a layout as windows on the flat array."""
    flat = g.input(0, Type((layout.size,), DType.F32))
    whole = Window.whole((layout.size,))
    steps = [steps_between(flat, part) for part in layout.split(flat)]
    found = [None if s is None else whole.through(s) for s in steps]
    assert None not in found, "a part of a row is a window on it"
    return tuple([w for w in found if w is not None])


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
        self._parts = [Part(self.cell, w) for w in windows(self.layout)]
        self._place()
        for m in members:
            homes[m.serial] = governing[m.serial] = self
        governing[self.cell.serial] = self
        self.context = here.context
        add_settler(self)

    def settle(self) -> None:
        if all(m.part is p for m, p in zip(self.members, self._parts, strict=True)):
            return
        views = self.layout.split(self.cell.node)
        if any(m.node is not v for m, v in zip(self.members, views, strict=True)):
            own = tracing()
            others = [t for t in list(under_way) if t is not own]
            if any(m in t.old for t in others for m in self.members):
                return  # another thread's trace has changed them: it makes them what they were
            self.assign(self.layout.join([m.node for m in self.members]))
        elif not under_way:  # a trace that is over has left nodes in the place of parts
            for m, part in zip(self.members, self._parts, strict=True):
                if m.link is None:
                    place(m, part, m.value_type)

    def assign(self, flat: Node) -> None:
        """Give all members new values."""
        with store.lock:
            self._look()
            rebind(self.cell, flat)
            self._place()

    def hold(self, leaf: Node) -> None:
        """Give all members the values of a leaf that has an array: nothing is computed."""
        with store.lock:
            self._look()
            become(self.cell, leaf)
            self._place()

    def record(self, tape: CellTape, n: int) -> None:
        """Give all members the values of a number of a tape."""
        with store.lock:
            tape.overwrite(self.cell, n)
            self._place()

    def _look(self) -> None:
        """Traces remember the nodes that the members had before a change."""
        if under_way:
            for m in self.members:
                note_change(m)

    def _place(self) -> None:
        for m, part in zip(self.members, self._parts, strict=True):
            place(m, part, m.value_type)


homes: WeakValueDictionary[int, FlatParameters] = WeakValueDictionary()
"""The newest home of each tensor, by the tensor's serial number."""


def home_of(cells: Sequence[Cell]) -> FlatParameters | None:
    """The flat array of which these are exactly the members."""
    home = homes.get(cells[0].serial) if cells else None
    if home is None or {m.serial for m in home.members} != {c.serial for c in cells}:
        return None
    return home
