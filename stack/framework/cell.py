"""A cell is a place for a value: what every tensor is underneath, without its operations.

Values are never shared between cells as memory is between views elsewhere: changing one tensor in
place gives its cell another node and touches no other tensor.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import ClassVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from hal.tile.node import Node
from stack.framework import store

_serials = count(1)

unsettled: WeakValueDictionary[int, Cell] = WeakValueDictionary()
"""The cells, by age, that do not own a leaf with a value: whose value is pending, or shared."""

# What was pending in the process from which this one was forked is computed only if it is asked for
# here: its inputs may be out of reach.
os.register_at_fork(after_in_child=unsettled.clear)

owners: WeakKeyDictionary[Node, weakref.ref[Cell]] = WeakKeyDictionary()
"""The cell for which a node was made."""


class Cell:
    """`node` defines the value. `owns` says that the node stands for this cell alone; `serial` is
    its age.

    `requires_grad` without `owns` marks a value that was computed from others which require a
    gradient. `changes` counts how often something changed that traces read.
    """

    __slots__ = ("__weakref__", "_requires_grad", "device", "node", "owns", "serial")
    changes: ClassVar[int] = 0

    def __init__(self, node: Node, device: str, owns: bool, requires_grad: bool) -> None:
        self.node = node
        self.device = device
        self.owns = owns
        self._requires_grad = requires_grad
        self.serial = next(_serials)
        if owns:
            owners[node] = weakref.ref(self)
        if not (owns and node in store.arrays):
            unsettled[self.serial] = self

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are gathered here, or flow through here. What a trace reads is a
        condition of its plan."""
        if traces:
            traces[-1].note_flag(self, "_requires_grad")
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, required: bool) -> None:
        if required == self._requires_grad:
            return
        if traces:
            traces[-1].note_flag(self, "_requires_grad")
        self._requires_grad = required
        Cell.changes += 1


@dataclass(frozen=True, slots=True)
class Before:
    """What a cell was before a trace changed it."""

    node: Node
    owns: bool
    requires_grad: bool
    unsettled: bool


@dataclass(eq=False, slots=True)
class Trace:
    """The tracing of a function. Cells older than `born` were there before it.

    `old` has what each of these was before the function changed it. `numbers` tell apart what the
    function does more than once, by its place in the program. `flags` has what was read of other
    objects, by the object and the attribute. `effects` are values that the function computes for
    others, whether it returns them or not.
    """

    function: str
    born: int = field(default_factory=lambda: next(_serials))
    old: dict[Cell, Before] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)
    flags: dict[tuple[object, str], object] = field(default_factory=dict)
    effects: list[Cell] = field(default_factory=list)

    def note_flag(self, cell: Cell, name: str) -> None:
        """Remember an attribute of an older leaf before the function changes that."""
        if cell.serial < self.born and cell.owns:
            self.note(cell, name)

    def note(self, holder: object, name: str) -> None:
        """The plan is right as long as this attribute is what it is now; whoever changes it adds
        to `Cell.changes`."""
        self.flags.setdefault((holder, name), getattr(holder, name))

    def began_as(self, cell: Cell) -> Node:
        """The node that an older cell had at the beginning."""
        return self.old[cell].node if cell in self.old else cell.node

    def revert(self) -> None:
        """Make every older cell again what it was."""
        for cell, before in self.old.items():
            cell.node, cell.owns, cell.requires_grad = (
                before.node,
                before.owns,
                before.requires_grad,
            )
            unsettled.pop(cell.serial, None)
            if before.unsettled:
                unsettled[cell.serial] = cell


traces: list[Trace] = []
"""The trace under way, if any."""


def rebind(cell: Cell, node: Node) -> None:
    """Give the cell the value of another node of the same type, as a leaf of its own."""
    become(cell, store.barrier(node))


def become(cell: Cell, leaf: Node) -> None:
    """Make a node the cell's own."""
    note_change(cell)
    cell.node, cell.owns = leaf, True
    owners[leaf] = weakref.ref(cell)
    if leaf in store.arrays:
        unsettled.pop(cell.serial, None)
    else:
        unsettled[cell.serial] = cell


def follow(cell: Cell, node: Node) -> None:
    """Give a computed cell a node that gradients can flow through."""
    note_change(cell)
    cell.node, cell.owns = node, False
    unsettled[cell.serial] = cell


def note_change(cell: Cell) -> None:
    """Remember the node that an older cell had before the trace under way."""
    if traces and cell.serial < traces[-1].born and cell not in traces[-1].old:
        pending = cell.serial in unsettled
        traces[-1].old[cell] = Before(cell.node, cell.owns, cell.requires_grad, pending)


def place(cell: Cell, view: Node) -> None:
    """Make a view of another cell's leaf the cell's own node: it is settled whenever the other one
    is."""
    note_change(cell)
    cell.node, cell.owns = view, True
    owners[view] = weakref.ref(cell)
    unsettled.pop(cell.serial, None)


def outlive_traces(cell: Cell) -> None:
    """Let a cell that was made within a trace count as older: it is state that the traced function
    goes on using."""
    unsettled.pop(cell.serial, None)
    cell.serial = -cell.serial
    if cell.node not in store.arrays:
        unsettled[cell.serial] = cell
