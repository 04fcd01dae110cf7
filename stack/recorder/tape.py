"""A tape: operations that were asked for and not computed yet, as a path that is found again.

A tape is the sequence of operations since it began. It is kept as a place in a tree of all
sequences that came before: on a path that is known an operation costs one look-up, and no graph is
built. What is asked for finds its plan by the place in the tree and the values that are alive.

Values have numbers. A key is (operation, operands...), in which whole numbers are values and
anything else stands for itself; `number_key` makes of a Python number what equals no other one.
An operation may give several values: its own number then stands for all of them together, and the
numbers after it for each.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Sequence
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
LONGEST_TRACKED = 4096
"""How many operations it has where gradients flow through some of them: a training step of some
hundred layers."""
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


class Result(NamedTuple):
    """One of several results."""

    place: int

    def __call__(self, results: Sequence[Any]) -> Any:
        return results[self.place]


Types = tuple[Type | None, ...]
"""Of several results; None for one that is not there."""

Explore = Callable[[Callable[[], Any]], tuple[Any, tuple[Any, ...]]]
"""Runs an operation that is new to its place: what it gives, and what is to be checked whenever it
comes there again."""


@dataclass(eq=False, slots=True)
class Point:
    """A place in the tree; `type` is that of the value made on the way there, None where a path
    cannot be recorded any further. `checks` are those of the operation that led there."""

    type: Type | Types | None
    checks: tuple[Any, ...] = ()
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

    def __init__(self, explore: Explore = lambda run: (run(), ())) -> None:
        self.explore = explore
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
        self.types: list[Any] = []
        self.leaves: dict[Node, int] = {}
        self.inputs: list[Node] = []

    def give(self, leaf: Node, constant: bool) -> int:
        """The number of a value from outside: a leaf that has an array, or a constant, which is a
        part of the path."""
        n = self.leaves.get(leaf)
        if n is not None:
            return n
        n = self.leaves[leaf] = self.add((None, leaf if constant else leaf.type), leaf.type)
        if not constant:
            self.inputs.append(leaf)
        return n

    def know(self, n: int, leaf: Node) -> None:
        """From now on the value of this number is that of a leaf with an array."""
        self.add((None, n), leaf.type)
        self.inputs.append(leaf)

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

    def append_several(self, key: Key) -> int:
        """The number before those of an operation's several results; `types` has there their types
        together. Raises what the operation raises."""
        point = self.at.next.get(key)
        if point is None:
            operation, *operands = key
            nodes = self.nodes([n for n in operands if type(n) is int], stand_in)
            made = operation(*[_operand(o, nodes) for o in operands])
            point = self._grow(key, tuple([None if m is None else m.type for m in made]))
        self.at = point
        first = len(self.types)
        assert type(point.type) is tuple, "the operation gives several"
        self.keys.append(key)
        self.keys += [(Result(i), first) for i in range(len(point.type))]
        self.types.append(point.type)
        self.types += point.type
        return first

    def add(self, key: Key, type: Type) -> int:
        """The number of what is known to be of this type."""
        self.at = self.at.next.get(key) or self._grow(key, type)
        self.keys.append(key)
        self.types.append(type)
        return len(self.types) - 1

    def adopt(self, other: Tape, wanted: int, known: dict[int, int]) -> int:
        """Append what a value of another tape of the tree is computed from, but for what is
        `known`: numbers there to numbers here, to which this adds. -1 where it cannot be recorded
        any more."""
        given = {n: leaf for leaf, n in other.leaves.items()}
        for n in sorted(other.needed([wanted], known)):
            operation, *operands = other.keys[n]
            if n in known:
                continue
            if n in given:
                known[n] = self.give(given[n], given[n].op == "const")
            elif type(operation) is Result:
                known[n] = known[operands[0]] + 1 + operation.place
            else:
                key = (operation, *[known[o] if type(o) is int else o for o in operands])
                several = type(other.types[n]) is tuple
                known[n] = self.append_several(key) if several else self._again(key, other.types[n])
        return known[wanted]

    def _again(self, key: Key, type: Type) -> int:
        point = self.at.next.get(key)
        return self.add(key, type) if point is None or point.type is not None else -1

    def _explore(self, key: Key) -> int:
        operation, *operands = key

        def run() -> Any:
            numbers = [n for n in operands if type(n) is int]
            # The values of indices follow from leaves, and are looked at.
            indices = [n for n in numbers if self.types[n].dtype.is_int]
            nodes = {n: stand_in(n, self.types[n]) for n in numbers}
            found = self.nodes(indices, stand_in) if indices else {}
            nodes |= {n: found[n] for n in indices}
            return operation(*[_operand(o, nodes) for o in operands])

        made, checks = self.tree.explore(run)
        moves = operation in _MOVES
        if not (moves or (isinstance(made, Node) and _is_computed(made))):
            self._grow(key, None)
            return -1
        n = self.add(key, made.type)
        self.at.checks = checks
        return n

    def _grow(self, key: Key, type: Type | Types | None) -> Point:
        found = self.at.next[key] = Point(type)
        self.tree.points += 1
        return found

    def needed(self, wanted: Iterable[int], known: Container[int] = ()) -> set[int]:
        """The numbers of what these values are computed from, and their own; none below those that
        are known, or given."""
        found, stack = set[int](), list(wanted)
        given = set(self.leaves.values())
        while stack:
            n = stack.pop()
            if n not in found:
                found.add(n)
                if n not in known and n not in given:
                    stack += [o for o in self.keys[n][1:] if type(o) is int]
        return found

    def nodes(
        self, wanted: Iterable[int], stand_in: Callable[[int, Type], Node] | None = None
    ) -> dict[int, Node]:
        """The values of these numbers, and of all that they are computed from, as nodes. Others may
        stand in for what has arrays."""
        found = {n: leaf for leaf, n in self.leaves.items()}
        if stand_in is not None:
            has_array = set(self.inputs)
            for n, leaf in found.items():
                found[n] = stand_in(n, leaf.type) if leaf in has_array else leaf
        for n in sorted(self.needed(wanted)):
            if n not in found:
                operation, *operands = self.keys[n]
                found[n] = operation(*[_operand(o, found) for o in operands])
        return found


def _is_computed(made: Node) -> bool:
    """Whether it is an operation's result: no operand itself, no constant, no window on such."""
    while made.op in ("reshape", "permute", "expand", "slice"):
        made = made.srcs[0]
    return made.op not in ("input", "const", "arange")


_APART = 1 << 44  # from the slots of requests and of leaves


def stand_in(n: int, type: Type) -> Node:
    """A leaf in the place of the value of a number."""
    return g.input(_APART + n, type)


def number_of(stand_in: Node) -> int | None:
    """The number that a leaf stands in for; None for other nodes."""
    slot = stand_in["slot"] if stand_in.op == "input" else 0
    return slot - _APART if slot >= _APART else None


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


def same(whole: Node) -> Node:
    """A value once more, as an operation."""
    return whole


_MOVES = frozenset({read, write, same})
"""The operations whose results are recorded whatever they are."""
