"""Training one model on many ranks by what a strategy says, with script and model as they are."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import astuple
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.tile.node import Node
from stack.compiler.program import GraphRequest
from stack.framework import Tensor, store
from stack.framework.cell import Cell, add_settler, changed, here, settle
from stack.framework.devices import engine
from stack.framework.nn import Module
from stack.framework.optim.optimizer import Optimizer, optimizer_of
from stack.framework.realize import compute_before, isolate, realize, refuse_in_trace
from stack.framework.request import Inlining, depends
from stack.framework.spread import Source, divisions, parts
from stack.parallel.agree import (
    Agreement,
    Meeting,
    agree_on_arguments,
    agree_on_function,
    agree_on_given,
    agree_on_model,
    agree_on_optimizers,
    agree_on_strategy,
    among_all,
    take_values,
)
from stack.parallel.data import device_of
from stack.parallel.divide import (
    Explained,
    Layout,
    Stage,
    check_axes,
    check_patterns,
    divide,
    in_order,
    layouts_of,
)
from stack.parallel.mesh import Mesh
from stack.parallel.overlap import Pace
from stack.parallel.pipeline import summed_backward
from stack.parallel.placement import WHOLE, Packed, local_type, plain
from stack.parallel.ranks import Ranks
from stack.parallel.refusals import say_raised, told
from stack.parallel.scatter import in_place, placed_value, whole_value
from stack.parallel.stages import Lane, lanes
from stack.parallel.strategy import AxisLayout, Strategy
from stack.runtime.array import Array

T = TypeVar("T")


def parallel(model: Module, mesh: Mesh, strategy: Strategy, *optimizers: Optimizer) -> Parallel:
    """Spread a model and its optimizers over the ranks of a mesh; all of them call it, before the
    first step. An optimizer that is made of spread parameters later, by all ranks, is spread, too.

    From then on every function under `jit` that reads parameters or states is computed by the ranks
    together: the function is traced as on one device, with whole tensors, and each rank computes
    its part of that. All ranks call it with the same arguments, those of the whole batch, and get
    the same results, which are those of one device up to the order of sums; random draws are those
    of one device. Raises InvalidCall for a strategy that does not fit the mesh, the model or its
    sizes, on every rank, and when the ranks' models, optimizers or strategies differ.
    """
    with told():
        _check_given(model, mesh, strategy, *optimizers)
    with among_all(mesh) as ranks:
        agree_on_strategy(ranks, str(strategy))
        agree_on_model(ranks, model)
        agree_on_optimizers(ranks, model, optimizers)
        device, layouts = ranks.made(lambda: _fitted(model, mesh, strategy, optimizers))
        pace = _slowest(ranks, mesh, device)
    order, pipe = in_order(strategy), strategy.pipeline
    lines: list[Ranks] = []
    of_lanes: dict[Lane, Ranks] = {}
    try:
        for axis in order:
            lines.append(Ranks.join(mesh, axis.name, device))
            group = lines[-1].group
            if group is not None:
                take_values(group, model, device)
        if pipe is not None and pipe.size > 1:
            for lane in lanes(pipe.table):
                of_lanes[lane] = Ranks.join(mesh, pipe.name, device)
        return Parallel(strategy, device, order, lines, layouts, model, optimizers, of_lanes, pace)
    except BaseException:
        for line in (*of_lanes.values(), *lines):
            line.leave()
        raise


def _check_given(model: object, mesh: object, strategy: object, *optimizers: object) -> None:
    """Raise InvalidCall for what is none of the things that `parallel` takes."""
    given: list[tuple[str, object, type, str]] = [
        ("model", model, Module, "give it as it is for one device"),
        ("mesh", mesh, Mesh, "Mesh.present(**strategy.sizes) makes one"),
        ("strategy", strategy, Strategy, "Strategy.parse makes one of a text"),
        *(("optimizer", x, Optimizer, "give each by itself") for x in optimizers),
    ]
    for what, value, kind, how in given:
        if not isinstance(value, kind):
            raise InvalidCall(
                "`parallel` takes a model, a mesh, a strategy and optimizers, and was given a "
                f"{type(value).__name__} for the {what}, which is a {kind.__name__}; {how}"
            )


def _fitted(
    model: Module, mesh: Mesh, strategy: Strategy, optimizers: Sequence[Optimizer]
) -> tuple[str, dict[Tensor, Layout]]:
    """The model's device, and where this rank stores values. Raises InvalidCall for a strategy that
    does not fit."""
    check_axes(dict(zip(mesh.axes, mesh.sizes, strict=True)), strategy)
    device = device_of([*model.parameters(), *model.buffers()])
    check_patterns(model, strategy)
    pipe = strategy.pipeline
    place = 0 if pipe is None else mesh.place(pipe.name)
    layouts = layouts_of(model, in_order(strategy), optimizers, place)
    if any(isinstance(divisions.get(cell.serial), Parallel) for cell in layouts):
        raise InvalidCall(
            "the model is spread already, by a call of `parallel` whose block has not ended; end "
            "it before another one begins"
        )
    return device, layouts


def _slowest(ranks: Agreement, mesh: Mesh, device: str) -> Pace:
    """The pace of the ranks, the same on all of them."""
    host = "" if mesh.world is None else mesh.world.host
    is_across = len(set(ranks.every(host))) > 1
    own = Pace.of(engine(device).device.info, is_across)
    every = ranks.every(json.dumps(astuple(own)))
    return Pace.slowest(Pace(*json.loads(each)) for each in every)


def _newest(model: Module, known: Sequence[Optimizer]) -> tuple[Optimizer, ...]:
    """A model's optimizers: the known ones, but those that newer ones have taken all its parameters
    from, and these."""
    own = {p.serial for p in model.parameters()}
    newest = {id(o): o for o in map(optimizer_of.get, own) if o is not None}
    kept = [o for o in known if id(o) in newest or not o.shards or own.isdisjoint(_moved(o))]
    for p in model.parameters():
        o = optimizer_of.get(p.serial)
        if o is not None and all(o is not k for k in kept):
            kept.append(o)
    return tuple(kept)


def _moved(optimizer: Optimizer) -> list[int]:
    """The serial numbers of an optimizer's parameters."""
    return [p.serial for group in optimizer.param_groups for p in group["params"]]


class Parallel:
    """A model spread over ranks. `explained` has what each captured function exchanges. Use it in a
    `with` block, at whose end every rank has the whole model again."""

    def __init__(
        self,
        strategy: Strategy,
        device: str,
        axes: Sequence[AxisLayout],
        lines: Sequence[Ranks],
        layouts: Mapping[Tensor, Layout],
        model: Module,
        optimizers: Sequence[Optimizer],
        of_lanes: Mapping[Lane, Ranks],
        pace: Pace,
    ) -> None:
        """Use `parallel`."""
        self._model, self._optimizers = model, tuple(optimizers)
        self._lanes, self._pace = dict(of_lanes), pace
        self.strategy = strategy
        self.explained: list[Explained] = []
        self._device, self._axes, self._lines = device, axes, lines
        self._place(layouts)
        own = engine(device)
        self._ranks = [own.put(np.int64(line.rank), DType.I64) for line in lines]
        self._is_open = True
        self._ended: _Ended | None = None
        self._parts: dict[Tensor, Node] = {}
        """The leaves of which this rank has a part, by the values that they are of."""
        self._divided: dict[Tensor, Node] = {}
        """The leaf that each value had when it was divided; captured functions leave it there."""
        self.context = here.context
        self._scatter()
        add_settler(self)

    def divided(
        self, function: str, request: GraphRequest, sources: Sequence[Source]
    ) -> tuple[GraphRequest, list[Source]]:
        """What this rank computes of a captured function, and its numbers along the axes."""
        layouts = [self._by_serial.get(s.serial) if isinstance(s, Cell) else None for s in sources]
        arguments = [s if isinstance(s, int) else None for s in sources]
        groups = [line.name for line in self._lines]
        lanes = {lane: ranks.name for lane, ranks in self._lanes.items()}
        stage = Stage(self._stage, lanes)
        pairs = zip(self._axes, self._lines, strict=True)
        numbers = {axis.name: line.rank for axis, line in pairs if axis.shares}
        made: tuple[GraphRequest, Explained] | None = None
        try:
            given = (function, request, layouts, arguments, self._axes, groups, stage, numbers)
            made = divide(*given, self._pace)
        except Exception as error:  # noqa: BLE001 - raised again, on all ranks
            failure = error
        if made is None or made[1].calls:
            # Ranks that have something else may find a reason of their own for a failure.
            self._agree_on(function, request)

            def known() -> tuple[GraphRequest, Explained]:
                if made is None:
                    raise failure
                return made

            made = self._agreement(Meeting.TRACE).made(known)
        found, said = made
        self.explained.append(said)
        return found, [r for r, line in zip(self._ranks, self._lines, strict=True) if line.size > 1]

    def planned(self, make: Callable[[], T]) -> T:
        """What this rank makes of the request that was divided last. Raises on all ranks what is
        raised on one, as a budget that its part does not meet."""
        return self._agreement(Meeting.TRACE).made(make) if self.explained[-1].calls else make()

    def called(self, function: str, arguments: Sequence[Array | np.ndarray | None]) -> None:
        """Raise InvalidCall on all ranks where they call a function with other values, as with a
        batch of each rank's own."""
        if self.explained[-1].calls:
            own = engine(self._device)
            values = [own.get(x) if isinstance(x, Array) else x for x in arguments]
            agree_on_arguments(self._agreement(Meeting.TRACE), function, values)

    def _agree_on(self, function: str, request: GraphRequest) -> None:
        """Raise InvalidCall on all ranks where they have captured different functions."""
        agree_on_function(self._agreement(Meeting.TRACE), self._model, function, request)

    def _meet(self, meeting: Meeting) -> None:
        """All ranks come to this, with what they have begun done. Those of a pipeline wait for
        messages in lanes of their own, where nobody would hear that another one has come here."""
        engine(self._device).sync()
        for lane in self._lanes.values():
            if lane.group is not None:
                lane.group.meet(meeting)

    def _agreement(self, meeting: Meeting) -> Agreement:
        self._meet(meeting)
        joined = [line.group for line in self._lines if line.group is not None]
        return Agreement(joined, self.rank, meeting)

    def backward(self, loss_of: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        """The loss of the arguments, on all ranks, whose gradients the parameters get.

        With a pipeline its micro-batches, which are equal parts of the arguments' first axis, are
        taken one after the other: losses and gradients are the sums of theirs. Then it is called
        within a function under `jit`, once, while values are divided. Raises InvalidCall for an
        axis that they cannot divide.
        """
        pipe = self.strategy.pipeline
        if pipe is None:
            loss = loss_of(*arguments)
            loss.backward()
            return loss.detach()
        if not any(divisions.get(cell.serial) is self for cell in self._layouts):
            raise InvalidCall(
                "every rank has the whole model within `gathered()` and behind `close`; call "
                "`backward` of a loss there, and that of a pipeline while values are divided"
            )
        parameters = dict(self._model.named_parameters())
        batches = pipe.table.batches
        return summed_backward(loss_of, arguments, parameters, pipe.chunk, batches)

    @property
    def micro_batches(self) -> int:
        """Of how many parts `backward` sums the losses: what a mean is to be divided by."""
        pipe = self.strategy.pipeline
        return 1 if pipe is None else pipe.table.batches

    # what a script for data parallelism asks for

    @property
    def rank(self) -> int:
        """This rank's number among all ranks of the mesh."""
        number = 0
        for axis in self.strategy.axes:
            line = next(x for x, a in zip(self._lines, self._axes, strict=True) if a is axis)
            number = number * axis.size + line.rank
        return number

    @property
    def size(self) -> int:
        """All ranks of the mesh."""
        return math.prod(axis.size for axis in self.strategy.axes)

    def part(self, array: Any) -> Any:
        """The batch itself: functions take the whole of it, and each rank its part within."""
        return array

    def mean(self, x: Tensor) -> Tensor:
        """The value itself, without gradient: results of a function are those of the whole
        batch."""
        return x.detach()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on a rank; all ranks call it, and wait for each other."""
        found = flag
        self._meet(Meeting.FLAG)
        for line in self._lines:
            if line.group is not None:
                every = line.group.all_gather(np.array([found]), name=Meeting.FLAG)
                found = bool(every.any())
        return found

    @property
    def sent(self) -> Counter[tuple[str, str]]:
        """The bytes that this rank has sent so far, by axis and kind of call, as the ranks' engines
        counted them: with those of `explained` times the calls of its functions. What is begun is
        done first."""
        settle()
        engine(self._device).sync()
        every = (*self._lines, *self._lanes.values())
        return Counter({(x.name, kind): n for x in every for kind, n in x.sent.items()})

    # values

    @property
    def _stage(self) -> int:
        """This rank's number in the pipeline."""
        pairs = zip(self._lines, self._axes, strict=True)
        return next((line.rank for line, axis in pairs if axis.schedule), 0)

    def _place(self, layouts: Mapping[Tensor, Layout]) -> None:
        """Values are stored so from now on."""
        self._layouts = dict(layouts)
        self._by_serial = {cell.serial: layout for cell, layout in layouts.items()}

    def _place_again(self, meeting: Meeting) -> None:
        """Find where values are stored that model and optimizers may have been given, on any rank,
        also by optimizers that were made since. Raises InvalidCall on all ranks where theirs differ
        then, or do not fit."""
        optimizers = _newest(self._model, self._optimizers)

        def found() -> dict[Tensor, Layout]:
            check_patterns(self._model, self.strategy)
            return layouts_of(self._model, self._axes, optimizers, self._stage)

        ranks = self._agreement(meeting)
        agree_on_model(ranks, self._model)
        agree_on_optimizers(ranks, self._model, optimizers)
        self._place(ranks.made(found))
        self._optimizers = optimizers

    def _scatter(self) -> None:
        """Keep this rank's part of each value."""
        settle()
        realize(*self._layouts)
        isolate(cell for cell in self._layouts if cell.node not in store.arrays)
        compute_before({cell.node for cell in self._layouts})  # a copy of the model, for instance
        for cell in self._layouts:
            self._divide(cell)
            divisions[cell.serial] = self
        self._divided = {cell: cell.node for cell in self._layouts}
        changed()

    def _divide(self, cell: Tensor) -> None:
        """Keep this rank's part of a value that is there."""
        layout = self._layouts[cell]
        value = engine(self._device).get(store.arrays[cell.node])
        for p, line in zip(layout, self._lines, strict=True):
            value = placed_value(value, p, line.size, line.rank)
        self._keep(cell.node, value)
        if any(plain(p) != WHOLE for p in layout):
            self._parts[cell] = cell.node

    def settle(self) -> None:
        """Keep this rank's part of each value that was given outside of captured functions: by
        `load_state_dict`, or by a change in place, which all ranks make. What such a value is
        computed of is gathered for it, also where it stays whole: as parameters do that an
        optimizer moves whose states are in parts."""
        given = [cell for cell, leaf in self._parts.items() if cell.node is not leaf]
        own = set(self._parts.values())
        whole = [
            cell
            for cell in self._layouts
            if own and cell.node not in store.arrays and cell not in self._parts
            if depends([cell.node], own)
        ]
        if not given and not whole:
            return
        if self._ended is not None:
            for cell in given:
                if not depends([cell.node], parts):  # it is whole again
                    del self._parts[cell], divisions[cell.serial]
                    changed()
            return
        changes = [*given, *whole]
        below = Inlining()
        for cell in changes:
            below(cell.node)
        read = {cell: leaf for cell, leaf in self._parts.items() if leaf in below.fed}
        kept = {leaf: store.arrays[leaf] for leaf in read.values()}
        try:
            if any(p != WHOLE for cell in read for p in self._layouts[cell]):
                self._meet(Meeting.GIVEN)
            for cell, leaf in read.items():
                self._keep(leaf, self._whole(cell, kept[leaf], Meeting.GIVEN))
            isolate(cell for cell in changes if cell.node not in store.arrays)
        finally:
            store.arrays.update(kept)
        compute_before({cell.node for cell in given})
        for cell in given:
            self._divide(cell)

    def _gather(self, meeting: Meeting) -> None:
        """Get every value whole; all ranks call it."""
        refuse_in_trace("values of which each rank has a part were made whole")
        settle()
        self.settle()
        ranks = self._agreement(meeting)
        agree_on_optimizers(ranks, self._model, self._optimizers)
        given = {cell for cell, leaf in self._divided.items() if cell.node is not leaf}
        agree_on_given(ranks, self._model, given)
        for cell in self._layouts:
            if cell in self._parts:
                self._keep(cell.node, self._whole(cell, store.arrays[cell.node], meeting))
            divisions.pop(cell.serial, None)
        self._parts.clear()
        changed()

    def _whole(self, cell: Tensor, part: Array, meeting: Meeting) -> Any:
        """The value of which the ranks have parts, for what they come together."""
        value, layout = engine(self._device).get(part), self._layouts[cell]
        types = [cell.node.type]
        for p, line in zip(layout, self._lines, strict=True):
            types.append(local_type(types[-1], p, line.size))
        for k in reversed(range(len(layout))):
            group = self._lines[k].group
            p = layout[k]
            if group is None or p == WHOLE:
                continue
            if self._axes[k].schedule and isinstance(p, Packed):
                own = np.ascontiguousarray(value)
                whole = in_place(own, p).view(np.uint8)  # bits, so that -0 stays so
                value = group.all_gather(whole, name=meeting).max(0).view(own.dtype)
            else:
                every = list(group.all_gather(np.ascontiguousarray(value), name=meeting))
                value = whole_value(every, p, types[k])
        return value.reshape(cell.node.shape)

    def _keep(self, leaf: Node, value: Any) -> None:
        store.arrays[leaf] = engine(self._device).put(value, leaf.dtype)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Within the block every rank has the whole values, to read them or to save a `state_dict`,
        and may give model and optimizers further parameters, and make optimizers; at its end they
        are divided again. All ranks enter it. Raises InvalidCall on all of them for what does not
        fit then, or differs between them."""
        with self._gathered(Meeting.GATHERED):
            yield

    @contextmanager
    def taken(self) -> Iterator[None]:
        """As `gathered`, for an optimizer that takes parameters."""
        with self._gathered(Meeting.OPTIMIZER):
            yield

    @contextmanager
    def _gathered(self, meeting: Meeting) -> Iterator[None]:
        self._gather(meeting)
        try:
            yield
            self._place_again(meeting)
        finally:
            self._scatter()

    def close(self) -> None:
        """Give every rank the whole model, and leave the groups. All ranks call it. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._gather(Meeting.CLOSE)
        finally:
            self._leave()

    def _leave(self) -> None:
        for line in (*self._lanes.values(), *self._lines):
            line.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """After an error nothing is gathered: other ranks may not come to it."""
        if error is None:
            self.close()
            return
        self._is_open = False
        self._ended = _Ended(self, type(error).__name__)
        for cell in self._layouts:
            if cell in self._parts:
                divisions[cell.serial] = self._ended
            else:
                divisions.pop(cell.serial, None)
        changed()
        say_raised(error)
        self._leave()


class _Ended:
    """Who has spread values whose other parts are out of reach behind an error, of a type of this
    name. What is given a whole value is whole again."""

    def __init__(self, of: Parallel, error: str) -> None:
        self.settle, self.context, self._error = of.settle, of.context, error

    def divided(
        self, function: str, request: GraphRequest, sources: Sequence[Source]
    ) -> tuple[GraphRequest, list[Source]]:
        raise InvalidCall(
            f"{function!r} reads values of which this rank has a part: the block of `parallel` has "
            f"ended by {self._error}, and the other ranks' parts are out of reach; give model and "
            "optimizers whole values, as by `load_state_dict`, or make them anew"
        )

    def taken(self) -> nullcontext[None]:
        """An optimizer may be made of values that are given whole behind this."""
        return nullcontext()

    def planned(self, make: Callable[[], T]) -> T:
        raise AssertionError("nothing was divided")

    def called(self, function: str, arguments: Sequence[Array | np.ndarray | None]) -> None:
        raise AssertionError("nothing was divided")
