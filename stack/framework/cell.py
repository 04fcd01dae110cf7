"""A cell is a place for a value: what every tensor is underneath, without its operations.

Cells that share memory form a tree of links: each but the one at the root is a window on another
one. Writing to any of them gives the root another value, from which all others are read anew.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from hal.tile.node import Node
from stack.framework import store
from stack.recorder.window import Window

_serials = count(1)

unsettled: WeakValueDictionary[int, Cell] = WeakValueDictionary()
"""The cells, by age, that do not own a leaf with a value: whose value is pending, or shared."""

# What was pending in the process from which this one was forked is computed only if it is asked for
# here: its inputs may be out of reach.
os.register_at_fork(after_in_child=unsettled.clear)

Hook = Callable[[Node], Node]
"""From a gradient to the one that takes its place."""

hooked: WeakKeyDictionary[Node, dict[int, Hook]] = WeakKeyDictionary()
"""What looks at the gradient of a computed node."""

owners: WeakKeyDictionary[Node, weakref.ref[Cell]] = WeakKeyDictionary()
"""The cell for which a node was made."""


@dataclass(frozen=True, slots=True)
class Link:
    """Where a cell's value lies: in what `window` shows of the value of `source`.

    No gradient flows through a link that is `cut`: the cell is a leaf, or `history` is what its
    gradient goes to. `refusal` says why an operation in place that gradients flow through cannot
    change the cell, if it cannot.
    """

    source: Cell
    window: Window
    cut: bool = False
    history: Node | None = None
    refusal: str = ""


class Cell:
    """`node` defines the value. `owns` says that the node stands for this cell alone; `serial` is
    its age. `link` says whose memory it shares, if it has none of its own; its node is then made
    when it is asked for, after the memory has changed.

    `requires_grad` without `owns` marks a value that was computed from others which require a
    gradient. `changes` counts how often something changed that traces read.
    """

    __slots__ = (
        *("__weakref__", "_requires_grad", "_windows", "device", "hooks", "link", "node", "owns"),
        "serial",
    )
    changes: ClassVar[int] = 0
    link: Link | None
    hooks: dict[int, Hook]
    """What looks at the gradient of a leaf; of others `hooked` has them."""

    def __init__(self, node: Node, device: str, owns: bool, requires_grad: bool) -> None:
        self.node = node
        self.device = device
        self.owns = owns
        self._requires_grad = requires_grad
        self.serial = next(_serials)
        self.link = None
        self.hooks = {}
        self._windows: list[weakref.ref[Cell]] = []
        if owns:
            owners[node] = weakref.ref(self)
        if not (owns and node in store.arrays):
            unsettled[self.serial] = self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The node of a window whose memory has changed."""
            if name != "node":
                raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
            link = self.link
            n = link.window.read(link.source.node)
            if link.history is not None:
                n = store.through(n, link.history)
            elif link.cut:
                n = store.barrier(n)
                owners[n] = weakref.ref(self)
            self.node = n
            return n

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are gathered here, or flow through here. What a trace reads is a
        condition of its plan."""
        if traces:
            traces[-1].note_flag(self, "_requires_grad")
        return self._requires_grad

    def require_grad(self, required: bool) -> None:
        """Mark the cell, and the windows on it that gradients flow through."""
        if required == self._requires_grad:
            return
        if traces:
            traces[-1].note_flag(self, "_requires_grad")
        self._requires_grad = required
        Cell.changes += 1
        for w in self.windows():
            if w.link is not None and not w.link.cut:
                w.require_grad(required)

    def windows(self) -> list[Cell]:
        """The cells that are linked to this one."""
        if not self._windows:
            return []
        alive = [w for w in [r() for r in self._windows] if w is not None and _source(w) is self]
        self._windows = [weakref.ref(w) for w in alive]
        return alive


def _source(cell: Cell) -> Cell | None:
    return None if cell.link is None else cell.link.source


def connect(cell: Cell, link: Link) -> None:
    """Make a cell, whose node is what the link shows, a window."""
    cell.link = link
    link.source._windows.append(weakref.ref(cell))
    unsettled.pop(cell.serial, None)


def stale(cell: Cell) -> None:
    """Let all windows on the cell be read anew."""
    for w in cell.windows():
        try:
            old: Node = object.__getattribute__(w, "node")
        except AttributeError:
            pass
        else:
            assert w.link is not None
            if w.link.cut and not w.owns:
                w.link = replace(w.link, history=old)
            del w.node
        stale(w)


@dataclass(frozen=True, slots=True)
class Before:
    """What a cell was before a trace changed it."""

    node: Node
    owns: bool
    requires_grad: bool
    unsettled: bool
    link: Link | None


@dataclass(eq=False, slots=True)
class Trace:
    """The tracing of a function. Cells older than `born` were there before it.

    `old` has what each of these was before the function changed it. `numbers` tell apart what the
    function does more than once, by its place in the program. `flags` has what was read of other
    objects, by the object and the attribute. `effects` are values that the function computes for
    others, whether it returns them or not. `needs` are what it needs of its arguments' values,
    as `within.Need`.

    `gradients` are those of older tensors as the function leaves them, where it read or gave one;
    `given` what stands for those that it read, with the leaf that this began with. `used` are the
    tensors whose gradients an optimizer's step has taken.
    """

    function: str
    born: int = field(default_factory=lambda: next(_serials))
    old: dict[Cell, Before] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)
    flags: dict[tuple[object, str], object] = field(default_factory=dict)
    effects: list[Cell] = field(default_factory=list)
    needs: list[Any] = field(default_factory=list)
    gradients: dict[Any, Any] = field(default_factory=dict)
    given: dict[Any, tuple[Any, Node]] = field(default_factory=dict)
    used: set[Any] = field(default_factory=set)

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
            cell.node, cell.owns = before.node, before.owns
            cell.require_grad(before.requires_grad)
            cell.link = before.link
            unsettled.pop(cell.serial, None)
            if before.unsettled:
                unsettled[cell.serial] = cell
            stale(cell)


traces: list[Trace] = []
"""The trace under way, if any."""


def rebind(cell: Cell, node: Node) -> None:
    """Give the cell, and what shares its memory, the value of another node of the same type,
    through which no gradient flows. A leaf stays one; what was computed from others keeps its
    gradient's way to them."""
    write(cell, node, tracked=False)


def write(cell: Cell, node: Node, tracked: bool) -> None:
    """Give the cell, and what shares its memory, the value of another node of the same type; if
    `tracked`, with the gradients that flow through it."""
    link = cell.link
    if link is None:
        if tracked:
            follow(cell, node)
            cell.require_grad(True)
        elif cell._requires_grad and not cell.owns:
            follow(cell, store.through(node, cell.node))
        else:
            become(cell, store.barrier(node))
        return
    whole = link.window.write(link.source.node, node)
    write(link.source, whole, tracked and not link.cut)
    if tracked and link.cut:
        note_change(cell)
        cell.link = replace(link, history=None)
        cell.node, cell.owns = node, False
        cell.require_grad(True)


def become(cell: Cell, leaf: Node) -> None:
    """Make a node the cell's own."""
    note_change(cell)
    cell.node, cell.owns = leaf, True
    owners[leaf] = weakref.ref(cell)
    stale(cell)
    if leaf in store.arrays:
        unsettled.pop(cell.serial, None)
    else:
        unsettled[cell.serial] = cell


def follow(cell: Cell, node: Node) -> None:
    """Give a computed cell a node that gradients can flow through."""
    note_change(cell)
    cell.node, cell.owns = node, False
    unsettled[cell.serial] = cell
    stale(cell)


def note_change(cell: Cell) -> None:
    """Remember the node that an older cell had before the trace under way."""
    if traces and cell.serial < traces[-1].born and cell not in traces[-1].old:
        pending = cell.serial in unsettled
        before = Before(cell.node, cell.owns, cell.requires_grad, pending, cell.link)
        traces[-1].old[cell] = before


def place(cell: Cell, view: Node) -> None:
    """Make a view of another cell's leaf the cell's own node: it is settled whenever the other one
    is. A window keeps its memory, and takes the value."""
    if cell.link is not None:
        rebind(cell, view)
        return
    note_change(cell)
    cell.node, cell.owns = view, True
    owners[view] = weakref.ref(cell)
    stale(cell)
    unsettled.pop(cell.serial, None)


def outlive_traces(cell: Cell) -> None:
    """Let a cell that was made within a trace count as older: it is state that the traced function
    goes on using."""
    unsettled.pop(cell.serial, None)
    cell.serial = -cell.serial
    if cell.node not in store.arrays:
        unsettled[cell.serial] = cell
