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
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from hal.core.facts import dataclass
from hal.tile.node import Node, Type, substitute
from stack import ops as g
from stack.recorder.kin import (
    RULES,
    Inference,
    Kin,
    Row,
    Scalar,
    Seen,
    apart,
    axes,
    one,
    values_of,
)
from stack.recorder.window import Window
from stack.runtime.plan import Bound, Plan

Operation = Callable[..., Node]
Key = tuple[Any, ...]

LONGEST = 64
"""How many operations a tape has before they are computed unasked: a device computes them while the
next ones are recorded. A tape holds what its operations read."""
LONGEST_TRACKED = 4096
"""How many operations it has where gradients flow through some of them: a training step of some
hundred layers."""
POINTS = 50_000
"""How many places the tree has before it is begun anew: about 20 MiB."""
PLANS = 256
"""How many plans are kept for places in the tree."""
HELD = 16
"""The plans that a place of kin holds, for the rows that came last."""


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


class Listed(NamedTuple):
    """An operation that takes lists: of each operand how many values it is, None for one that is
    no list."""

    operation: Operation
    lengths: tuple[int | None, ...]

    def __call__(self, *operands: Any, **named: Any) -> Any:
        rest = iter(operands)
        return self.operation(
            *[next(rest) if n is None else [next(rest) for _ in range(n)] for n in self.lengths],
            **named,
        )


class Placed(NamedTuple):
    """An operation at a place of its first operand: of each axis whether it is taken whole (":"),
    is new ("+"), stands for all that are not named ("...") or is one of the next operands."""

    operation: Operation
    place: tuple[str, ...]

    def __call__(self, x: Any, *operands: Any, **named: Any) -> Any:
        rest = iter(operands)
        place = tuple([_AXES[p] if p in _AXES else next(rest) for p in self.place])
        return self.operation(x, place, *rest, **named)


_AXES: dict[str, Any] = {":": slice(None), "+": None, "...": ...}
BY_OPERAND = "["
"""Of an axis that an operand says the places on."""


class Formed(NamedTuple):
    """An operation of numbers alone: a node in which leaves stand for them."""

    form: Node
    slots: tuple[Node, ...]

    def __call__(self, *numbers: Any) -> Node:
        given = zip(self.slots, numbers, strict=True)
        return substitute((self.form,), {x: g.const(n, x.dtype) for x, n in given})[0]


class Result(NamedTuple):
    """One of several results."""

    place: int

    def __call__(self, results: Sequence[Any]) -> Any:
        return results[self.place]


Types = tuple[Type | None, ...]
"""Of several results; None for one that is not there."""

Make = Callable[[], tuple[Any, tuple[int, ...]]]
"""Makes a plan, and tells which inputs it takes."""

Explore = Callable[[Callable[[], Any]], tuple[Any, tuple[Any, ...]]]
"""Runs an operation that is new to its place: what it gives, and what is to be checked whenever it
comes there again."""


@dataclass(eq=False, slots=True)
class Point:
    """A place in the tree; `type` is that of the value made on the way there, None where a path
    cannot be recorded any further. `checks` are those of the operation that led there. `kinds` are
    the skeletons of the keys that lead on from here."""

    type: Type | Types | None
    checks: tuple[Any, ...] = ()
    next: dict[Key, Point] = field(default_factory=dict)
    kinds: set[Key] = field(default_factory=set)
    where: str = ""
    """Where the operation was called when it came here first."""


@dataclass(frozen=True, eq=False, slots=True)
class Known:
    """A plan, which its engine holds, with its last inputs, and which of a tape's inputs are its
    first ones."""

    plan: weakref.ref[Plan]
    numbers: tuple[Any, ...] | None
    order: tuple[int, ...]


Alive = tuple[int | tuple[int, int], ...]
"""The numbers of the values that are asked for; one in a pair takes the place of the value of that
other number."""

General = Callable[[Row], tuple[Any, tuple[int, ...]] | None]
"""What serves a place of kin for many rows: gives the plan for one, with which inputs it takes;
None where it is not for that."""

Generalise = Callable[[Sequence[Row], list[bool]], General]
"""Makes what serves many rows like these, the last of which is the tape's, with which of their
values are axes. Raises what keeps that from being made."""


@dataclass(eq=False, slots=True)
class KinPlans:
    """The plans of a place of kin, and the rows for which some were made. The last plans are held:
    others of the place hold none."""

    rows: deque[Row] = field(default_factory=lambda: deque(maxlen=RULES))
    generals: list[General] = field(default_factory=list)
    held: deque[Any] = field(default_factory=lambda: deque(maxlen=HELD))
    fixed: str = ""
    """Why no further general plan can be made; empty: one can."""


class Tree:
    """All paths of a device's tapes in a thread, and the plans for what was alive at their ends.
    `note` is told what is not known for all sizes and numbers, and why; `where` tells which line of
    the user's program is under way."""

    def __init__(
        self,
        explore: Explore = lambda run: (run(), ()),
        note: Callable[[str, str], None] = lambda what, why: None,
        where: Callable[[], str] = lambda: "",
    ) -> None:
        self.explore, self.note, self.where = explore, note, where
        self.root = Point(None)
        self.points = 0
        self._plans: OrderedDict[tuple[Any, ...], Known] = OrderedDict()
        self.kin = Kin()
        self._inferences: dict[Key, Inference] = {}
        self.several: set[Operation] = set()
        """The operations that give several results."""
        self._general: OrderedDict[tuple[Kin, Alive], KinPlans] = OrderedDict()

    def begin(self) -> Tape:
        """A tape on which nothing is."""
        if self.points > POINTS:
            self.root, self.points, self.kin = Point(None), 0, Kin()
            self._plans.clear()
            self._general.clear()
            self._inferences.clear()
        return Tape(self)

    def inference(self, skeleton: Key, place: Kin | None) -> Inference:
        """What is known of an operation's result types, whichever values its operands are; of one
        with several results, which depend on how its operands were computed, at its place."""
        first: dict[int, int] = {}  # what is given twice may be given back
        key = place, *[first.setdefault(o, len(first)) if type(o) is int else o for o in skeleton]
        found = self._inferences.get(key)
        if found is None:
            found = self._inferences[key] = Inference()
            self.points += 1
        return found

    def plans_of(self, kin: Kin, alive: Alive) -> KinPlans:
        """Those of a place of kin, where these values are alive."""
        found = self._general.setdefault((kin, alive), KinPlans())
        self._general.move_to_end((kin, alive))
        if len(self._general) > PLANS:
            self._general.popitem(last=False)
        return found

    def plan(
        self,
        at: Point,
        alive: Alive,
        make: Make,
        kin: Callable[[], tuple[Kin, Row]],
    ) -> tuple[Any, tuple[int, ...]]:
        """What computes these values at that place, and which inputs it takes, as `make` gave it.
        `kin` tells the place among kin, where the plan is new."""

        def making() -> tuple[Any, tuple[int, ...]]:
            made = make()
            place, row = kin()
            self.plans_of(place, alive).rows.append(row)
            return made

        return self.known((at, alive), making)

    def known(self, key: tuple[Any, ...], make: Make) -> tuple[Any, tuple[int, ...]]:
        """What `make` made for this key."""
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

    __slots__ = ("_checks", "_row", "at", "inputs", "keys", "kin", "leaves", "tree", "types")

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.at = tree.root
        self.keys: list[Key] = []
        self.types: list[Any] = []
        self.leaves: dict[Node, int] = {}
        self.inputs: list[Node] = []
        self.kin: Kin | None = None
        """The place among kin, once the path is one that was not seen, and kin of it were."""
        self._row: list[Any] = []
        self._checks: tuple[Any, ...] = ()

    @property
    def checks(self) -> tuple[Any, ...]:
        """Those of the last operation."""
        return self.at.checks if self.kin is None else self._checks

    def plan(self, alive: Alive, make: Make, generalise: Generalise) -> tuple[Any, tuple[int, ...]]:
        """What computes these values, and which inputs it takes."""
        tree = self.tree
        if self.kin is None:
            return tree.plan(self.at, alive, make, self._among_kin)
        plans, row = tree.plans_of(self.kin, alive), tuple(self._row)
        for general in reversed(plans.generals):
            found = general(row)
            if found is not None:
                break
        else:
            found = self._generalised(plans, row, generalise)
            if found is None:
                found = tree.known((self.kin, alive, row), make)
            if row not in plans.rows:
                plans.rows.append(row)
        plans.held.append(found[0])
        return found

    def _generalised(
        self, plans: KinPlans, row: Row, generalise: Generalise
    ) -> tuple[Any, tuple[int, ...]] | None:
        if plans.fixed or not plans.rows or row in plans.rows:
            return None
        dims = [is_axis for key in self.keys for is_axis in axes(key)]
        try:
            general = generalise([*plans.rows, row], dims)
        except Exception as error:  # noqa: BLE001 - an operation may not take what stands for a number
            plans.fixed = f"{type(error).__name__}: {error}"
        else:
            plans.generals.append(general)
            if len(plans.generals) >= RULES:
                plans.fixed = f"the conditions of {RULES} plans leave others out"
        if plans.fixed:
            names = " ".join(dict.fromkeys(_name(key[0]) for key in self.keys if key[0]))
            self.tree.note(f"{names}: compiled for each size and number from now on", plans.fixed)
        return None if not plans.generals else plans.generals[-1](row)

    def symbolic(self, row: Iterable[Any]) -> list[Key]:
        """The keys with the values of this row in the place of theirs."""
        rest = iter(row)
        return [values_of(key, rest) for key in self.keys]

    def _among_kin(self) -> tuple[Kin, Row]:
        """The place of this path among its kin, and its row."""
        kin, found, at = self.tree.kin, list[Any](), self.tree.root
        for key in self.keys:
            if type(key[0]) is Result:
                continue
            at = at.next.get(key, at)
            skeleton, row = apart(key)
            kin = self._kin_behind(kin, skeleton, at.where)
            types = self._operand_types(key)
            if types is not None:
                self._inference(skeleton, kin).note(row, types)
            found += row
        return kin, tuple(found)

    def _kin_behind(self, kin: Kin, skeleton: Key, where: str | None = None) -> Kin:
        found = kin.next.get(skeleton)
        if found is None:
            where = self.tree.where() if where is None else where
            found = kin.next[skeleton] = Kin(where=where)
            self.tree.points += 1
        return found

    def _inference(self, skeleton: Key, kin: Kin) -> Inference:
        """What is known of the operation that leads to a place of kin."""
        if kin.inference is None:
            place = kin if skeleton[0] in self.tree.several else None
            kin.inference = self.tree.inference(skeleton, place)
        return kin.inference

    def _operand_types(self, key: Key) -> tuple[Any, ...] | None:
        """The types of an operation's operands; None where these and its row do not decide about
        the result, since values of indices are looked at."""
        found = []
        for o in key[1:]:
            if type(o) is int:
                t = self.types[o]
                if type(t) is tuple or (t.dtype.is_int and self._is_looked_at(o)):
                    return None
                found.append(t)
        return tuple(found)

    def _is_looked_at(self, n: int) -> bool:
        """Whether an index's values come from a constant, or by movements and conversions from what
        the tape was given."""
        first = n
        while True:
            operation, *operands = self.keys[n]
            if operation is None:
                return n != first or isinstance(operands[0], Node)
            numbers = [o for o in operands if type(o) is int]
            if len(numbers) != 1:
                return not numbers
            n = numbers[0]
            if type(self.types[n]) is tuple:
                return True
            if self.types[n].dtype.is_float:
                return False

    def _leave_known(self) -> None:
        """From here on the path is one among kin."""
        self.kin, row = self._among_kin()
        self._row = list(row)

    def _is_kin(self, key: Key) -> bool:
        """Whether a path that was not seen leads on as one that was, but for sizes and numbers."""
        return bool(self.at.kinds) and apart(key)[0] in self.at.kinds

    def _append_among_kin(self, key: Key, explore: Callable[[], Seen]) -> Seen:
        """What an operation gives among kin; the tape is at its place then, if it is recorded."""
        assert self.kin is not None, "the path is one among kin"
        last, types = self.kin.last, self._operand_types(key)
        known: Inference | None = None
        if types is not None and last is not None and last[0] == key:
            _, _, kin, row, _, known = last
        else:
            skeleton, row = apart(key)
            kin = self._kin_behind(self.kin, skeleton)
            if types is not None:
                known = self._inference(skeleton, kin)
        if types is None or known is None:
            seen = explore()
        else:
            seen = self._inferred(known, key, row, types, explore)
        if seen.type is not None:
            if types is not None and not seen.checks and type(seen.type) is Type:
                if last is not None and last[4] == seen.type:  # one object, by which it is known
                    seen = Seen(last[4])
                self.kin.last = key, types, kin, row, seen.type, known
            self.kin, self._checks = kin, seen.checks
            self._row += row
        return seen

    def _inferred(
        self,
        known: Inference,
        key: Key,
        row: Row,
        types: tuple[Any, ...],
        explore: Callable[[], Seen],
    ) -> Seen:
        seen = known.find(row, types)
        if seen is not None:
            return seen
        could = not known.fixed
        seen = known.infer(key, row, types, self._infer)
        if could and known.fixed:
            self.tree.note(f"{_name(key[0])}: its type is inferred for each size", known.fixed)
        return known.remember((row, types), explore() if seen is None else seen)

    def _infer(self, key: Key, types: Sequence[Type]) -> Type | None:
        """The type of an operation's result; None where more than types decides about it."""
        operation, *operands = key
        numbers = [n for n in operands if type(n) is int]
        nodes = {n: stand_in(n, t) for n, t in zip(numbers, types, strict=True)}
        made, checks = self.tree.explore(lambda: operation(*[operand(o, nodes) for o in operands]))
        if checks or not isinstance(made, Node):
            return None
        return made.type if _is_recorded(operation, made) else None

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
        if self.kin is None:
            point = self.at.next.get(key)
            if point is not None:
                if point.type is None:
                    return -1
                self.at = point
                self.keys.append(key)
                self.types.append(point.type)
                return len(self.types) - 1
            if not self._is_kin(key):
                # Append an operation that is new to its place.
                seen = self._explore(key)
                if seen.type is None:
                    self._grow(key, None)
                    return -1
                self.at = self._grow(key, seen.type)
                self.at.checks = seen.checks
                self.keys.append(key)
                self.types.append(seen.type)
                return len(self.types) - 1
            self._leave_known()
        seen = self._append_among_kin(key, lambda: self._explore(key))
        if seen.type is None:
            return -1
        self.keys.append(key)
        self.types.append(seen.type)
        return len(self.types) - 1

    def append_several(self, key: Key) -> int:
        """The number before those of an operation's several results; `types` has there their types
        together. Raises what the operation raises."""
        self.tree.several.add(key[0])
        point = self.at.next.get(key) if self.kin is None else None
        if point is not None and type(point.type) is tuple:
            types = point.type
            self.at = point
        elif self.kin is None and (point is not None or not self._is_kin(key)):
            # New here, or taken for an operation of one result before.
            types = self._explore_several(key).type
            self.at = self._grow(key, types)
        else:
            if self.kin is None:
                self._leave_known()
            types = self._append_among_kin(key, lambda: self._explore_several(key)).type
        first = len(self.types)
        assert type(types) is tuple, "the operation gives several"
        self.keys.append(key)
        self.types.append(types)
        for i, t in enumerate(types):
            self.keys.append((Result(i), first))
            self.types.append(t)
        return first

    def _explore_several(self, key: Key) -> Seen:
        operation, *operands = key
        nodes = self.nodes([n for n in operands if type(n) is int], stand_in)
        made = operation(*[operand(o, nodes) for o in operands])
        return Seen(tuple([None if m is None else m.type for m in made]))

    def add(self, key: Key, type: Type) -> int:
        """The number of what is known to be of this type."""
        point = self.at.next.get(key) if self.kin is None else None
        type = one(type)
        if point is not None:
            self.at = point
        elif self.kin is None and not self._is_kin(key):
            self.at = self._grow(key, type)
        else:
            if self.kin is None:
                self._leave_known()
            assert self.kin is not None, "the path is one among kin"
            skeleton, row = apart(key)
            kin = self._kin_behind(self.kin, skeleton)
            if key[0] is None and key[1] == type:  # else its operands' types are not known here
                self.kin.last = key, (), kin, row, type, None
            self.kin, self._checks = kin, ()
            self._row += row
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
                known[n] = self.give(given[n], isinstance(operands[0], Node))
            elif type(operation) is Result:
                known[n] = known[operands[0]] + 1 + operation.place
            else:
                key = (operation, *[known[o] if type(o) is int else o for o in operands])
                several = type(other.types[n]) is tuple
                known[n] = self.append_several(key) if several else self._again(key, other.types[n])
        return known[wanted]

    def _again(self, key: Key, type: Type) -> int:
        point = self.at.next.get(key) if self.kin is None else None
        return self.add(key, type) if point is None or point.type is not None else -1

    def _explore(self, key: Key) -> Seen:
        operation, *operands = key

        def run() -> Any:
            numbers = [n for n in operands if type(n) is int]
            # The values of indices follow from leaves, and are looked at.
            indices = [n for n in numbers if self.types[n].dtype.is_int]
            nodes = {n: stand_in(n, self.types[n]) for n in numbers}
            found = self.nodes(indices, stand_in) if indices else {}
            nodes |= {n: found[n] for n in indices}
            return operation(*[operand(o, nodes) for o in operands])

        made, checks = self.tree.explore(run)
        if not (isinstance(made, Node) and _is_recorded(operation, made)):
            return Seen(None)
        return Seen(one(made.type), checks)

    def _grow(self, key: Key, type: Type | Types | None) -> Point:
        found = self.at.next[key] = Point(type, where=self.tree.where())
        self.at.kinds.add(apart(key)[0])
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

    def called(self, n: int) -> str:
        """What a value is the result of, and where that was called when this path came first."""
        while type(self.keys[n][0]) is Result:
            n = self.keys[n][1]
        at: Any = self.tree.root if self.kin is None else self.tree.kin
        for key in self.keys[: n + 1]:
            if type(key[0]) is not Result:  # the tree may have begun anew since
                at = at.next.get(key if self.kin is None else apart(key)[0], at)
        place = f", called at {at.where}" if at.where else ""
        return f"{_name(self.keys[n][0])}{place}"

    def nodes(
        self, wanted: Iterable[int], stand_in: Callable[[int, Type], Node] | None = None
    ) -> dict[int, Node]:
        """The values of these numbers, and of all that they are computed from, as nodes. Others may
        stand in for what has arrays."""
        leaves = self.leaves.copy()  # of another thread, they may go on growing
        found = {n: leaf for leaf, n in leaves.items()}
        if stand_in is not None:
            has_array = set(self.inputs)
            for n, leaf in found.items():
                found[n] = stand_in(n, leaf.type) if leaf in has_array else leaf
        for n in sorted(self.needed(wanted)):
            if n not in found:
                operation, *operands = self.keys[n]
                found[n] = operation(*[operand(o, found) for o in operands])
        return found


def _name(operation: Any) -> str:
    """What an operation is called."""
    if isinstance(operation, Formed):
        return operation.form.op
    if (inner := getattr(operation, "operation", None)) is not None:
        return _name(inner)
    return getattr(operation, "__name__", "a result").strip("_")


def _is_recorded(operation: Any, made: Node) -> bool:
    """Whether a result is an operation's own: no operand itself, no constant, no window on one. Of
    some operations it is recorded whatever it is."""
    if operation in _MOVES or type(operation) is Formed:
        return True
    if made.op == "input":
        return False
    while made.op in ("reshape", "permute", "expand", "slice"):
        made = made.srcs[0]
    return made.op not in ("const", "arange")


_APART = 1 << 44  # from the slots of requests and of leaves


def stand_in(n: int, type: Type) -> Node:
    """A leaf in the place of the value of a number."""
    return g.input(_APART + n, type)


def number_of(stand_in: Node) -> int | None:
    """The number that a leaf stands in for; None for other nodes."""
    slot = stand_in["slot"] if stand_in.op == "input" else 0
    return slot - _APART if slot >= _APART else None


def operand(o: Any, nodes: dict[int, Node]) -> Any:
    """An operand of a key as one of its operation."""
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
