"""What was asked of a device and not computed yet, as a path that is found again.

A tape is the sequence of operations since something was last computed. It is kept as a place in a
tree of all sequences that came before: on a path that is known, an operation costs one look-up and
no graph is built. Numbers of Python are no part of the path: where they differ from those that a
plan was compiled for, they become data (`GraphRequest.facts`).
"""

from __future__ import annotations

import itertools
import threading
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, NamedTuple

import torch

from hal.core.dtypes import DType
from hal.core.errors import HalError
from hal.core.facts import dataclass
from hal.tile.node import Node, Type
from hal.tile.size import Facts
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.framework.expr import elementwise as e
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
PLANS = 256
"""How many plans are kept for places in the tree."""

FILLS = ("fill.Scalar", "zero")
"""The rows whose results are one number in all places."""
RECENT = 64
"""How many steps back what has filled a storage is looked for."""

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

    tape: Tape
    dtype: DType
    size: int
    value: int = -1
    generation: int = -1
    array: Array | None = None
    slots: int = 1
    """How many of torch's storages are this one. Without any it is gone."""
    lost: Exception | None = None
    """Why there is no array: computing it failed."""


@dataclass(frozen=True, eq=False, slots=True)
class Operand:
    """What a tensor shows of a storage: of value `number` on the tape. `repeats`: several elements
    are one place in memory. Equal ones of a tape are one object."""

    number: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    repeats: bool


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
    the operands; of others the first ones are laid out with their axes in these `orders`."""

    name: str
    lower: Lower
    pointwise: bool = False
    orders: tuple[tuple[int, ...] | None, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Leaf:
    """A value that the tape is given: a storage's array, or what is undefined. Equal ones of a tape
    are one object."""

    defined: bool
    size: int
    dtype: DType


class Call(NamedTuple):
    """An operation: its arguments, of which the last ones have names. `targets` are written: each
    takes the value behind the new ones in order."""

    row: Row
    args: tuple[Any, ...]
    names: tuple[str, ...]
    targets: tuple[Operand | Empty, ...]


Key = tuple[Row, tuple[Any, ...], tuple[str, ...], tuple[Operand | Empty, ...]]
"""The parts of a `Call`."""


@dataclass(eq=False, slots=True)
class Known:
    """The plan for a place and what lives there; `scalars` are those it was compiled for, of which
    those at `free` are data."""

    scalars: array[float]
    plan: Any
    dynamic: Dynamic | None = None
    free: tuple[int, ...] = ()


@dataclass(eq=False, slots=True)
class Point:
    """A place on the tree of paths, and the step that leads there: what it gives are the values
    from `first` on. Before it were `scalars` Python numbers and `inputs` arrays."""

    parent: Point | None
    step: Leaf | Call | None
    first: int
    scalars: int
    inputs: int
    depth: int
    """How many steps lead there."""
    calls: int
    """How many of them are operations."""
    results: tuple[Result, ...] = ()
    forms: Any = None
    """How tensors for the results are made, where that is known."""
    next: dict[Any, Point] = field(default_factory=dict)


class Tape:
    """What is pending on one device. Used under `lock`."""

    def __init__(self, index: int, engine: Engine) -> None:
        self.index, self.engine = index, engine
        self.counts = Counter(
            operations=0, lowered=0, compiled=0, generalised=0, runs=0
        )  # fmt: skip
        """How many operations were recorded, nodes lowered for how many of them, plans made
        ("compiled"), made for other numbers ("generalised"), and run."""
        self.generation = 0
        self._clear()
        self._begin()

    def _clear(self) -> None:
        self._root, self._points = Point(None, None, 0, 0, 0, 0, 0), 0
        self.operands: dict[tuple[Any, ...], Operand] = {}
        self._leaves: dict[tuple[bool, int, DType], Leaf] = {}
        self._plans: OrderedDict[tuple[Any, ...], Known] = OrderedDict()
        self._varying: OrderedDict[tuple[Any, ...], tuple[int, ...]] = OrderedDict()
        """Which numbers were data on paths of the same operations; theirs are on one of other
        sizes, too."""

    def _begin(self) -> None:
        self.generation += 1
        self.at = self._root
        self._inputs: list[Array] = []
        self._holders: dict[int, Storage] = {}
        self._scalars: list[float] = []
        self._count = 0
        self._nodes: dict[int, Node] = {}
        self._lowered = 0

    def number(self, storage: Storage) -> int:
        """The number of a storage's value on the tape."""
        if storage.generation == self.generation:
            return storage.value
        if storage.lost is not None and storage.array is None:
            raise storage.lost.with_traceback(None)
        key = storage.array is not None, storage.size, storage.dtype
        leaf = self._leaves.get(key)
        if leaf is None:
            leaf = self._leaves[key] = Leaf(*key)
        self.at = self.at.next.get(leaf) or self._grown(leaf, leaf, ())
        if storage.array is not None:
            self._inputs.append(storage.array)
        storage.value, storage.generation = self._count, self.generation
        self._count += 1
        return storage.value

    def operand(
        self, key: tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]
    ) -> Operand:
        """What a tensor shows of a storage: the number of its value, how many bytes behind its
        first element, shape, strides and type."""
        found = self.operands.get(key)
        if found is None:
            number, offset, shape, strides, dtype = key
            own = DTYPES[dtype]
            repeats = any(s == 0 and n > 1 for n, s in zip(shape, strides, strict=True))
            at = offset // (own.bits // 8 or 1)
            found = Operand(number, at, tuple(shape), strides, own, repeats)
            self.operands[key] = found
        return found

    # Recording

    def record(
        self,
        key: Key,
        scalars: Sequence[float],
    ) -> tuple[Point, int]:
        """Remember an operation: the parts of a `Call`. Gives its place, which tells the types of
        its new values, and the number of the first; what it writes into targets has the numbers
        from there on. Raises what the row raises for operands that do not fit."""
        point = self.at.next.get(key) or self._explored(Call(*key), key, scalars)
        self.at = point
        if scalars:
            self._scalars += scalars
        first = self._count
        self._count += len(point.results) or len(key[3])
        return point, first

    def record_as(
        self, name: tuple[Any, ...], key_of: Callable[[Any], Key], args: Any
    ) -> tuple[Point, int]:
        """`record` of what is the same operation, without numbers, whenever it has this name
        here: then its key is not asked for."""
        point = self.at.next.get(name)
        if point is None:
            point = self._explored(Call(*key_of(args)), name, ())
        self.at = point
        first = self._count
        self._count += len(point.results)
        return point, first

    def assign(self, number: int, storage: Storage) -> None:
        """The storage has that value."""
        storage.value, storage.generation = number, self.generation
        self._holders[number] = storage

    def is_pending(self, storage: Storage) -> bool:
        """Whether the storage's value is recorded, and not computed yet."""
        return storage.generation == self.generation and storage.value in self._holders

    def filled(self, storage: Storage) -> Any:
        """The number that all elements of a storage are, if it was filled with one not long ago and
        that is not computed yet; None for others."""
        at: Point | None = self.at if storage.generation == self.generation else None
        for _ in range(RECENT):
            if at is None or at.parent is None:
                return None
            if at.first == storage.value:
                break
            at = at.parent
        else:
            return None
        step = at.step
        if not isinstance(step, Call) or step.row.name not in FILLS:
            return None
        (target,) = step.targets
        if type(target) is not Operand or _count(target.shape) != storage.size:
            return None
        number = step.args[1] if len(step.args) > 1 else 0
        if type(number) is Scalar:
            return self._scalars[at.scalars + number.number]
        return number.value if type(number) is Flag else number

    def counted(self) -> dict[str, int]:
        """`counts`, with what is recorded now."""
        return {**self.counts, "operations": self.counts["operations"] + self.at.calls}

    def full(self) -> bool:
        """Whether what is recorded should be computed now."""
        return self.at.depth >= PENDING

    def _grown(self, key: Any, step: Leaf | Call, results: tuple[Result, ...]) -> Point:
        """A place where nobody was yet."""
        before = self.at
        self._points += 1
        made = before.next[key] = Point(
            before, step, self._count, len(self._scalars), len(self._inputs), before.depth + 1,
            before.calls + isinstance(step, Call), results,
        )  # fmt: skip
        return made

    def _explored(self, call: Call, key: Any, scalars: Sequence[float]) -> Point:
        given = [*self._scalars, *scalars]
        self._lower_path(given)
        results = self._lower(call, self._count, len(self._scalars), self._nodes, given)
        self._lowered += 1
        return self._grown(key, call, results)

    def _path(self, before: int = 0) -> list[Point]:
        """The places that led here, from the one behind `before` steps on."""
        found, at = [], self.at
        while at.depth > before:
            found.append(at)
            assert at.parent is not None, "only the root has none"
            at = at.parent
        return found[::-1]

    def _lower_path(self, scalars: Sequence[float]) -> None:
        """Give all values so far their nodes."""
        for point in self._path(self._lowered):
            self._lower_step(point, self._nodes, scalars)
        self._lowered = self.at.depth

    def _lower_step(self, at: Point, nodes: dict[int, Node], scalars: Sequence[float]) -> None:
        step = at.step
        if isinstance(step, Leaf):
            wanted = Type((step.size,), step.dtype)
            nodes[at.first] = (
                g.input(at.inputs, wanted) if step.defined else g.full(wanted.shape, 0, step.dtype)
            )
        else:
            assert step is not None, "a path begins behind the root"
            self._lower(step, at.first, at.scalars, nodes, scalars)

    def _lower(
        self, call: Call, n: int, before: int, nodes: dict[int, Node], scalars: Sequence[float]
    ) -> tuple[Result, ...]:
        """Give the values of an operation their nodes, from the n-th on."""
        self.counts["lowered"] += 1
        values = [lowered(a, nodes, scalars, before) for a in call.args]
        split = len(values) - len(call.names)
        named = dict(zip(call.names, values[split:], strict=True))
        made = call.row.lower(*values[:split], **named)
        parts = list(flat(made))
        if call.targets:
            for target, part in zip(call.targets, parts, strict=False):
                if type(target) is Operand:  # another one has no elements
                    if call.row.pointwise:
                        check_cast(TORCH[part.dtype], TORCH[target.dtype])
                    nodes[n] = _written(nodes, target, part)
                    if len(call.targets) > 1:  # the next one may be in the same storage
                        nodes[target.number] = nodes[n]
                n += 1
            return ()
        results = []
        for part, order in itertools.zip_longest(parts, call.row.orders[: len(parts)]):
            strides = None if order is None else _dense(part.shape, order)
            if call.row.pointwise:
                strides = _like(call.args, part.shape)
            nodes[n] = _stored(part, strides)
            results.append(Result(part.shape, strides, part.dtype))
            n += 1
        return tuple(results)

    # Computing

    def flush(self) -> None:
        """Begin to compute all that somebody can still ask for; wait for nothing. Where that cannot
        begin, as for lack of memory, raises why: then storages are as before what was recorded, and
        those that had no value before raise it again when they are used."""
        self.counts["operations"] += self.at.calls
        live = [
            (n, s)
            for n, s in self._holders.items()
            if s.slots and s.value == n and s.generation == self.generation
        ]
        if not live:
            self._forget()
            return
        arrays = {id(a): i for i, a in enumerate(self._inputs)}
        updates = tuple(
            [
                (o, arrays[id(s.array)])
                for o, (_, s) in enumerate(live)
                if s.array is not None and id(s.array) in arrays
            ]
        )
        numbers = tuple([n for n, _ in live])
        try:
            outputs = self._plan(numbers, updates).run(self._inputs)
        except Exception as error:
            for _, storage in live:
                storage.lost = error
            self._as_made()
            self._forget()
            raise
        self.counts["runs"] += 1
        for (_, storage), made in zip(live, outputs, strict=True):
            storage.array = made
        self._forget()

    def _as_made(self) -> None:
        """Give storages that were made and then written what they were made with, if that can be
        computed alone: the state that an optimizer made in a step that took too much memory."""
        first: dict[int, tuple[int, Storage]] = {}
        for n, s in self._holders.items():
            first.setdefault(id(s), (n, s))
        made = [(n, s) for n, s in first.values() if s.lost is not None and s.value != n]
        made = [(n, s) for n, s in made if s.slots and s.array is None]
        if not made:
            return
        kept: list[Node] = []
        nodes: dict[int, Node] = {}
        for point in self._path():
            self._lower_step(point, nodes, self._scalars)
            while len(kept) < len(made) and made[len(kept)][0] in nodes:
                kept.append(nodes[made[len(kept)][0]])
        inputs = tuple([g.input(i, a.type) for i, a in enumerate(self._inputs)])
        try:
            request = GraphRequest(tuple(kept), inputs)
            outputs = self.engine.plan(request, keep=False).run(self._inputs)
        except HalError:
            return  # they stay lost, for the first cause
        for (_, storage), held in zip(made, outputs, strict=True):
            storage.array, storage.lost = held, None

    def _forget(self) -> None:
        if self._points > POINTS:
            self._clear()
        self._begin()

    def _plan(self, numbers: tuple[int, ...], updates: tuple[tuple[int, int], ...]) -> Any:
        key = self.at, numbers, updates
        scalars = array("d", self._scalars)
        known = self._plans.get(key)
        if known is not None:
            self._plans.move_to_end(key)
            plan = self._again(known, scalars)
            if plan is not None:
                return plan
            free = known.free
            for i, (a, b) in enumerate(zip(known.scalars, scalars, strict=True)):
                if repr(a) != repr(b) and i not in free:
                    free += (i,)
        else:
            free = self._varying.get(self._operations(), ())
        with self.engine.compiling():
            plan = self._generalised(key, free, scalars) if free else None
            if plan is not None:
                return plan
            self.counts["compiled"] += 1
            self._lower_path(self._scalars)
            request = self._request(self._nodes, numbers, updates)
            plan = self.engine.plan(request, keep=False)
        self._keep(key, Known(scalars, plan))
        return plan

    def _keep(self, key: tuple[Any, ...], known: Known) -> None:
        self._plans[key] = known
        if len(self._plans) > PLANS:
            self._plans.popitem(last=False)

    def _again(self, known: Known, scalars: array[float]) -> Any:
        """The known plan for these numbers, if it serves them: it does for others at `free`."""
        given = scalars[:]
        for i in known.free:
            given[i] = known.scalars[i]
        if given.tobytes() != known.scalars.tobytes():  # which tells zeros apart, and not NaN
            return None
        if known.dynamic is None:
            return known.plan
        return self.engine.at(known.dynamic, _values(known.free, scalars))

    def _generalised(
        self, key: tuple[Any, ...], free: tuple[int, ...], scalars: array[float]
    ) -> Any:
        """A plan for which the numbers at `free` are data; None where they cannot be."""
        facts = Facts()
        given: list[float] = list(scalars)
        for name, value in _values(free, scalars).items():
            given[int(name[1:])] = facts.number(name, value)
        nodes: dict[int, Node] = {}
        for point in self._path():
            self._lower_step(point, nodes, given)
        request = self._request(nodes, key[1], key[2], facts)
        dynamic = self.engine.dynamic(request, "numbers that differ from an earlier run's")
        if dynamic is None:
            return None
        plan = self.engine.at(dynamic, _values(free, scalars))
        if plan is None:
            return None
        self.counts["generalised"] += 1
        self._keep(key, Known(scalars, plan, dynamic, free))
        self._varying[self._operations()] = free
        if len(self._varying) > PLANS:
            self._varying.popitem(last=False)
        return plan

    def _operations(self) -> tuple[Any, ...]:
        """The operators that led here, and where their numbers are."""
        steps = [(p.step, p.scalars) for p in self._path()]
        found = [(s.row, at) for s, at in steps if isinstance(s, Call)]
        return (*found, len(self._scalars))  # of which the last one has what is left

    def _request(
        self,
        nodes: dict[int, Node],
        numbers: tuple[int, ...],
        updates: tuple[tuple[int, int], ...],
        facts: Facts | None = None,
    ) -> GraphRequest:
        inputs = tuple([g.input(i, a.type) for i, a in enumerate(self._inputs)])
        return GraphRequest(tuple([nodes[n] for n in numbers]), inputs, updates, facts)


def _values(free: Sequence[int], scalars: Sequence[float]) -> dict[str, float]:
    """The numbers that are data, by the names that they have in a plan."""
    return {f"n{i}": scalars[i] for i in free}


def check_cast(made: torch.dtype, target: torch.dtype) -> None:
    """Refuse to write numbers of a kind that the elements cannot be."""
    if not torch.can_cast(made, target):
        raise RuntimeError(f"result type {made} can't be cast to the desired output type {target}")


def lowered(arg: Any, nodes: dict[int, Node], scalars: Sequence[float], before: int) -> Any:
    """An argument of a key as one of a row: nodes in the place of tensors."""
    kind = type(arg)
    if kind is Operand:
        whole = nodes[arg.number]
        if whole.dtype is not arg.dtype:
            whole = reinterpreted(whole, arg.dtype)
        size = whole.shape[0]
        if (
            not arg.offset
            and arg.strides == contiguous_strides(arg.shape)
            and _count(arg.shape) == size
        ):
            return g.reshape(whole, arg.shape)
        window = _window(size, arg)
        if window is not None:
            return window.read(whole)
        return g.reshape(g.gather(whole, places(arg.shape, arg.strides, arg.offset), 0), arg.shape)
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


def _written(nodes: dict[int, Node], x: Operand, part: Node) -> Node:
    old = whole = nodes[x.number]
    part = g.broadcast(g.cast(part, x.dtype), x.shape)
    if old.dtype is not x.dtype:
        whole = reinterpreted(whole, x.dtype)
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
    if old.dtype is x.dtype:
        return whole
    whole = reinterpreted(whole, old.dtype)
    size, count = old.shape[0], whole.shape[0]
    return whole if count == size else g.concat((whole, g.slice(old, (count,), (size,))), 0)


_WORDS = {8: DType.U8, 16: DType.U16, 32: DType.U32, 64: DType.U64}


def reinterpreted(row: Node, dtype: DType) -> Node:
    """The bytes of a row as elements of another type, without those that make no whole one."""
    bits, wanted = row.dtype.bits, dtype.bits
    if bits == wanted:
        return g.bitcast(row, dtype)
    words, n, many = (
        g.bitcast(row, _WORDS[bits]),
        row.shape[0],
        max(bits, wanted) // min(bits, wanted),
    )
    if bits < wanted:
        n //= many
        each = g.reshape(g.slice(words, (0,), (n * many,)), (n, many))
        made = g.full((n,), 0, _WORDS[wanted])
        for i in range(many):
            part = g.cast(g.reshape(g.slice(each, (0, i), (n, i + 1)), (n,)), made.dtype)
            made = e.bitwise_or(made, e.shift_left(part, i * bits))
        return g.bitcast(made, dtype)
    low = (1 << wanted) - 1
    parts = [
        g.reshape(
            g.cast(e.bitwise_and(e.shift_right(words, i * wanted), low), _WORDS[wanted]), (n, 1)
        )
        for i in range(many)
    ]
    return g.bitcast(g.reshape(g.concat(parts, 1), (n * many,)), dtype)


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
            return _dense(shape, sorted(range(len(shape)), key=lambda a: (-x.strides[a], a)))
    return None


def _dense(shape: tuple[int, ...], order: Sequence[int]) -> tuple[int, ...] | None:
    """Strides without gaps whose axes lie in memory in that order. None: row-major."""
    dense, step = [0] * len(shape), 1
    for a in reversed(order):
        dense[a] = step
        step *= max(shape[a], 1)
    found = tuple(dense)
    return None if found == contiguous_strides(shape) else found
