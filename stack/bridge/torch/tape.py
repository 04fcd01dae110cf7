"""What was asked of a device and not computed yet, as a path that is found again.

A tape is the sequence of operations since something was last computed. It is kept as a place in a
tree of all sequences that came before: on a path that is known, an operation costs one look-up and
no graph is built. Numbers of Python are no part of the path: where they differ from those that a
plan was compiled for, they become data (`GraphRequest.facts`).
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from hal.tile.size import Facts
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.framework.expr import index as expr_index
from stack.recorder.strided import places, strided
from stack.recorder.window import Window, contiguous_strides
from stack.runtime.array import Array
from stack.runtime.engine import Engine
from stack.runtime.families import Dynamic

PENDING = 20_000
"""How many operations are recorded before they are computed unasked."""
POINTS = 100_000
"""How many places the tree of paths has before it is begun anew."""

DTYPES = {
    torch.bool: DType.BOOL,
    torch.uint8: DType.U8,
    torch.uint16: DType.U16,
    torch.uint32: DType.U32,
    torch.uint64: DType.U64,
    torch.int8: DType.I8,
    torch.int16: DType.I16,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.float32: DType.F32,
    torch.float64: DType.F64,
}
TORCH = {d: t for t, d in DTYPES.items()}

lock = threading.RLock()
"""Of all tapes: autograd records from threads of its own."""


@dataclass(eq=False, slots=True)
class Storage:
    """The memory behind tensors: `size` elements of one type, in an array or still to be computed.

    `value` is its number on the tape since `generation`. Without an array and a number it is
    undefined, as `torch.empty` leaves it.
    """

    dtype: DType
    size: int
    array: Array | None = None
    value: int = -1
    generation: int = -1
    slots: int = 0
    """How many of torch's storages are this one. Without any it is gone."""


class Operand(NamedTuple):
    """What a tensor shows of a storage: of value `number` on the tape."""

    number: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType


class Empty(NamedTuple):
    """A tensor without elements."""

    shape: tuple[int, ...]
    dtype: DType


class Flag(NamedTuple):
    """A bool or an integer in a key, which Python finds equal to each other."""

    value: bool


class Scalar(NamedTuple):
    """A Python number that is no part of the key."""

    number: int


class Result(NamedTuple):
    """The type of a new tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: DType


Lower = Callable[..., Any]


@dataclass(frozen=True, eq=False, slots=True)
class Row:
    """An operator: its name, and what it computes of nodes. `pointwise` results have the strides of
    the operands."""

    name: str
    lower: Lower
    pointwise: bool = False


class Entry(NamedTuple):
    """One operation on a tape; what it gives are the values from `first` on. `targets` are written:
    each takes the value behind the new ones in order."""

    row: Row | None
    args: tuple[Any, ...]
    names: tuple[str, ...]
    targets: tuple[Operand, ...]
    first: int
    scalars: int
    """How many Python numbers came before."""


@dataclass(eq=False, slots=True)
class Known:
    """The plan for a place and what lives there; `scalars` are those it was compiled for."""

    scalars: tuple[float, ...]
    plan: Any
    dynamic: Dynamic | None = None
    names: dict[str, int] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Point:
    """A place on the tree of paths."""

    next: dict[Any, Point] = field(default_factory=dict)
    results: tuple[Result, ...] = ()
    plans: dict[Any, Known] = field(default_factory=dict)


class Tape:
    """What is pending on one device. Used under `lock`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.counts: Counter[str] = Counter()
        """How many operations were recorded, nodes lowered for how many of them, plans made
        ("compiled"), made for other numbers ("generalised"), and run."""
        self._root, self._points = Point(), 0
        self._storages: dict[int, Storage] = {}
        self._generation = 0
        self._begin()

    def _begin(self) -> None:
        self._generation += 1
        self._at = self._root
        self._entries: list[Entry] = []
        self._inputs: list[Array] = []
        self._at_input: dict[int, int] = {}
        self._holders: dict[int, Storage] = {}
        self._scalars: list[float] = []
        self._count = 0
        self._nodes: dict[int, Node] = {}
        self._lowered = 0

    # Storages

    def hold(self, slot: int, storage: Storage) -> None:
        """A slot's storage."""
        self._storages[slot] = storage
        storage.slots += 1

    def storage(self, slot: int) -> Storage:
        return self._storages[slot]

    def release(self, slot: int) -> None:
        """Nothing of torch refers to the slot's storage any more."""
        storage = self._storages.pop(slot, None)
        if storage is not None:
            storage.slots -= 1

    def number(self, storage: Storage) -> int:
        """The number of a storage's value on the tape."""
        if storage.generation == self._generation:
            return storage.value
        array = storage.array
        key = ("input" if array is not None else "undefined", storage.size, storage.dtype)
        self._go(key)
        n = self._count
        self._count += 1
        if array is not None:
            self._at_input[n] = len(self._inputs)
            self._inputs.append(array)
        self._entries.append(Entry(None, key, (), (), n, 0))
        storage.value, storage.generation = n, self._generation
        return n

    def _go(self, key: Any) -> Point | None:
        """Follow the tree, which grows where nobody was yet. None: so it did."""
        found = self._at.next.get(key)
        known = found is not None
        if found is None:
            found = self._at.next[key] = Point()
            self._points += 1
        self._at = found
        return found if known else None

    # Recording

    def record(
        self,
        row: Row,
        args: tuple[Any, ...],
        names: tuple[str, ...],
        scalars: Sequence[float],
        targets: tuple[Operand, ...] = (),
        written: Sequence[Storage] = (),
    ) -> tuple[tuple[Result, ...], int]:
        """Remember an operation. Gives the types of its new values, the first of which has the
        number that comes second; `targets`, of the storages `written`, get what it computes
        instead. Raises what the row raises for operands that do not fit."""
        self.counts["operations"] += 1
        key = (row, args, names, targets)
        at = self._at.next.get(key)
        entry = Entry(row, args, names, targets, self._count, len(self._scalars))
        self._scalars += scalars
        self._entries.append(entry)
        if at is None:
            try:
                results = self._explore(entry)
            except BaseException:
                self._entries.pop()
                del self._scalars[entry.scalars :]
                raise
            self._go(key)
            self._at.results = results
            at = self._at
        self._at = at
        first = self._count
        if targets:
            for storage in written:
                storage.value, storage.generation = self._count, self._generation
                self._holders[self._count] = storage
                self._count += 1
            return (), first
        self._count += len(at.results)
        return at.results, first

    def assign(self, number: int, storage: Storage) -> None:
        """The storage has that value."""
        storage.value, storage.generation = number, self._generation
        self._holders[number] = storage

    def is_pending(self, storage: Storage) -> bool:
        """Whether the storage's value is recorded, and not computed yet."""
        return storage.generation == self._generation and storage.value in self._holders

    def full(self) -> bool:
        """Whether what is recorded should be computed now."""
        return len(self._entries) >= PENDING

    def _explore(self, entry: Entry) -> tuple[Result, ...]:
        for earlier in self._entries[self._lowered : -1]:
            self._lower(earlier, self._nodes, self._scalars)
            self._lowered += 1
        results = self._lower(entry, self._nodes, self._scalars)
        self._lowered += 1
        return results

    def _lower(
        self, entry: Entry, nodes: dict[int, Node], scalars: Sequence[float]
    ) -> tuple[Result, ...]:
        """Give the values of an operation their nodes."""
        row, n = entry.row, entry.first
        if row is None:
            kind, size, dtype = entry.args
            wanted = Type((size,), dtype)
            slot = self._at_input.get(n, 0)
            nodes[n] = g.input(slot, wanted) if kind == "input" else g.full((size,), 0, dtype)
            return ()
        self.counts["lowered"] += 1
        values = [lowered(a, nodes, scalars, entry.scalars) for a in entry.args]
        split = len(values) - len(entry.names)
        named = dict(zip(entry.names, values[split:], strict=True))
        made = row.lower(*values[:split], **named)
        parts = list(flat(made))
        if entry.targets:
            for target, part in zip(entry.targets, parts, strict=False):
                nodes[n] = _written(nodes, target, part)
                # A second target in the same storage sees the first one's value.
                nodes[target.number] = nodes[n] if len(entry.targets) > 1 else nodes[target.number]
                n += 1
            return ()
        results = []
        for part in parts:
            strides = _like(entry.args, part.shape) if row.pointwise else None
            nodes[n] = _stored(part, strides)
            results.append(Result(part.shape, strides, part.dtype))
            n += 1
        return tuple(results)

    # Computing

    def flush(self) -> None:
        """Begin to compute all that somebody can still ask for; wait for nothing."""
        live = [
            (n, s)
            for n, s in self._holders.items()
            if s.slots and s.value == n and s.generation == self._generation
        ]
        if not live:
            self._forget()
            return
        arrays = {id(a): i for i, a in enumerate(self._inputs)}
        updates = tuple(
            (o, arrays[id(s.array)])
            for o, (_, s) in enumerate(live)
            if s.array is not None and id(s.array) in arrays
        )
        numbers = tuple([n for n, _ in live])
        plan = self._plan(numbers, updates)
        inputs = list(self._inputs)
        self.counts["runs"] += 1
        outputs = plan.run(inputs)
        for (_, storage), array in zip(live, outputs, strict=True):
            storage.array = array
        self._forget()

    def _forget(self) -> None:
        if self._points > POINTS:
            self._root, self._points = Point(), 0
        self._begin()

    def _plan(self, numbers: tuple[int, ...], updates: tuple[tuple[int, int], ...]) -> Any:
        key = (numbers, updates)
        scalars = tuple(self._scalars)
        known = self._at.plans.get(key)
        if known is not None and _same(known.scalars, scalars):
            return known.plan
        if known is not None and known.dynamic is not None:
            values = {name: scalars[i] for name, i in known.names.items()}
            fixed = set(known.names.values())
            rest = [i for i in range(len(scalars)) if i not in fixed]
            if all(repr(scalars[i]) == repr(known.scalars[i]) for i in rest):
                found = self.engine.at(known.dynamic, values)
                if found is not None:
                    return found
        if known is not None:
            plan = self._generalise(known, numbers, updates, scalars)
            if plan is not None:
                return plan
        self.counts["compiled"] += 1
        for entry in self._entries[self._lowered :]:
            self._lower(entry, self._nodes, self._scalars)
        self._lowered = len(self._entries)
        request = self._request(self._nodes, numbers, updates)
        plan = self.engine.plan(request, keep=False)
        self._at.plans[key] = Known(scalars, plan)
        return plan

    def _generalise(
        self,
        known: Known,
        numbers: tuple[int, ...],
        updates: tuple[tuple[int, int], ...],
        scalars: tuple[float, ...],
    ) -> Any:
        """A plan for which the numbers that differ are data; None where they cannot be."""
        facts = Facts()
        pairs = zip(known.scalars, scalars, strict=True)
        names = dict(known.names)
        differ = [i for i, (a, b) in enumerate(pairs) if repr(a) != repr(b)]
        taken = set(names.values())
        for i in differ:
            if i not in taken:
                names[f"n{len(names)}"] = i
        given: list[float] = list(scalars)
        for name, i in names.items():
            given[i] = facts.number(name, scalars[i])
        nodes: dict[int, Node] = {}
        for entry in self._entries:
            self._lower(entry, nodes, given)
        request = self._request(nodes, numbers, updates, facts)
        dynamic = self.engine.dynamic(request, "numbers that differ from an earlier run's")
        if dynamic is None:
            return None
        values = {name: scalars[i] for name, i in names.items()}
        plan = self.engine.at(dynamic, values)
        if plan is None:
            return None
        self.counts["generalised"] += 1
        self._at.plans[numbers, updates] = Known(scalars, plan, dynamic, names)
        return plan

    def _request(
        self,
        nodes: dict[int, Node],
        numbers: tuple[int, ...],
        updates: tuple[tuple[int, int], ...],
        facts: Facts | None = None,
    ) -> GraphRequest:
        inputs = tuple([g.input(i, a.type) for i, a in enumerate(self._inputs)])
        return GraphRequest(tuple([nodes[n] for n in numbers]), inputs, updates, facts)


def _same(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return (a == b and 0.0 not in a and all(x == x for x in a)) or list(map(repr, a)) == list(
        map(repr, b)
    )


def lowered(arg: Any, nodes: dict[int, Node], scalars: Sequence[float], before: int) -> Any:
    """An argument of a key as one of a row: nodes in the place of tensors."""
    kind = type(arg)
    if kind is Operand:
        return _read(nodes, arg)
    if kind is Empty:
        return g.full(arg.shape, 0, arg.dtype)
    if kind is Flag:
        return arg.value
    if kind is Scalar:
        return scalars[before + arg.number]
    if kind is tuple:
        return [lowered(a, nodes, scalars, before) for a in arg]
    return arg


def flat(made: Any) -> itertools.chain[Node]:
    """The nodes that a row gives, in order."""
    if isinstance(made, Node):
        return itertools.chain((made,))
    return itertools.chain.from_iterable(flat(m) for m in made if m is not None)


def _window(size: int, x: Operand) -> Window | None:
    return strided(size, x.shape, x.strides, x.offset)


def _read(nodes: dict[int, Node], x: Operand) -> Node:
    whole = nodes[x.number]
    if whole.dtype is not x.dtype:
        whole = g.bitcast(whole, x.dtype)
    size = whole.shape[0]
    if not x.offset and x.strides == contiguous_strides(x.shape) and _count(x.shape) == size:
        return g.reshape(whole, x.shape)
    window = _window(size, x)
    if window is not None:
        return window.read(whole)
    return g.reshape(g.gather(whole, places(x.shape, x.strides, x.offset), 0), x.shape)


def _written(nodes: dict[int, Node], x: Operand, part: Node) -> Node:
    whole = nodes[x.number]
    stored = whole.dtype
    part = g.broadcast(g.cast(part, x.dtype), x.shape)
    if stored is not x.dtype:
        whole = g.bitcast(whole, x.dtype)
    size = whole.shape[0]
    if x.strides == contiguous_strides(x.shape) and not x.offset and _count(x.shape) == size:
        whole = g.reshape(part, (size,))
    else:
        window = _window(size, x)
        if window is None:
            at = places(x.shape, x.strides, x.offset)
            whole = expr_index.put(whole, at, g.reshape(part, at.shape))
        else:
            whole = window.write(whole, part)
    return whole if stored is x.dtype else g.bitcast(whole, stored)


def _stored(part: Node, strides: tuple[int, ...] | None) -> Node:
    """A result as a row of elements in the order of memory."""
    if strides is not None:
        part = g.permute(part, sorted(range(len(strides)), key=lambda a: (-strides[a], a)))
    return g.reshape(part, (part.type.size,))


def _count(shape: tuple[int, ...]) -> int:
    n = 1
    for d in shape:
        n *= d
    return n


def _like(args: Sequence[Any], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides of a result of that shape: those of the first operand of the same shape, without
    gaps. None: row-major."""
    for x in args:
        if type(x) is Operand and x.shape == shape:
            if x.strides == contiguous_strides(shape):
                return None
            if any(s == 0 and n > 1 for n, s in zip(shape, x.strides, strict=True)):
                continue
            order = sorted(range(len(shape)), key=lambda a: (-x.strides[a], a))
            dense, step = [0] * len(shape), 1
            for a in reversed(order):
                dense[a] = step
                step *= max(shape[a], 1)
            found = tuple(dense)
            return None if found == contiguous_strides(shape) else found
    return None
