"""Whether indices are in range, where their values came from the host.

What `tensor` and `to` copy to a device is remembered, up to KEPT integers, until something writes
over it there. An operation that indexes says what it needs of the values when it is called; for
what depends on arguments of a traced function this is noted, and looked at in each call. Values
that a device computed are not looked at: that would wait for them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from hal.core.facts import dataclass
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from hal.tile.size import is_fixed
from stack.framework import store
from stack.framework.cell import tracing
from stack.framework.devices import NDArray
from stack.framework.errors import RangeError

KEPT = 1 << 20
"""How many integers of one tensor are remembered: 8 MiB."""


@dataclass(eq=False, slots=True)
class Values:
    """Integers of the host, with the least and the greatest, which are found once."""

    all: NDArray
    found: tuple[int, int] | None = None

    @property
    def ends(self) -> tuple[int, int]:
        if self.found is None:
            self.found = int(self.all.min()), int(self.all.max())
        return self.found

    def wrong(self, least: int, most: int, besides: int | None) -> int | None:
        """The first value that is not least..most nor `besides`."""
        if not self.all.size or (least <= self.ends[0] and self.ends[1] <= most):
            return None
        out = (self.all < least) | (self.all > most)
        if besides is not None:
            out &= self.all != besides
        return int(self.all[out][0]) if out.any() else None


_hosted: WeakKeyDictionary[Node, Values] = WeakKeyDictionary()


def remember(n: Node, values: NDArray) -> None:
    """An integer node has these values, in an array that nobody changes."""
    if n.dtype.is_int and values.size <= KEPT:
        _hosted[n] = Values(values)


class _Notes(threading.local):
    """What operations need of values that are not known, while somebody notes it."""

    needs: list[Need] | None = None


_notes = _Notes()


@contextmanager
def noting() -> Iterator[list[Need]]:
    """What operations within the block need of indices whose values are not known there."""
    before = _notes.needs
    _notes.needs = found = list[Need]()
    try:
        yield found
    finally:
        _notes.needs = before


def forget(nodes: Iterable[Node]) -> None:
    """The arrays of these leaves are written."""
    for n in nodes:
        _hosted.pop(n, None)


@dataclass(frozen=True, eq=False, slots=True)
class Need:
    """What an operation needs of an index: that the values of `source`, moved by `path`, are
    0..size - 1, with `wraps` -size..size - 1, or `besides`."""

    source: Node
    path: tuple[Node, ...]
    size: int
    wraps: bool
    besides: int | None
    known: Values | None
    """The source's values; None: they come with each call, or are those of an arange."""
    operation: str = ""
    place: str = ""

    @property
    def sizes(self) -> tuple[Any, ...]:
        """All in it that may be a size without a number."""
        return self.size, *[d for n in (self.source, *self.path) for d in _sizes(n)]

    def check(self, values: Values | None, sizes: tuple[Any, ...]) -> None:
        """Raise RangeError where it is not met, with numbers for its sizes."""
        size, moves = sizes[0], sizes[1 + len(_sizes(self.source)) :]
        if values is None:
            values = Values(np.arange(sizes[1]))
        ends = -size if self.wraps else 0, size - 1
        wrong = values.wrong(*ends, self.besides)
        if wrong is not None and self.path:
            wrong = Values(_moved(values.all, self.path, moves)).wrong(*ends, self.besides)
        if wrong is None:
            return
        also = "" if self.besides is None else f" (or {self.besides}, which does not count)"
        name = f"{self.operation}: " if self.operation else ""
        raise RangeError(
            f"{name}index {wrong} is out of range for size {size}; {ends[0]} to {ends[1]}{also} "
            "are in it" + (f"\n  called at {self.place}" if self.place else "")
        )


def check(index: Node, size: int, *, wraps: bool = False, besides: int | None = None) -> None:
    """Raise RangeError where a value of an index is known and not within an axis of this size:
    `wraps` says that negative ones count from the end, `besides` which one is allowed besides.
    While a function is traced, note what can be known only when it is called."""
    source, path = _source(index)
    known = _known(source)
    if known is None and _notes.needs is not None:
        _notes.needs.append(Need(source, path, size, wraps, besides, None))
        return
    trace = tracing()
    if known is None and not (trace is not None and _known_in_calls(source)):
        return
    need = Need(source, path, size, wraps, besides, known)
    if known is not None and all(map(is_fixed, need.sizes)):
        need.check(known, need.sizes)
    elif trace is not None:
        trace.needs.append(need)


def values_of(n: Node) -> Values | None:
    """The integers of a node, where they are known."""
    source, path = _source(n)
    known = _known(source)
    if known is None or not path:
        return known
    return Values(_moved(known.all, path, [d for step in path for d in _sizes(step)]))


def _known_in_calls(source: Node) -> bool:
    """Whether a call of the traced function may tell the values."""
    if source.op == "arange":
        return source.dtype.is_int and not is_fixed(source.shape[0])
    return source in store.arguments


def _known(source: Node) -> Values | None:
    if source.op == "const" and source.dtype.is_int:
        return Values(np.asarray(source["value"]))
    if source.op == "arange" and source.dtype.is_int and is_fixed(source.shape[0]):
        return Values(np.arange(source.shape[0])) if source.shape[0] <= KEPT else None
    return _hosted.get(source)


def _source(n: Node) -> tuple[Node, tuple[Node, ...]]:
    """Where an index's values are from, and the movements from there."""
    path: list[Node] = []
    while n not in _hosted:
        if (origin := store.origins.get(n)) is not None:
            n = origin
        elif n.op in store.VIEWS:
            path.append(n)
            n = n.srcs[0]
        elif n.op == "cast" and np.can_cast(NUMPY[n.srcs[0].dtype], NUMPY[n.dtype]):
            n = n.srcs[0]
        else:
            break
    return n, tuple(path[::-1])


def _sizes(step: Node) -> tuple[int, ...]:
    if step.op == "slice":
        return (*step["start"], *step["stop"])
    return step.shape if step.op in ("reshape", "expand", "arange") else ()


def _moved(values: NDArray, path: Iterable[Node], sizes: Iterable[int]) -> NDArray:
    rest = iter(sizes)
    for step in path:
        given = [next(rest) for _ in _sizes(step)]
        if step.op == "reshape":
            values = values.reshape(given)
        elif step.op == "expand":
            values = np.broadcast_to(values, given)
        elif step.op == "permute":
            values = values.transpose(step["perm"])
        elif step.op == "flip":
            values = np.flip(values, step["axes"])
        else:
            rank = len(step.shape)
            values = values[tuple(map(slice, given[:rank], given[rank:], step["step"]))]
    return values
