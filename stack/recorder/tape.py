"""A tape: operations that were asked for and not computed yet, as a path that is found again.

A tape is the sequence of operations since it began. It is kept as a place in a tree of all
sequences that came before: on a path that is known an operation costs one look-up, and no graph is
built. What is asked for finds its plan by the place in the tree and the values that are alive.

Values have numbers. A key is (operation, operands...), in which whole numbers are values and
anything else stands for itself; `number_key` makes of a Python number what equals no other one.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hal.tile.node import Node, Type
from stack import ops as g
from stack.recorder.window import Window
from stack.runtime.plan import Bound, Plan

Operation = Callable[..., Node]
Key = tuple[Any, ...]

LONGEST = 256
"""How many operations a tape has before they are computed unasked; it holds what they read."""
POINTS = 50_000
"""How many places the tree has before it is begun anew: about 20 MiB."""
PLANS = 256
"""How many plans are kept for places in the tree."""


class Scalar(NamedTuple):
    """A Python number among operands; zeros and NaN, which Python compares in ways of its own, by
    their text."""

    kind: type
    value: float
    text: str = ""


def number_key(value: float) -> Scalar:
    """The number as an operand."""
    odd = value == 0 or value != value
    return Scalar(type(value), 0, str(float(value))) if odd else Scalar(type(value), value)


class Named(NamedTuple):
    """An operation, the last operands of which have names."""

    operation: Operation
    names: tuple[str, ...]

    def __call__(self, *operands: Any) -> Any:
        split = len(operands) - len(self.names)
        named = dict(zip(self.names, operands[split:], strict=True))
        return self.operation(*operands[:split], **named)


@dataclass(eq=False, slots=True)
class Point:
    """A place in the tree; `type` is that of the value made on the way there, None where a path
    cannot be recorded any further."""

    type: Type | None
    next: dict[Key, Point] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class Known:
    """A plan, which its engine holds, with its last inputs, and which of a tape's inputs are its
    first ones."""

    plan: weakref.ref[Plan]
    numbers: tuple[Any, ...] | None
    order: tuple[int, ...]


class Tree:
    """All paths of a device's tapes in a thread, and the plans for what was alive at their ends."""

    def __init__(self) -> None:
        self.root = Point(None)
        self.points = 0
        self._plans: OrderedDict[tuple[Point, tuple[int, ...]], Known] = OrderedDict()

    def begin(self) -> Tape:
        """A tape on which nothing is."""
        if self.points > POINTS:
            self.root, self.points = Point(None), 0
            self._plans.clear()
        return Tape(self)

    def plan(
        self, at: Point, alive: tuple[int, ...], make: Callable[[], tuple[Any, tuple[int, ...]]]
    ) -> tuple[Any, tuple[int, ...]]:
        """What computes these values at that place, and which inputs it takes, as `make` gave
        it."""
        key = at, alive
        known = self._plans.get(key)
        plan = None if known is None else known.plan()
        if known is not None and plan is not None:
            self._plans.move_to_end(key)
            return (plan if known.numbers is None else Bound(plan, known.numbers)), known.order
        found, order = make()
        bound = isinstance(found, Bound)
        held = weakref.ref(found.plan if bound else found)
        self._plans[key] = Known(held, tuple(found.numbers) if bound else None, order)
        if len(self._plans) > PLANS:
            self._plans.popitem(last=False)
        return found, order


class Tape:
    """One sequence. `types` has those of its values by number, `leaves` the numbers of those that
    it was given; `inputs` are the ones among them that have arrays, in order."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.at = tree.root
        self.keys: list[Key] = []
        self.types: list[Type] = []
        self.leaves: dict[Node, int] = {}
        self.inputs: list[Node] = []

    def give(self, leaf: Node, constant: bool) -> int:
        """The number of a value from outside: a leaf that has an array, or a constant, which is a
        part of the path."""
        n = self.leaves.get(leaf)
        if n is not None:
            return n
        self._go((None, leaf if constant else leaf.type), leaf.type)
        n = self.leaves[leaf] = len(self.types) - 1
        if not constant:
            self.inputs.append(leaf)
        return n

    def append(self, key: Key) -> int:
        """The number of an operation's result; -1 where it cannot be recorded. Raises what the
        operation raises for operands that do not fit."""
        point = self.at.next.get(key)
        if point is None:
            return self._explore(key)
        if point.type is None:
            return -1
        self.at = point
        self.keys.append(key)
        self.types.append(point.type)
        return len(self.types) - 1

    def _explore(self, key: Key) -> int:
        operation, *operands = key
        stand = {n: _stand_in(n, self.types[n]) for n in operands if type(n) is int}
        made = operation(*[_operand(o, stand) for o in operands])
        moves = operation is read or operation is write
        if not (moves or (isinstance(made, Node) and made.op not in _NOT_COMPUTED)):
            self._grow(key, None)
            return -1
        self._go(key, made.type)
        return len(self.types) - 1

    def _grow(self, key: Key, type: Type | None) -> Point:
        found = self.at.next[key] = Point(type)
        self.tree.points += 1
        return found

    def _go(self, key: Key, type: Type) -> None:
        self.at = self.at.next.get(key) or self._grow(key, type)
        self.keys.append(key)
        self.types.append(type)

    def nodes(self, wanted: Iterable[int]) -> dict[int, Node]:
        """The values of these numbers, and of all that they are computed from, as nodes."""
        needed, stack = set[int](), list(wanted)
        while stack:
            n = stack.pop()
            if n not in needed:
                needed.add(n)
                stack += [o for o in self.keys[n][1:] if type(o) is int]
        found = {n: leaf for leaf, n in self.leaves.items()}
        for n in sorted(needed):
            if n not in found:
                operation, *operands = self.keys[n]
                found[n] = operation(*[_operand(o, found) for o in operands])
        return found


_NOT_COMPUTED = frozenset({"input", "const", "arange", "reshape", "permute", "expand", "slice"})
"""What is no operation's result: an operand itself, a constant, a window."""


def _stand_in(n: int, type: Type) -> Node:
    return g.input((1 << 44) + n, type)  # apart from the slots of requests and of leaves


def _operand(o: Any, nodes: dict[int, Node]) -> Any:
    kind = type(o)
    if kind is int:
        return nodes[o]
    if kind is Scalar:
        return o.kind(float(o.text)) if o.text else o.value
    return o


def read(whole: Node, window: Window) -> Node:
    """What a window shows, as an operation."""
    return window.read(whole)


def write(whole: Node, part: Node, window: Window) -> Node:
    """The whole with a part in the place of what a window shows, as an operation."""
    return window.write(whole, part)
