"""A cell is a place for a value: what every tensor is underneath, without its operations.

Cells that share memory form a tree of links: each but the one at the root is a window on another
one. Writing to any of them gives the root another value, from which all others are read anew.

A thread has a trace and pending work of its own. What it asks for is computed with what it has
pending, and what it changes is no part of what another one traces.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from hal.core.facts import dataclass
from hal.tile.node import Node, Type
from stack.framework import store
from stack.framework.errors import TracingError, where_called
from stack.recorder.window import Window

serials = count(1)
_threads = count()


class Context:
    """What belongs to one thread: the cells, by age, that do not own a leaf with a value, since it
    is pending or shared; the trace under way, if any; by device what is on a tape; and the tapes
    that ended, of which somebody still can ask how a value was computed. `number` counts
    threads."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.number = next(_threads)
        self.unsettled: WeakValueDictionary[int, Cell] = WeakValueDictionary()
        self.trace: Trace | None = None
        self.recordings: dict[str, Recording] = {}
        self.histories: WeakSet[Recording] = WeakSet()

    def make_nodes(self) -> None:
        """Make nodes of all that is on tapes."""
        for recording in [*self.recordings.values(), *self.histories]:
            recording.make_nodes()

    def pending(self) -> list[Cell]:
        """The cells whose value is pending or shared. Any thread may ask."""
        self.make_nodes()
        found = [c for r in self.unsettled.valuerefs() if (c := r()) is not None]
        settled = {c.serial for c in found if c.owns and c.node in store.arrays}
        for c in found:
            if c.serial in settled:  # by another thread
                c.settled()
        return [c for c in found if c.serial not in settled]


class _Here(threading.local):
    """This thread's context, and further values of its own.

    A thread-local value, not one of `contextvars`: `asyncio.to_thread` copies those, and then two
    threads would have one context. `device` and `seed` are what was set for this thread,
    `generators` its streams of random numbers by device.
    """

    def __init__(self) -> None:
        self.context = Context()
        self.unsettled, self.recordings = self.context.unsettled, self.context.recordings
        self.device = ""
        self.seed: int | None = None
        self.generators: dict[str, Any] = {}
        with store.lock:
            contexts[:] = [c for c in contexts if c.thread.is_alive() or c.pending()]
            contexts.append(self.context)


contexts: list[Context] = []
"""Of all threads that live, and of others who left something pending."""

here = _Here()

under_way: list[Trace] = []
"""The traces of all threads."""


def tracing() -> Trace | None:
    """The trace under way in this thread."""
    return here.context.trace if under_way else None


def _leave_parent() -> None:
    """What was pending in the process from which this one was forked is computed only if it is
    asked for here: its inputs may be out of reach."""
    here.unsettled.clear()
    here.context.recordings.clear()
    here.context.histories.clear()
    contexts[:] = [here.context]
    under_way[:] = [t for t in under_way if t is here.context.trace]


os.register_at_fork(after_in_child=_leave_parent)

Hook = Callable[[Node], Node]
"""From a gradient to the one that takes its place."""

NO_HOOKS: Mapping[int, Hook] = MappingProxyType({})

hooked: WeakKeyDictionary[Node, dict[int, Hook]] = WeakKeyDictionary()
"""What looks at the gradient of a computed node."""

owners: WeakKeyDictionary[Node, weakref.ref[Cell]] = WeakKeyDictionary()
"""The cell for which a node was made."""


class Link(NamedTuple):
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


class Recording(Protocol):
    """Values on a tape, which are no nodes yet."""

    def make_nodes(self) -> None:
        """Make the node of each cell whose value is on the tape."""
        ...

    def compute(self) -> None:
        """Begin to compute the value of each of these cells."""
        ...

    def value(self, cell: Cell) -> Node | None:
        """The leaf with a cell's value, where that was computed."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """What `window` shows of the value of `whole`: a leaf that has no memory of its own."""

    whole: Cell
    window: Window


class Cell:
    """`node` defines the value. `owns` says that the node stands for this cell alone; `serial` is
    its age. `link` says whose memory it shares, if it has none of its own; its node is then made
    when it is asked for, after the memory has changed. A value on a tape has no node either: it is
    the `number`th one of a `recording`, and of type `shown`. Nor has a leaf that is a `part` of
    another cell, until somebody asks.

    `requires_grad` without `owns` marks a value that was computed from others which require a
    gradient.
    """

    __slots__ = (
        *("__weakref__", "_requires_grad", "_waits", "_windows", "device", "hooks", "link", "node"),
        *("number", "owns", "part", "recording", "serial", "shown"),
    )
    link: Link | None
    number: int
    part: Part | None
    recording: Recording | None
    shown: Type
    hooks: Mapping[int, Hook]
    """What looks at the gradient of a leaf; of others `hooked` has them."""

    def __init__(self, node: Node, device: str, owns: bool, requires_grad: bool) -> None:
        self.node = node
        self.device = device
        self.owns = owns
        self._requires_grad = requires_grad
        self.serial = next(serials)
        self.link = None
        self.hooks = NO_HOOKS
        self._waits: WeakValueDictionary[int, Cell] | None = None
        self._windows: Sequence[weakref.ref[Cell]] = ()
        self.recording = self.part = None
        if owns:
            owners[node] = weakref.ref(self)
            if under_way and (trace := tracing()) is not None:
                trace.made.add(node)
        if not (owns and node in store.arrays):
            self._waits = here.unsettled
            self._waits[self.serial] = self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The node of a window whose memory has changed, of a value on a tape, or of a part."""
            if name != "node":
                raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
            if (recording := self.recording) is not None:
                recording.make_nodes()
                return self.node
            if (part := self.part) is not None:
                n = part.window.read(part.whole.node)
                owners[n] = weakref.ref(self)
                self.node = n
                return n
            link = self.link
            if link is None:  # another thread gives it one, or puts it on a tape
                with store.lock:
                    if self.recording is None:
                        return super().__getattribute__(name)
                return self.node
            n = link.window.read(link.source.node)
            if link.history is not None:
                n = store.through(n, link.history)
            elif link.cut:
                n = store.barrier(n)
                owners[n] = weakref.ref(self)
            self.node = n
            return n

    @property
    def value_type(self) -> Type:
        """The type of the value, for which no node is made."""
        known = self.recording or self.link or self.part
        return self.node.type if known is None else self.shown

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are gathered here, or flow through here. What a trace reads is a
        condition of its plan."""
        if under_way and (trace := tracing()) is not None:
            trace.note_flag(self, "_requires_grad")
        return self._requires_grad

    def require_grad(self, required: bool) -> None:
        """Mark the cell, and the windows on it that gradients flow through."""
        if required == self._requires_grad:
            return
        if (trace := tracing()) is not None:
            trace.note_flag(self, "_requires_grad")
        self._requires_grad = required
        changed()
        for w in self.windows():
            if w.link is not None and not w.link.cut:
                w.require_grad(required)

    def waits(self) -> None:
        """The value is pending, or shared: it stays among those of the thread that it was pending
        in, or else it is one of this thread's."""
        if self._waits is None or self.serial not in self._waits:
            self._waits = here.unsettled
            self._waits[self.serial] = self

    def settled(self) -> None:
        """The value is there."""
        waits, self._waits = self._waits, None
        if waits is not None:
            waits.pop(self.serial, None)

    def windows(self) -> list[Cell]:
        """The cells that are linked to this one."""
        noted = self._windows
        if not isinstance(noted, list):
            return []
        with store.lock:  # while another thread may note one more
            count = len(noted)
            found = [(r, r()) for r in noted[:count]]
            alive = [
                (r, w)
                for r, w in found
                if w is not None and w.link is not None and w.link.source is self
            ]
            noted[:count] = [r for r, _ in alive]
        return [w for _, w in alive]


def root(cell: Cell) -> Cell:
    """The cell whose memory it is."""
    while cell.link is not None:
        cell = cell.link.source
    return cell


def connect(cell: Cell, link: Link, shown: Type | None = None) -> None:
    """Make a cell, whose node is what the link shows, or is to be made when it is asked for, of
    type `shown`, a window."""
    if cell.link is None:
        cell.shown = cell.node.type if shown is None else shown
    cell.link = link
    note_window(link.source, cell)
    cell.settled()


_MANY = 16


def note_window(source: Cell, window: Cell) -> None:
    """Note among the windows on a cell one more. Those that are gone are forgotten whenever their
    number may have doubled."""
    noted = source._windows
    if not isinstance(noted, list):
        with store.lock:  # another thread may note the first one, too
            if not isinstance(source._windows, list):
                source._windows = []
            noted = source._windows
    count = len(noted)
    if count >= _MANY and count & (count - 1) == 0:
        source.windows()
    noted.append(weakref.ref(window))


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
                w.link = w.link._replace(history=old)
            del w.node
        if w._windows:
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
    """The tracing of a function in a thread. Cells older than `born` were there before it.

    `old` has what each of these was before the function changed it. `numbers` tell apart what the
    function does more than once, by its place in the program. `flags` has what was read of other
    objects, by the object and the attribute. `effects` are values that the function computes for
    others, whether it returns them or not. `needs` are what it needs of its arguments' values,
    as `within.Need`.

    `gradients` are those of older tensors as the function leaves them, where it read or gave one;
    `given` what stands for those that it read, with the leaf that this began with. `used` are the
    tensors whose gradients an optimizer's step has taken.

    `made` are the leaves that it made, `crossed` those that a cell had before another thread
    changed it, with that thread's name. `draws` says that it draws from the thread's own streams.
    """

    function: str
    thread: str = field(default_factory=lambda: threading.current_thread().name)
    born: int = field(default_factory=lambda: next(serials))
    old: dict[Cell, Before] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)
    flags: dict[tuple[int, str], tuple[object, object]] = field(default_factory=dict)
    effects: list[Cell] = field(default_factory=list)
    needs: list[Any] = field(default_factory=list)
    gradients: dict[Any, Any] = field(default_factory=dict)
    given: dict[Any, tuple[Any, Node]] = field(default_factory=dict)
    used: set[Any] = field(default_factory=set)
    made: set[Node] = field(default_factory=set)
    crossed: dict[Node, str] = field(default_factory=dict)
    draws: bool = False

    def note_flag(self, cell: Cell, name: str) -> None:
        """Remember an attribute of an older leaf before the function changes that."""
        if cell.serial < self.born and cell.owns:
            self.note(cell, name)

    def note(self, holder: object, name: str) -> None:
        """The plan is right as long as this attribute is what it is now; whoever changes it calls
        `changed`."""
        if (id(holder), name) not in self.flags:
            self.flags[id(holder), name] = holder, getattr(holder, name)

    def has_read(self, holder: object, name: str) -> bool:
        """Whether the plan depends on this attribute."""
        return (id(holder), name) in self.flags

    def began_as(self, cell: Cell) -> Node:
        """The node that an older cell had at the beginning."""
        return self.old[cell].node if cell in self.old else cell.node

    def revert(self) -> None:
        """Make every older cell again what it was."""
        for cell, before in self.old.items():
            cell.node, cell.owns = before.node, before.owns
            cell.recording = cell.part = None
            cell.require_grad(before.requires_grad)
            cell.link = before.link
            cell.settled()
            if before.unsettled:
                cell.waits()
            stale(cell)


class Settler(Protocol):
    """State that keeps its parts consistent. `context` is of the thread that used it last."""

    context: Context

    def settle(self) -> None: ...


_settlers: WeakValueDictionary[int, Settler] = WeakValueDictionary()

governing: WeakValueDictionary[int, Settler] = WeakValueDictionary()
"""What keeps a cell consistent with others, by the cell's serial number."""


class Retrace(BaseException):
    """A trace meets state that has to change before it: `change` does so outside of it, and the
    function is traced anew. No handler of the user's is to catch it."""

    def __init__(self, change: Callable[[], None]) -> None:
        self.change = change


def take_over(settler: Settler) -> None:
    """From now on this thread uses it, and it is consistent. Raises Retrace in a trace that would
    have to change it."""
    own = here.context
    if settler.context is not own and tracing() is not None:
        raise Retrace(partial(take_over, settler))
    settler.context = own
    settler.settle()


def add_settler(settler: Settler) -> None:
    """Settle this one too, for as long as it lives."""
    _settlers[next(serials)] = settler


def settle() -> None:
    """Make the state consistent that this thread used last, or one that has ended, in the order in
    which it was added. What another thread uses may be changing."""
    own = here.context
    for found in _settlers.valuerefs():
        settler = found()
        if settler is None:
            continue
        with store.lock:
            if not settler.context.thread.is_alive():
                settler.context = own
        if settler.context is own:
            settler.settle()


_changes = count(1)
_newest = [0]


def changed() -> None:
    """Something has changed that traces read."""
    _newest[0] = next(_changes)


def newest_change() -> int:
    """A number that is another one after each change: two threads may change things at once, and
    the later number may be written first."""
    return _newest[0]


def check_crossing(cells: Iterable[Cell]) -> None:
    """Raise TracingError where another thread's trace has changed one of these cells: it has no
    value before that trace is over."""
    own = tracing()
    for trace in list(under_way):
        if trace is not own:
            for cell in cells:
                if root(cell) in trace.old:
                    raise _crossing(cell, trace, own)


def _crossing(cell: Cell, trace: Trace, own: Trace | None) -> TracingError:
    name = threading.current_thread().name
    doing = "is used" if own is None else f"is used by {own.function!r}, which is traced,"
    return TracingError(
        f"a tensor of {cell.node.type} {doing} in thread {name!r} while {trace.function!r}, "
        f"which changes it, is traced in thread {trace.thread!r}; let one wait for the other\n"
        f"  called at {where_called()}"
    )


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
        cell.link = link._replace(history=None)
        cell.node, cell.owns = node, False
        cell.require_grad(True)


def become(cell: Cell, leaf: Node) -> None:
    """Make a node the cell's own."""
    with store.lock:
        note_change(cell)
        cell.node, cell.owns = leaf, True
        cell.recording = cell.part = None
        owners[leaf] = weakref.ref(cell)
        stale(cell)
        if leaf in store.arrays:
            cell.settled()
        else:
            cell.waits()


def tell_apart(cells: Iterable[Cell]) -> None:
    """Give each pending cell a leaf of its own, by which it can be told from others of equal
    value."""
    for cell in cells:
        with store.lock:
            if not cell.owns and not cell.requires_grad:
                rebind(cell, cell.node)


def follow(cell: Cell, node: Node) -> None:
    """Give a computed cell a node that gradients can flow through."""
    with store.lock:
        note_change(cell)
        cell.node, cell.owns = node, False
        cell.recording = cell.part = None
        stale(cell)
        cell.waits()


def note_change(cell: Cell) -> None:
    """Remember the node that an older cell had before this thread's trace, and tell those of other
    threads. Raises TracingError where one of them has changed it."""
    if not under_way:
        return
    check_crossing((cell,))
    own = tracing()
    for trace in list(under_way):
        if trace is not own and cell.owns and cell.link is None and cell.serial < trace.born:
            trace.crossed.setdefault(cell.node, threading.current_thread().name)
    if own is not None and cell.serial < own.born and cell not in own.old:
        pending = cell._waits is not None
        before = Before(cell.node, cell.owns, cell.requires_grad, pending, cell.link)
        own.old[cell] = before


def place(cell: Cell, part: Part, type: Type) -> None:
    """Make a part of another cell's value the cell's own: it is settled whenever the other one is.
    A window keeps its memory, and takes the value."""
    if cell.link is not None:
        rebind(cell, part.window.read(part.whole.node))
        return
    with store.lock:
        if under_way:
            note_change(cell)
            cell.node = part.window.read(part.whole.node)
            cell.part = None
            owners[cell.node] = weakref.ref(cell)
        else:
            with suppress(AttributeError):
                del cell.node
            cell.part, cell.shown = part, type
        cell.owns, cell.recording = True, None
        if cell._windows:
            stale(cell)
        if cell._waits is not None:
            cell.settled()


def outlive_traces(cell: Cell) -> None:
    """Let a cell that was made within a trace count as older: it is state that the traced function
    goes on using."""
    cell.settled()
    cell.serial = -cell.serial
    if cell.node not in store.arrays:
        cell.waits()
