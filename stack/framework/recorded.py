"""Operations on a tape: a path that is found again in the place of a graph.

What is on a tape waits as pending nodes do, and becomes nodes when somebody asks for one: a trace,
a hook, an operation that is not recorded. Then all of it does, so that no node ever depends on
a tape. A value is asked for by `compute`, which finds the plan for all that is alive.

Gradients are operations with several results: those of `backward` are the derivatives by all
leaves that require one, and which these are is part of the path. A value through which gradients
flow keeps its tape after it was computed; who goes on with it has what it was computed from
appended to the next one.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary, WeakSet

from hal.core.dtypes import DType
from hal.core.errors import HalError
from hal.tile.node import Node, Type, substitute, toposort
from hal.tile.size import Facts
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.framework import store, within
from stack.framework.cell import Cell, Context, here, owners, settle, stale
from stack.framework.devices import engine, engines
from stack.framework.dtypes import is_plain
from stack.framework.errors import RangeError, TensorError, where_called
from stack.framework.expr import elementwise as e
from stack.framework.expr import index
from stack.framework.expr.public import FUNCTIONS, LAYERS, LINALG, METHODS, SPECIAL, Public
from stack.framework.modes import autocast, autocast_dtype, grad_enabled
from stack.framework.realize import isolate
from stack.framework.request import Inlining
from stack.framework.reverse import gradients
from stack.ops import OPS
from stack.ops.error import GraphError
from stack.ops.numeric import element
from stack.ops.operator import OpKind
from stack.recorder import _walk as walk
from stack.recorder.kin import Row
from stack.recorder.tape import (
    BY_OPERAND,
    LONGEST,
    LONGEST_TRACKED,
    Formed,
    Key,
    Listed,
    Named,
    Placed,
    Tape,
    Tree,
    number_key,
    number_of,
    operand,
    read,
    same,
    write,
)
from stack.runtime.engine import Engine
from stack.runtime.families import Compilation
from stack.runtime.general import Sizing

_PLAIN = frozenset(
    {"activation", "attention", "contract", "convolution", "elementwise", "index", "linear"}
    | {"loss", "movement", "norm", "pool", "public", "reduce", "resample", "rotary", "sort"}
    | {"special"}
)
"""The modules of expressions whose results follow from operands alone: they draw no numbers, and
look at no values but at those of indices, through `within`."""

recordable: set[Callable[..., Any]] = {same, e.to, e.where, e.fill_where}
_AT_A_PLACE = frozenset({index.getitem, index.setitem})
"""Expressions whose second operand is a place: an index of tensors, as far as they are recorded."""


def note(public: Public) -> None:
    """The operator may be recorded."""
    face = public.face
    plain = public.expression.__module__.rpartition(".")[2] in _PLAIN
    if plain and not face.shares and not face.waits:
        recordable.add(public.expression)


for _table in (FUNCTIONS, METHODS, LAYERS, SPECIAL, LINALG):
    for _public in _table.values():
        note(_public)


def record(expression: Callable[..., Any]) -> None:
    """An expression that is no row of its own may be recorded."""
    recordable.add(expression)


def stop(x: Node) -> Node:
    """The value, through which no gradient flows, as an operation."""
    return store.barrier(x)


def derivatives(y: Node, d: Node | None, *leaves: Node) -> tuple[Node | None, ...]:
    """The derivatives by each leaf, given that by y, or none for a single value; None by those that
    y was not computed from."""
    seed = g.full_like(y, 1) if d is None else d
    found = gradients([(y, seed)], set(leaves).__contains__)
    return tuple([found.pop(leaf, None) for leaf in leaves])


_IN_PART = frozenset(
    {write, index.setitem, index.index_put, index.index_copy, index.index_add}
    | {index.scatter, index.scatter_add}
)
"""What gives the first operand but for a part."""
_NO_PLACES: Mapping[int, int] = MappingProxyType({})


def _is_in_part(operation: Any) -> bool:
    while isinstance(operation, Placed | Listed):
        operation = operation.operation
    return operation in _IN_PART


class Casting(NamedTuple):
    """An operation as it is under `autocast` to an element type."""

    operation: Callable[..., Any]
    dtype: DType

    def __call__(self, *operands: Any) -> Any:
        with autocast(self.dtype):
            return self.operation(*operands)


def _as_now(operation: Callable[..., Any]) -> Any:
    """The operation with what surrounds it."""
    dtype = autocast_dtype()
    return operation if dtype is None else Casting(operation, dtype)


class _Check(NamedTuple):
    """What an operation needs of the indices that a number of the tape has."""

    number: int
    need: within.Need


def _explore(run: Callable[[], Any]) -> tuple[Any, tuple[_Check, ...]]:
    with within.noting() as needs:
        made = run()
    found = [(number_of(need.source), need) for need in needs]
    return made, tuple([_Check(n, need) for n, need in found if n is not None])


def _telling(engine: weakref.ref[Engine]) -> Callable[[str, str], None]:
    """What tells an engine's user what is not known for all sizes and numbers."""

    def tell(what: str, why: str) -> None:
        own: object = engine()
        if isinstance(own, Engine):  # tests bring others
            own.families.notes.append(Compilation(what, why))

    return tell


_trees: WeakKeyDictionary[Context, WeakKeyDictionary[Engine, Tree]] = WeakKeyDictionary()
_NUMBERS = frozenset({int, float, bool})
_NAMES = frozenset({str, DType})

_UNTRACKED = 16
"""The room that an operation takes through which no gradients flow, in times of another one."""

_forms: WeakKeyDictionary[Context, OrderedDict[Formed, int]] = WeakKeyDictionary()
"""What followed from numbers alone, the latest last, and the tape that was asked for it first."""
_serials = count()
MOST_FORMS = 32
"""How many of these are known: those of a step, and fewer than the sizes of a sequence that
grows."""
MOST_BEHIND = 64
"""How many nodes are behind one that follows from numbers alone."""
_SIMPLE = frozenset({OpKind.ELEMENTWISE, OpKind.MOVEMENT})

TOLD = 3
"""How many of the values that could not be computed an error tells."""

FEW = 8
"""Arrays that a tape is given before somebody looks whether any of its values can be asked for."""


def _form(n: Node, others: Container[Node]) -> Key | None:
    """What a node is as an operation of numbers (`Formed`), where few nodes are behind it, and all
    of them are constants, positions and what is computed of these, element by element. None of
    `others` is."""
    behind, rest = {n}, [n]  # from the top: behind others there may be thousands
    while rest:
        x = rest.pop()
        leaf = x.op in ("const", "arange")
        if x in others:
            return None
        if not leaf and (x.op == "philox" or not x.srcs or OPS[x.op].kind not in _SIMPLE):
            return None
        new = [s for s in dict.fromkeys(x.srcs) if s not in behind]
        behind.update(new)
        rest += new
        if len(behind) > MOST_BEHIND:
            return None
    constants = [x for x in toposort((n,)) if x.op == "const"]
    slots = {x: g.input(i, x.type) for i, x in enumerate(constants)}
    (form,) = substitute((n,), slots)
    return Formed(form, tuple(slots.values())), *[number_key(x["value"]) for x in constants]


def _is_list(x: Any) -> bool:
    """Whether an argument is a list of tensors."""
    return isinstance(x, list | tuple) and bool(x) and isinstance(x[0], Cell)


def _by_tensors(place: Any) -> tuple[tuple[str, ...], list[Cell]] | None:
    """The axes of an index (`Placed`) and the tensors in it; None where there are none, or numbers
    beside them."""
    axes, found = [], []
    for item in place if isinstance(place, tuple) else (place,):
        if isinstance(item, Cell):
            axes.append(BY_OPERAND)
            found.append(item)
        elif item is None or item is ...:
            axes.append("+" if item is None else "...")
        elif isinstance(item, slice) and item == slice(None):
            axes.append(":")
        else:
            return None
    return (tuple(axes), found) if found else None


class CellTape:
    """What a thread has on a device's tape. `leaves` are the cells that require a gradient, by the
    numbers of their values; `tracked` says whether gradients flow through the last operation;
    what has no `room` left is computed before anything else comes on it."""

    __slots__ = (
        *("__weakref__", "_adopted", "_cells", "_constants", "_context", "_ended", "_formed"),
        *("_known", "_looked", "_new", "_others", "_parts", "_rest", "_serial", "_steps"),
        *("_stopped", "device", "engine", "leaves", "room", "tape", "tracked"),
    )

    def __init__(self, device: str) -> None:
        self._context, self.engine, self.device = here.context, engine(device), device
        trees = _trees.setdefault(self._context, WeakKeyDictionary())
        if self.engine not in trees:
            trees[self.engine] = Tree(_explore, _telling(weakref.ref(self.engine)), where_called)
        self._begin(trees[self.engine].begin())
        self._looked = FEW
        self.tracked = False

    def _begin(self, tape: Tape) -> None:
        self.tape = tape
        self._cells: dict[int, weakref.ref[Cell]] = {}
        self._steps = 0
        self.room = LONGEST * _UNTRACKED
        """What operations may still take before they are computed; where gradients flow through
        some of them, also the `_rest`."""
        self._rest = LONGEST_TRACKED - self.room
        self._ended = False
        self._stopped: dict[int, int] = {}
        self._parts: dict[tuple[int, Any], int] = {}
        self._known: dict[int, Node] = {}
        self._constants: set[int] = set()
        self._formed: dict[Node, int] = {}
        self._others: WeakSet[Node] = WeakSet()
        self._new: WeakSet[Node] = WeakSet()
        self._serial = next(_serials)
        self._adopted: dict[CellTape, dict[int, int]] = {}
        self.leaves: dict[int, weakref.ref[Cell]] = {}

    # what is on it

    def number(self, cell: Cell) -> int:
        """The number of a cell's value; -1 where it cannot be on this tape."""
        return walk.number(self, cell)

    def _numbered(self, cell: Cell) -> int:
        """As `number`: its meaning, as `operated` is."""
        n = self._number(cell)
        if n >= 0 and cell._requires_grad and cell.owns and n not in self.leaves:
            if cell.recording is self:  # what it was computed from is not differentiated
                n = cell.number = self._stop(n)
                self._cells[n] = weakref.ref(cell)
            self.leaves[n] = weakref.ref(cell)
        return n

    def _number(self, cell: Cell) -> int:
        recording = cell.recording
        if recording is self:
            return cell.number
        if cell.device != self.device:
            return -1
        if recording is not None:
            return self._adopt(cell, recording)
        link, part, tape = cell.link, cell.part, self.tape
        if part is not None:
            # The number of a leaf that is a part of a value.
            whole = self._number(part.whole)
            if whole < 0:
                return -1
            key = self._stop(whole), part.window
            n = self._parts.get(key)
            if n is None:
                n = self._parts[key] = self.tape.append((read, *key))
            return n
        if link is not None:
            if link.history is not None or (link.cut and cell._requires_grad):
                return -1
            whole = self.number(link.source)
            return -1 if whole < 0 else tape.append((read, whole, link.window))
        node = cell.node
        if cell._requires_grad and not cell.owns:
            return -1  # its history is in nodes
        n = tape.leaves.get(node)
        if n is not None:
            return n
        array = store.arrays.get(node)
        if array is None:
            if store.root(node).op != "const":
                return self._from_nothing(node)
            if node.op != "input":
                n = tape.give(node, constant=True)
                self._constants.add(n)
                return n
            isolate([cell])  # what has memory of its own is no constant for long
            node = cell.node  # another leaf where that one was not the cell's alone
            array = store.arrays[node]
        return tape.give(node, constant=False) if array.type == node.type else -1

    def _from_nothing(self, node: Node) -> int:
        """The number of what follows from nothing, as positions do and what masks make of them: an
        operation of the numbers in it; -1 for other nodes, and for one of a form that no tape
        before was asked for, since a size that grows would be another path each time."""
        n = self._formed.get(node)
        if n is not None:
            return n
        if node in self._new:
            return -1
        found = _form(node, self._others)
        if found is None:
            self._others.add(node)
            return -1
        forms = _forms.setdefault(self._context, OrderedDict())
        first = forms.setdefault(found[0], self._serial)
        forms.move_to_end(found[0])
        if len(forms) > MOST_FORMS:
            forms.popitem(last=False)
        if first == self._serial:
            self._new.add(node)  # whoever asks again need not hear it from all behind it
            return -1
        n = self._formed[node] = self.tape.append(found)
        self._constants.add(n)
        return n

    def filled(self, type: Type, value: float) -> int:
        """The number of a value of equal elements; -1 where the number is of another kind, or too
        large."""
        if not is_plain(value, type.dtype) or element(value, type.dtype) is None:
            return -1
        slot = g.input(0, Type((), type.dtype))
        n = self.tape.append((Formed(g.broadcast(slot, type.shape), (slot,)), number_key(value)))
        self._constants.add(n)
        return n

    def _stop(self, n: int) -> int:
        """The value of a number, through which no gradient flows."""
        tape = self.tape
        if tape.keys[n][0] is None:
            return n  # it was given
        found = self._stopped.get(n)
        if found is None:
            found = self._stopped[n] = tape.add((stop, n), tape.types[n])
        return found

    def _adopt(self, cell: Cell, recording: Any) -> int:
        """The number of a value that was computed on a tape before this one."""
        if not (isinstance(recording, CellTape) and recording._ended):
            return -1
        if recording._context is not self._context or recording.engine is not self.engine:
            return -1
        done = self._adopted.setdefault(recording, {})
        old, before = cell.number, set(done)
        n = self.tape.adopt(recording.tape, old, done)
        if n < 0:
            return -1
        for was in sorted(done.keys() - before):
            if was in recording._known:
                leaf = self._known[done[was]] = recording._known[was]
                self.tape.know(done[was], leaf)
            if was in recording.leaves:
                self.leaves[done[was]] = recording.leaves[was]
        cell.recording, cell.number = self, n
        self._cells[n] = weakref.ref(cell)
        return n

    def operate(
        self, expression: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> int:
        """The number of an operation's result; -1 where it is not for this tape: more than its
        operands decides what it gives. Sets `tracked`."""
        at_a_place = expression in _AT_A_PLACE
        if not (at_a_place or expression in recordable):
            return -1
        if len(self.tape.inputs) > self._looked:
            self._let_go()
        operands, operation = args, cast("Any", expression)
        if at_a_place:
            x, place, *more = args
            found = _by_tensors(place)
            if found is None:
                return -1
            operation, operands = Placed(expression, found[0]), (x, *found[1], *more)
            args = operands
        if list in map(type, args) or tuple in map(type, args):
            lengths = tuple([len(x) if _is_list(x) else None for x in args])
            if lengths != (None,) * len(args):
                operation = Listed(expression, lengths)
                operands = tuple([y for x in args for y in (x if _is_list(x) else (x,))])
        if kwargs:
            operands = *operands, *kwargs.values()
            operation = Named(operation, tuple(kwargs))
        if expression is not same and not at_a_place:
            operation = _as_now(operation)
        return walk.operate(self, operation, *operands)

    def operated(self, operation: Any, *operands: Any) -> int:
        """As `operate`, of an operation with all of its operands. It is the meaning of what is
        compiled (`stack.recorder._walk`), which comes here where something is not as usual."""
        key = self._key(operation, operands)
        return -1 if key is None else self._appended(key)

    def _key(self, operation: Any, operands: Sequence[Any]) -> Key | None:
        """What an operation of these operands is on this tape; None where it cannot be on it. Sets
        `tracked`."""
        key: list[Any] = [operation]
        tracked = False
        for x in operands:
            kind = type(x)
            if isinstance(x, Cell):
                if x._requires_grad:
                    tracked = True
                    n = self.number(x)
                else:
                    n = x.number if x.recording is self else self._number(x)
                if n < 0:
                    return None
                key.append(n)
            elif kind in _NUMBERS:
                key.append(number_key(x))
            elif x is None or kind in _NAMES or (kind is tuple and {*map(type, x)} <= {int}):
                key.append(x)
            else:
                return None
        if self._constants and self._constants.issuperset([o for o in key if type(o) is int]):
            return None  # it takes no memory before somebody asks
        self.tracked = tracked and grad_enabled()
        if self.tracked:
            for i, x in enumerate(operands, 1):
                if isinstance(x, Cell) and not x._requires_grad:
                    key[i] = self._stop(key[i])
        return tuple(key)

    def _appended(self, key: Key) -> int:
        try:
            n = self.tape.append(key)
        except (GraphError, TensorError):  # told by the operation itself, with its name and place
            return -1
        if n >= 0 and self.tape.checks and not self._in_range(self.tape.checks):
            return -1
        return n

    def _in_range(self, checks: Iterable[_Check]) -> bool:
        given = {n: leaf for leaf, n in self.tape.leaves.items()}
        try:
            for number, need in checks:
                leaf = given.get(number)
                values = None if leaf is None else within.values_of(leaf)
                if values is not None:
                    need.check(values, need.sizes)
        except RangeError:  # told by the operation itself
            return False
        return True

    def put(self, cell: Cell, n: int) -> None:
        """That value is the cell's."""
        cell.recording, cell.number, cell.shown = self, n, self.tape.types[n]
        self._cells[n] = weakref.ref(cell)
        self.room -= 1 if cell._requires_grad else _UNTRACKED
        if self._ended:  # by another thread meanwhile, which did not see this
            self._context.histories.add(self)

    def overwrite(self, cell: Cell, n: int) -> None:
        """Give a cell, and what shares its memory, that value instead of its own."""
        link = cell.link
        if link is not None:
            cell, whole = link.source, self.number(link.source)
            n = self.tape.append((write, whole, n, link.window))
            assert min(whole, n) >= 0, "what a window shows is on the tape, so its source is"
        walk.overwrite(self, cell, n)

    def overwritten(self, cell: Cell, n: int) -> None:
        """Give a cell that is no window that value: the meaning of what is compiled, which comes
        here where something is not as usual."""
        with store.lock:  # in between it has no node and is on no tape
            if cell.recording is None:
                cell.settled()
                part, cell.part = cell.part, None
                with nullcontext() if part is None else suppress(AttributeError):
                    del cell.node
            cell.owns = True
            self.put(cell, n)
        stale(cell)

    def numbers(self, cells: Iterable[Cell]) -> list[int] | None:
        """The number of each cell's value; None where one cannot be on this tape."""
        found = []
        for cell in cells:
            n = self.number(cell)
            if n < 0:
                return None
            found.append(n)
        return found

    def operate_several(
        self, expression: Callable[..., Any], args: tuple[Any, ...]
    ) -> list[int] | None:
        """As `operate`, for an operation that gives several values; None where it is not for this
        tape."""
        if len(self.tape.inputs) > self._looked:
            self._let_go()
        key = self._key(_as_now(expression), args)
        found = None if key is None else self.several(*key)
        return None if found is None or None in found else [n for n in found if n is not None]

    def several(self, operation: Callable[..., Any], *operands: Any) -> list[int | None] | None:
        """The numbers of an operation's results, None for one that is not there; None where the
        operation tells itself what is wrong."""
        try:
            first = self.tape.append_several((operation, *operands))
        except (GraphError, TensorError):
            return None
        types = self.tape.types[first]
        return [first + 1 + i if t is not None else None for i, t in enumerate(types)]

    def backward(self, loss: Cell, seed: Cell | None) -> list[tuple[Cell, int]] | None:
        """The leaves that the value was computed from and that require a gradient, each with the
        number of the derivative by it; None where nodes tell."""
        n = self.number(loss)
        d = None if seed is None else self.number(seed)
        if n < 0 or (d is not None and d < 0):
            return None
        wanted = []
        for number, ref in self.leaves.items():
            leaf = ref()
            if leaf is not None and leaf._requires_grad and leaf.owns:
                if leaf.hooks:
                    return None
                wanted.append((number, leaf))
        found = self.several(derivatives, n, d, *[number for number, _ in wanted])
        if found is None:
            return None
        each = zip(wanted, found, strict=True)
        return [(leaf, number) for (_, leaf), number in each if number is not None]

    def stepped(self) -> None:
        """Leaves have been moved by their gradients. What many steps do is not put off."""
        self._steps += 1
        if self._steps > 1:
            self.room = self._rest = 0

    def is_full(self) -> bool:
        """Whether what is on the tape is to be computed before more is put there."""
        if self.room <= 0 and self.leaves:
            self.room, self._rest = self.room + self._rest, 0
        return self.room <= 0

    # what becomes of it

    def _let_go(self) -> None:
        """Begin anew where nobody can ask for what is on the tape, which holds what it was
        given."""
        cells = self._cells.values()
        alive = any(c.recording is self for ref in cells if (c := ref()) is not None)
        if self._cells and not alive:
            self._begin(self.tape.tree.begin())
            self._looked = 0
        self._looked = len(self.tape.inputs) + FEW

    def _alive(self) -> dict[int, Cell]:
        cells = self._cells.copy()  # of another thread, it may go on growing
        return self._still({n: c for n, ref in cells.items() if (c := ref()) is not None})

    def _still(self, cells: Mapping[int, Cell]) -> dict[int, Cell]:
        """Those whose values are these numbers on this tape."""
        return {n: c for n, c in cells.items() if c.recording is self and c.number == n}

    def _end(self) -> None:
        self._ended = True
        if self._context.recordings.get(self.device) is self:
            del self._context.recordings[self.device]

    def _nodes(self, wanted: Iterable[int]) -> dict[int, Node]:
        nodes = self.tape.nodes(wanted)
        for n, leaf in self._known.copy().items():
            if n in nodes and nodes[n].op != "input":
                store.leaves[nodes[n]] = leaf
        return nodes

    def make_nodes(self) -> None:
        """Make the node of each cell whose value is on the tape."""
        with store.lock:
            alive = self._alive()
            nodes = self._nodes(alive)
            for n, ref in self.leaves.copy().items():
                if n in nodes:
                    owners.setdefault(nodes[n], ref)
            for n, cell in alive.items():
                made = nodes[n]
                if cell.owns:
                    made = made if n in self.leaves else store.barrier(made)
                    owners[made] = weakref.ref(cell)
                cell.node, cell.recording = made, None
                cell._waits = self._context.unsettled
                cell._waits[cell.serial] = cell
            self._end()
            self._context.histories.discard(self)

    def compute(self) -> None:
        """Begin to compute the value of each of these cells."""
        if self._ended:
            return
        settle()
        alive = self._alive()
        missing = tuple([n for n in alive if n not in self._known])
        if missing:
            try:
                parts = self._parts_of_leaves(alive, missing)
                places = self._places(parts)
                plan, order = self._plan(missing, places)
                if places:
                    self._compute_in_place(alive, missing, parts, places, plan, order)
                else:
                    self._settle_all(alive, missing, plan.run(self._given(order)))
            except HalError as error:
                # What was to be computed, the largest first.
                types = self.tape.types
                largest = sorted(missing, key=lambda n: -types[n].nbytes)
                told = "".join(f"\n  {types[n]} by {self.tape.called(n)}" for n in largest[:TOLD])
                more = len(largest) - TOLD
                error.add_note(
                    f"it was to compute{told}" + (f"\n  and {more} others" if more > 0 else "")
                )
                raise
        self._end()
        # Hold what gradients of these will ask for, and no more.
        alive = self._still(alive)
        tape = self.tape
        tape.inputs = []
        self._adopted.clear()
        if not alive:
            tape.leaves, self._known, self.leaves = {}, {}, {}
            return
        needed = tape.needed(alive)
        tape.leaves = {leaf: n for leaf, n in tape.leaves.items() if n in needed}
        self._known = {n: leaf for n, leaf in self._known.items() if n in needed}
        self.leaves = {n: ref for n, ref in self.leaves.items() if n in needed}
        self._context.histories.add(self)

    def _plan(
        self, missing: tuple[int, ...], places: Mapping[int, int]
    ) -> tuple[Any, tuple[int, ...]]:
        """What computes these values, and which inputs it takes."""
        return self.tape.plan(
            tuple([n if n not in places else (n, places[n]) for n in missing]),
            lambda: self._compiled(missing, places),
            lambda rows, axes: self._general(missing, places, rows, axes),
        )

    def _given(self, order: Iterable[int]) -> list[Any]:
        leaves = self.tape.inputs
        return store.arrays_of([leaves[i] for i in order])

    def _compute_in_place(
        self,
        alive: Mapping[int, Cell],
        missing: tuple[int, ...],
        parts: Mapping[int, int],
        places: Mapping[int, int],
        plan: Any,
        order: tuple[int, ...],
    ) -> None:
        """Compute values of which some take the places of leaves. Meanwhile no other thread finds
        the leaves; one that has, since the places were looked for, keeps what it found."""
        with store.lock:
            if self._ended or self._places(parts) != places:
                plan, order = self._plan(missing, _NO_PLACES)
                places = _NO_PLACES
            arrays = plan.run(self._given(order))
            taken = set(places.values())
            for leaf, n in self.tape.leaves.items():
                if n in taken:
                    del store.arrays[leaf]
            self._settle_all(alive, missing, arrays)

    def _settle_all(
        self, alive: Mapping[int, Cell], missing: Iterable[int], arrays: Iterable[Any]
    ) -> None:
        with store.lock:
            for n, array in zip(missing, arrays, strict=True):
                self._settle(n, alive[n], store.holding(array))

    def _parts_of_leaves(
        self, alive: Mapping[int, Cell], missing: Iterable[int]
    ) -> Mapping[int, int]:
        """Of values that are others but for a part: the number of the leaf, for which nobody asks
        here."""
        keys, found = self.tape.keys, dict[int, int]()
        for n in missing:
            m = n
            while (m == n or m not in alive) and _is_in_part(keys[m][0]):
                m = keys[m][1]
            if m != n and m not in alive and keys[m][0] is None and not alive[n]._requires_grad:
                found[n] = m
        if not found:
            return _NO_PLACES
        tracked = [n for n, c in alive.items() if c._requires_grad and not c.owns]
        needed = self.tape.needed(tracked)
        return {n: m for n, m in found.items() if m not in needed}

    def _places(self, parts: Mapping[int, int]) -> Mapping[int, int]:
        """Of these the ones whose values take the array of their leaf, because nothing but this
        tape refers to the leaf or to the array: nobody else can ask for what it was, or for what
        follows from that."""
        if not parts:
            return _NO_PLACES
        wanted = set(parts.values())
        leaves = {m: leaf for leaf, m in self.tape.leaves.items() if m in wanted}
        inputs = set(self.tape.inputs)
        given = [m for m, leaf in leaves.items() if leaf in inputs]
        inputs.clear()
        # Of this tape three refer to a leaf, of which one counts as its holder: the keys of its
        # leaves, its inputs, and the dictionary here.
        own = store.ALONE[0] + 2, store.ALONE[1]
        free = {m for m in given if store.references(leaves[m]) == own}
        return {n: m for n, m in parts.items() if m in free}

    def _settle(self, n: int, cell: Cell, leaf: Node) -> None:
        """The leaf has the value of a number, which is the cell's, if it is still."""
        if cell.recording is not self or cell.number != n:
            return
        if cell._requires_grad and not cell.owns:
            self._known[n] = leaf
            return
        cell.node, cell.recording, cell.owns = leaf, None, True
        owners[leaf] = weakref.ref(cell)
        self.tape.leaves[leaf] = self._stopped.get(n, n)
        if cell._windows:
            stale(cell)

    def value(self, cell: Cell) -> Node | None:
        """The leaf with a cell's value, where that was computed."""
        return self._known.get(cell.number)

    def _compiled(
        self, numbers: tuple[int, ...], places: Mapping[int, int]
    ) -> tuple[Any, tuple[int, ...]]:
        """The plan for these values, some of which take the places of inputs, and which inputs it
        takes."""
        nodes = self._nodes(numbers)
        # No others: an equal node that another tape computed is none of this one's inputs.
        known = {nodes[n]: leaf for n, leaf in self._known.items() if n in nodes}
        inline = Inlining(leaves={n: leaf for n, leaf in known.items() if n.op != "input"})
        outputs = [inline(nodes[n]) for n in numbers]
        assert None not in outputs, "a tape's values are made of arrays"
        leaves = {n: leaf for leaf, n in self.tape.leaves.items()} if places else {}
        updates = _updates(numbers, places, leaves, inline)
        inputs = tuple([inline.add_input(leaf) for leaf in inline.inputs])
        made = tuple([n for n in outputs if n is not None])
        plan = self.engine.plan(GraphRequest(made, inputs, updates))
        at = {leaf: i for i, leaf in enumerate(self.tape.inputs)}
        return plan, tuple([at[leaf] for leaf in inline.inputs])

    def _general(
        self,
        numbers: tuple[int, ...],
        places: Mapping[int, int],
        rows: Sequence[Row],
        axes: list[bool],
    ) -> Callable[[Row], tuple[Any, tuple[int, ...]] | None]:
        """What computes these values for rows like these."""
        tape, facts, own = self.tape, Facts(), self.engine
        sizing = Sizing(facts, rows, axes)
        keys = tape.symbolic(sizing.values)
        leaves = {n: leaf for leaf, n in tape.leaves.items()}
        stand_ins: dict[Node, Node] = {}
        nodes: dict[int, Node] = {}
        for n in sorted(tape.needed(numbers)):
            operation, *operands = keys[n]
            leaf = leaves.get(n)
            if leaf is None:
                nodes[n] = operation(*[operand(o, nodes) for o in operands])
            elif leaf.op == "const" or isinstance(operands[0], Node):
                nodes[n] = leaf
            else:
                nodes[n] = stand_ins[leaf] = store.fresh(operands[0])
            if (known := self._known.get(n)) is not None:
                store.leaves[nodes[n]] = stand_ins[known] = store.fresh(nodes[n].type)
        inline = Inlining(set(stand_ins.values()))
        outputs = tuple([m for n in numbers if (m := inline(nodes[n])) is not None])
        assert len(outputs) == len(numbers), "a tape's values are made of arrays"
        updates = _updates(numbers, places, nodes, inline)
        inputs = tuple([inline.add_input(leaf) for leaf in inline.inputs])
        request = GraphRequest(outputs, inputs, updates, facts)
        dynamic = own.dynamic(request, "operations with other sizes or numbers")
        if dynamic is None:
            raise TensorError("these sizes cannot be data")
        at = {stand_ins[leaf]: i for i, leaf in enumerate(tape.inputs) if leaf in stand_ins}
        order = tuple([at[leaf] for leaf in inline.inputs])

        def serve(row: Row) -> tuple[Any, tuple[int, ...]] | None:
            values = sizing.match(row)
            plan = None if values is None else own.at(dynamic, values)
            return None if plan is None else (plan, order)

        return serve


def _updates(
    numbers: Sequence[int], places: Mapping[int, int], leaves: Mapping[int, Node], inline: Inlining
) -> tuple[tuple[int, int], ...]:
    """Which outputs, the values of these numbers, take the places of which inputs."""
    found = []
    for i, n in enumerate(numbers):
        if n in places:
            leaf = leaves[places[n]]
            inline.add_input(leaf)  # of which nothing may be read
            found.append((i, inline.inputs.index(leaf)))
    return tuple(found)


def tape_of(device: str) -> CellTape:
    """This thread's tape of a device."""
    recordings = here.recordings
    found = cast("CellTape | None", recordings.get(device))
    if found is not None and found.is_full():
        found.compute()
        found = None
    if found is None or engines.get(device, found.engine) is not found.engine:
        found = recordings[device] = CellTape(device)
    return found
