"""Operations without gradients on a tape: a path that is found again in the place of a graph.

What is on a tape waits as pending nodes do, and becomes nodes when somebody asks for one: a trace,
a gradient, an operation that is not recorded. Then all of it does, so that no node ever depends on
a tape. A value is asked for by `compute`, which finds the plan for all that is alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, cast
from weakref import WeakKeyDictionary

from stack.compiler.program import GraphRequest
from stack.framework import store
from stack.framework.cell import Cell, Context, here, owners, settle, stale
from stack.framework.devices import engine, engines
from stack.framework.errors import TensorError
from stack.framework.expr.public import METHODS, Public
from stack.framework.mode import autocast_dtype
from stack.framework.request import Inlining
from stack.ops.error import GraphError
from stack.recorder.tape import LONGEST, Named, Tree, number_key, read, write
from stack.runtime.engine import Engine

_PLAIN = frozenset({"elementwise", "activation", "reduce", "contract", "norm", "public"})
"""The modules of expressions whose results follow from operands alone: they look at no values and
draw no numbers."""

_recordable: set[Callable[..., Any]] = set()


def note(public: Public) -> None:
    """The operator may be recorded."""
    if public.expression.__module__.rpartition(".")[2] in _PLAIN and not public.face.shares:
        _recordable.add(public.expression)


for _public in METHODS.values():
    note(_public)

_trees: WeakKeyDictionary[Context, WeakKeyDictionary[Engine, Tree]] = WeakKeyDictionary()
_NUMBERS = frozenset({int, float, bool})

FEW = 8
"""Arrays that a tape is given before somebody looks whether any of its values can be asked for."""


class CellTape:
    """What a thread has on a device's tape."""

    __slots__ = ("_cells", "_context", "_looked", "device", "engine", "tape")

    def __init__(self, device: str) -> None:
        self._context, self.engine, self.device = here.context, engine(device), device
        trees = _trees.setdefault(self._context, WeakKeyDictionary())
        if self.engine not in trees:
            trees[self.engine] = Tree()
        self.tape = trees[self.engine].begin()
        self._cells: list[tuple[int, weakref.ref[Cell]]] = []
        self._looked = FEW

    def number(self, cell: Cell) -> int:
        """The number of a cell's value; -1 where it cannot be on this tape."""
        if cell.recording is self:
            return cell.number
        if cell.device != self.device:
            return -1
        link, tape = cell.link, self.tape
        if link is not None:
            if link.history is not None:
                return -1
            whole = self.number(link.source)
            return -1 if whole < 0 else tape.append((read, whole, link.window))
        node = cell.node
        n = tape.leaves.get(node)
        if n is not None:
            return n
        array = store.arrays.get(node)
        if array is None:
            return tape.give(node, constant=True) if node.op == "const" else -1
        return tape.give(node, constant=False) if array.type == node.type else -1

    def operate(
        self, expression: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> int:
        """The number of an operation's result; -1 where it is not for this tape: it is part of a
        gradient's way, or more than its operands decides what it gives."""
        if expression not in _recordable or autocast_dtype() is not None:
            return -1
        if len(self.tape.inputs) > self._looked:
            self._let_go()
        operands = args
        if kwargs:
            operands = *args, *kwargs.values()
        key: list[Any] = [Named(expression, tuple(kwargs)) if kwargs else expression]
        for x in operands:
            kind = type(x)
            if isinstance(x, Cell):
                if x._requires_grad:
                    return -1
                n = x.number if x.recording is self else self.number(x)
                if n < 0:
                    return -1
                key.append(n)
            elif kind in _NUMBERS:
                key.append(number_key(x))
            elif x is None or kind is str or (kind is tuple and {*map(type, x)} <= {int}):
                key.append(x)
            else:
                return -1
        try:
            return self.tape.append(tuple(key))
        except (GraphError, TensorError):  # told by the operation itself, with its name and place
            return -1

    def put(self, cell: Cell, n: int) -> None:
        """That value is the cell's."""
        cell.recording, cell.number, cell.shown = self, n, self.tape.types[n]
        self._cells.append((n, weakref.ref(cell)))
        if len(self._cells) > LONGEST:
            self.compute()

    def overwrite(self, cell: Cell, n: int) -> None:
        """Give a cell, and what shares its memory, that value instead of its own."""
        link = cell.link
        if link is not None:
            cell, whole = link.source, self.number(link.source)
            n = self.tape.append((write, whole, n, link.window))
            assert min(whole, n) >= 0, "what a window shows is on the tape, so its source is"
        if cell.recording is None:
            cell.settled()
            del cell.node
        cell.owns = True
        self.put(cell, n)
        stale(cell)

    def _let_go(self) -> None:
        """Begin anew where nobody can ask for what is on the tape, which holds what it was
        given."""
        alive = any(c.recording is self for _, ref in self._cells if (c := ref()) is not None)
        if self._cells and not alive:
            self.tape, self._cells, self._looked = self.tape.tree.begin(), [], 0
        self._looked = len(self.tape.inputs) + FEW

    def _alive(self) -> dict[int, Cell]:
        found = ((n, ref()) for n, ref in self._cells)
        return {n: c for n, c in found if c is not None and c.recording is self and c.number == n}

    def _end(self) -> None:
        if self._context.recordings.get(self.device) is self:
            del self._context.recordings[self.device]

    def make_nodes(self) -> None:
        """Make the node of each cell whose value is on the tape."""
        with store.lock:
            alive = self._alive()
            nodes = self.tape.nodes(alive)
            for n, cell in alive.items():
                cell.recording, cell.node = None, nodes[n]
                if cell.owns:
                    cell.node = store.barrier(nodes[n])
                    owners[cell.node] = weakref.ref(cell)
                cell._waits = self._context.unsettled
                cell._waits[cell.serial] = cell
            self._end()

    def compute(self) -> None:
        """Begin to compute the value of each of these cells."""
        settle()
        alive = self._alive()
        if alive:
            tape, numbers = self.tape, tuple(alive)
            plan, order = tape.tree.plan(tape.at, numbers, lambda: self._compiled(numbers))
            leaves = tape.inputs
            arrays = plan.run([store.arrays[leaves[i]] for i in order])
            with store.lock:
                for (n, cell), array in zip(alive.items(), arrays, strict=True):
                    if cell.recording is self and cell.number == n:
                        leaf = cell.node = store.holding(array)
                        cell.recording, cell.owns = None, True
                        owners[leaf] = weakref.ref(cell)
                        stale(cell)
        self._end()

    def _compiled(self, numbers: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
        """The plan for these values, and which inputs it takes."""
        nodes, inline = self.tape.nodes(numbers), Inlining()
        outputs = [inline(nodes[n]) for n in numbers]
        assert None not in outputs, "a tape's values are made of arrays"
        inputs = tuple([inline.add_input(leaf) for leaf in inline.inputs])
        made = tuple([n for n in outputs if n is not None])
        plan = self.engine.plan(GraphRequest(made, inputs))
        places = {leaf: i for i, leaf in enumerate(self.tape.inputs)}
        return plan, tuple([places[leaf] for leaf in inline.inputs])


def tape_of(device: str) -> CellTape:
    """This thread's tape of a device."""
    recordings = here.context.recordings
    found = cast("CellTape | None", recordings.get(device))
    if found is None or engines.get(device, found.engine) is not found.engine:
        found = recordings[device] = CellTape(device)
    return found
