"""Where nodes have their values: the one owner of the framework's state.

A tensor's node is either computed from others or a *leaf*, an "input" node of its own. A leaf has
an array, or an origin (another node that defines it and that was not computed yet), or neither:
then it stands for an argument of a function that was traced. Everything is held by the nodes'
lives: a value goes when nothing can ask for it any more. Any thread may ask: a leaf that has an
array keeps it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, ref

from hal.tile.node import Node, Type, unshared
from stack.runtime.array import Array

lock = threading.RLock()
"""Held for the moment in which a thread changes what another one may change or look at, too."""


def _leave_parent() -> None:
    global lock
    lock = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_leave_parent)

leaf_slots = count(1 << 32)  # apart from the slots of requests, whose nodes live as long as plans

arrays: WeakKeyDictionary[Node, Array] = WeakKeyDictionary()
"""A leaf's value. No two leaves share an array, so that one can be updated in place."""

origins: WeakKeyDictionary[Node, Node] = WeakKeyDictionary()
"""What defines a leaf that has no value yet."""

leaves: WeakKeyDictionary[Node, Node] = WeakKeyDictionary()
"""For a computed node whose value is known: the leaf that holds it."""

histories: WeakKeyDictionary[Node, Node] = WeakKeyDictionary()
"""For a leaf whose value was written without gradients over a computed one: that one, to which
the leaf's gradient goes."""

arguments: WeakKeyDictionary[Node, str] = WeakKeyDictionary()
"""The leaves that stand for arguments, with the name of the traced function."""

reasons: WeakKeyDictionary[Node, str] = WeakKeyDictionary()
"""Why the values of leaves are lost."""


def fresh(type: Type) -> Node:
    """A new leaf, different from every other one."""
    return unshared("input", type, (("slot", next(leaf_slots)),))


def holding(array: Array) -> Node:
    """A new leaf whose value is the array."""
    leaf = fresh(array.type)
    arrays[leaf] = array
    return leaf


def barrier(origin: Node) -> Node:
    """A new leaf with the value of another node. Gradients stop here, and no other node is equal to
    it."""
    leaf = fresh(origin.type)
    origins[leaf] = origin
    return leaf


def through(origin: Node, history: Node) -> Node:
    """A new leaf with the value of one node and the gradient of another one."""
    leaf = barrier(origin)
    histories[leaf] = history
    return leaf


def argument(type: Type, function: str) -> Node:
    """A new leaf that stands for an argument of the function that is being traced."""
    leaf = fresh(type)
    arguments[leaf] = function
    return leaf


def lost(type: Type, why: str) -> Node:
    """A new leaf in the place of a value that can be computed no more, and why."""
    leaf = fresh(type)
    reasons[leaf] = why
    return leaf


_by_reference: dict[Any, Array] = vars(arrays)["data"]


def arrays_of(leaves: Iterable[Node]) -> list[Array]:
    """The array of each leaf; sooner than one by one, where there are many. Raises KeyError."""
    return [_by_reference[ref(leaf)] for leaf in leaves]


def bind(leaf: Node, array: Array) -> None:
    """Give a leaf its value. If another thread has computed it, too, the first array stays: it may
    have been updated since."""
    arrays.setdefault(leaf, array)
    origins.pop(leaf, None)


def references(leaf: Any, table: WeakKeyDictionary[Any, Any] | None = None) -> tuple[int, int]:
    """The references to a leaf that has an array, and to the array: those of who holds them, and
    as many of Python's own as in `ALONE`, which is asked in the same way."""
    array = (arrays if table is None else table)[leaf]
    return sys.getrefcount(leaf), sys.getrefcount(array)


class _Held:
    """What stands for a leaf, or for an array."""


def _alone() -> tuple[int, int]:
    held = [_Held()]
    return references(held[0], WeakKeyDictionary({held[0]: _Held()}))


ALONE = _alone()
"""The references to a leaf that one holds, and to its array, which nobody does but the table."""


def root(n: Node) -> Node:
    """What a node is a view of: the node below all movements, without leaves that only repeat
    another node."""
    while True:
        leaf = leaves.get(n)
        if leaf is not None:
            return leaf
        origin = origins.get(n)
        if origin is not None:
            n = origin
        elif n.op in VIEWS:
            n = n.srcs[0]
        else:
            return n


VIEWS = frozenset({"reshape", "permute", "expand", "slice", "flip"})
"""Operations that cost nothing to repeat."""


def named(n: Node) -> Node:
    """The node that a leaf without a value repeats; any other node itself."""
    while (origin := origins.get(n)) is not None:
        n = origin
    return n
