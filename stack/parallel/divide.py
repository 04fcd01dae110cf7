"""Which part of a captured function a rank computes, by a strategy. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import count
from types import MappingProxyType

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.tile.node import Node, Type, node, rebuild, substitute, toposort
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.framework import Tensor
from stack.framework.flat import FlatParameters, homes
from stack.framework.nn import MixtureOfExperts, Module
from stack.framework.optim.optimizer import Optimizer
from stack.ir.simplify import simplify
from stack.ops import is_exchange
from stack.ops.sharding import outer_size
from stack.parallel.gathers import gathered_for_uses
from stack.parallel.heads import by_heads, check_heads
from stack.parallel.overlap import Pace
from stack.parallel.partition import Spread, calls, partitioned, rank_input, traffic
from stack.parallel.pipeline import MicroBatch, micro_batch_in, rank_step
from stack.parallel.placement import (
    SUM,
    WHOLE,
    Owned,
    Packed,
    Part,
    Placement,
    Row,
    Sharded,
    Shares,
    aligned,
    local_type,
    part_of,
)
from stack.parallel.ring import ringed
from stack.parallel.stages import BEHIND, FREE, Lane, State
from stack.parallel.strategy import AxisLayout, Strategy
from stack.parallel.updates import updated_in_buckets
from stack.parallel.way import Way

EXPERTS_NDIM = 3
"""The axes of a parameter that has a matrix for each expert."""

Layout = tuple[Placement, ...]
"""A value's placements along the axes, in the order in which a graph is divided: each one is of
what a rank has after those before."""


@dataclass(frozen=True, slots=True)
class Explained:
    """What one call of a captured function exchanges: bytes that this rank sends and calls that it
    makes, by axis and kind (of an "all_to_all_v", whose counts are data, the most that it can send:
    `Parallel.sent` has what it did); operators without a rule, which every rank computes as a
    whole, with the bytes of their results."""

    function: str
    sent: Mapping[tuple[str, str], int]
    calls: Mapping[tuple[str, str], int]
    whole: Mapping[str, int]
    chosen: Sequence[str] = ()
    """What the strategy left open, and how it was decided."""

    def __str__(self) -> str:
        lines = [f"{self.function}: a rank sends {sum(self.sent.values())} bytes"]
        for (axis, kind), nbytes in sorted(self.sent.items()):
            most = "at most " if kind == "all_to_all_v" else ""
            lines.append(f"  {axis}: {self.calls[axis, kind]} {kind}, {most}{nbytes} bytes")
        lines += [f"  {chosen}" for chosen in self.chosen]
        for op, nbytes in sorted(self.whole.items()):
            lines.append(f"  {op} has no rule: {nbytes} bytes are computed on every rank")
        return "\n".join(lines)


def in_order(strategy: Strategy) -> list[AxisLayout]:
    """The axes in the order in which a graph is divided: a pipeline first, whose ranks have graphs
    of their own, then a ring, since attention is found in whole graphs. Heads are divided behind
    tensors, which have them, too, and then rows, as they divide what is left of each parameter.
    Unequal shares come last: until then all ranks have one graph, and divide it alike."""

    def place(axis: AxisLayout) -> int:
        if axis.schedule or axis.attention == "ring":
            return -2 if axis.schedule else -1
        if axis.shares:
            return 3
        return 2 if axis.divides_rows else int(axis.attention == "heads")

    return sorted(strategy.axes, key=place)


@dataclass(frozen=True, slots=True)
class Stage:
    """A rank's place in a pipeline, and what the devices' engines call the ranks in each lane."""

    rank: int = 0
    lanes: Mapping[Lane, str] = field(default_factory=dict)


def divide(
    function: str,
    request: GraphRequest,
    layouts: Sequence[Layout | None],
    arguments: Sequence[int | None],
    axes: Sequence[AxisLayout],
    groups: Sequence[str],
    stage: Stage = Stage(),
    numbers: Mapping[str, int] = MappingProxyType({}),
    pace: Pace | None = None,
) -> tuple[GraphRequest, Explained]:
    """What a rank computes of a captured function.

    Of each input `layouts` has where it is stored, None where every rank has the whole, and
    `arguments` its number where it is an argument. `groups` has what the devices' engines call the
    ranks along each axis. Further inputs of the result are the rank's numbers along the axes of
    more than one rank. `numbers` has this rank's along the axes with shares. By the ranks' `pace`
    is decided in how many parts rows travel where the strategy does not say; without one they
    travel in one. Raises InvalidCall for an argument that cannot be divided.
    """
    given = (function, request, layouts, arguments, axes, groups, stage, numbers, pace)
    return _Dividing(*given).divided()


class _Dividing:
    """A function cut along one axis after the other.

    One that computes micro-batches has three graphs, each of which is cut for itself: that of a
    micro-batch, what is computed before them, and what behind them.
    """

    def __init__(
        self,
        function: str,
        request: GraphRequest,
        layouts: Sequence[Layout | None],
        arguments: Sequence[int | None],
        axes: Sequence[AxisLayout],
        groups: Sequence[str],
        stage: Stage,
        places: Mapping[str, int],
        pace: Pace | None,
    ) -> None:
        self.function, self.request, self.stage = function, request, stage
        self.places, self.pace = places, pace
        self.layouts, self.arguments = layouts, arguments
        self.axes, self.groups = axes, groups
        self.numbers = count()
        self.whole: Counter[str] = Counter()
        self.chosen: dict[str, None] = {}
        self.turn: dict[str, int] = {}
        """Of exchanges of a pipeline's ranks, whose graphs differ, by name."""
        self.first = 0
        """The `turn` of the first one of the graph that is cut."""
        self.returned: Mapping[Node, int] = {}
        """Of the graph that is cut what a pipeline sends back, with the chunks that compute it."""

    def divided(self) -> tuple[GraphRequest, Explained]:
        inputs = list(self.request.inputs)
        nodes = micro_batch_in(self.request.outputs)
        if nodes:
            outputs = self._in_micro_batches(inputs, nodes)
        else:
            given = list(zip(inputs, self.layouts, strict=True))
            computed = dict(zip(inputs, self.arguments, strict=False))
            wanted = dict(self.request.updates)
            placed = [self.layouts[wanted[i]] if i in wanted else None for i in range(self._count)]
            outputs = self._cut(self.request.outputs, given, placed, computed)
            outputs = self._updated(outputs)
            for axis, group in zip(self.axes, self.groups, strict=True):
                if axis.size > 1 and axis.parameters == "rows":
                    outputs = gathered_for_uses(outputs, group)
        own = [self._local(n, layout) for n, layout in zip(inputs, self.layouts, strict=True)]
        own += [self._rank(k) for k, axis in enumerate(self.axes) if axis.size > 1]
        places = {
            group: (self.stage.rank if axis.schedule else 0, axis.size)
            for axis, group in zip(self.axes, self.groups, strict=True)
        }
        for axis in self.axes:
            if axis.schedule:
                place = self.stage.rank, axis.size
                places |= dict.fromkeys(self.stage.lanes.values(), place)
        counted = traffic(outputs, places), calls(outputs), self.whole
        said = Explained(self.function, *counted, tuple(self.chosen))
        return GraphRequest(tuple(outputs), tuple(own), self.request.updates), said

    @property
    def _count(self) -> int:
        return len(self.request.outputs)

    def _rank(self, k: int) -> Node:
        """The input for this rank's number along an axis."""
        before = sum(axis.size > 1 for axis in self.axes[:k])
        return rank_input(len(self.request.inputs) + before)

    def _local(self, n: Node, layout: Layout | None, axes: int | None = None) -> Node:
        """The input for what this rank has of one, after so many of the axes."""
        for axis, p in zip(self.axes[:axes], layout or (), strict=False):
            if axis.size > 1:
                n = g.input(n["slot"], local_type(n.type, p, axis.size))
        return n

    def _cut(
        self,
        outputs: Sequence[Node],
        inputs: Sequence[tuple[Node, Layout | None]],
        placed: Sequence[Layout | None],
        arguments: Mapping[Node, int | None],
        in_chunks: bool = False,
    ) -> tuple[Node, ...]:
        """The rank's graph, with further outputs that are computed for other ranks alone. `inputs`
        have their layouts, `placed` has those of the outputs, and `arguments` the numbers of the
        arguments among the inputs. Along a pipeline nothing is cut that is cut `in_chunks`."""
        outputs, placed = tuple(outputs), list(placed)
        for k, axis in enumerate(self.axes):
            if axis.size == 1 or (axis.schedule and in_chunks):
                continue
            if axis.attention:
                outputs = self._simplified(outputs)
            now = [self._local(n, layout, k) for n, layout in inputs]
            stored = [WHOLE if layout is None else layout[k] for _, layout in inputs]
            places = dict(zip(now, stored, strict=True))
            if axis.shards:
                check_heads(outputs, places, axis.size, axis.name)
            numbers = [arguments.get(n) for n, _ in inputs]
            spread = Spread(
                axis.size,
                self.groups[k],
                places,
                _computed(self.function, now, numbers, self.axes, axis),
                [WHOLE if layout is None else layout[k] for layout in placed],
                self.stage.rank if axis.schedule else None,
                Shares(axis.shares, self.places[axis.name]) if axis.shares else None,
                axis.shadows,
                axis.parts or 1,
                self.pace if axis.parts is None else None,
            )
            # Stages have graphs of their own, which would choose otherwise what they exchange
            alike = {
                n: Way((WHOLE,) * len(n.srcs), WHOLE)
                for n in toposort(outputs)
                if is_exchange(n) and n["name"] in self.turn
            }
            name = self._name(axis)
            rank = self._rank(k)
            if axis.attention:
                way = ringed if axis.attention == "ring" else by_heads
                found = way(outputs, spread, rank, name, alike, axis.name)
            else:
                found = partitioned(outputs, spread, rank, name, only=alike)
            self.whole.update(found.whole)
            if found.said:
                self.chosen[f"{axis.name}: {found.said}"] = None
            outputs = found.outputs
            if axis.schedule:
                outputs = self._in_turn(outputs, found.made.values())
                placed += [None] * (len(outputs) - len(placed))
            self.returned = {
                x: self.returned[n] for (n, _), x in found.made.items() if n in self.returned
            }
        return outputs

    def _updated(self, outputs: tuple[Node, ...]) -> tuple[Node, ...]:
        """The outputs, in which an optimizer's rows come bucket after bucket where parameters are
        whole."""
        for axis, group in zip(self.axes, self.groups, strict=True):
            if axis.size > 1 and axis.states == "rows" and axis.parameters != "rows":
                outputs = updated_in_buckets(outputs, group)
        return outputs

    def _simplified(self, outputs: tuple[Node, ...]) -> tuple[Node, ...]:
        """The outputs in the form in which attention is found."""
        made = simplify((*outputs, *self.returned))
        self.returned = dict(zip(made[len(outputs) :], self.returned.values(), strict=True))
        return made[: len(outputs)]

    def _name(self, axis: AxisLayout) -> Callable[[str], str]:
        def name(what: str) -> str:
            if not axis.schedule:
                return f"{what}: exchange {next(self.numbers)} of {self.function!r}"
            made = f"{what}: exchange {len(self.turn)} of stages of {self.function!r}"
            self.turn[made] = self.first + len(self.turn)
            return made

        return name

    def _in_turn(self, outputs: Sequence[Node], made: Iterable[Node]) -> tuple[Node, ...]:
        """The outputs, whose exchanges among the ranks of a pipeline have an order that all ranks
        share; and those whose values this rank does not need."""
        needed = set(toposort(outputs))
        own = [n for n in toposort(made) if is_exchange(n) and n["name"] in self.turn]
        own = [n for n in own if n not in needed]
        done: dict[Node, Node] = {}
        for n in toposort((*outputs, *own)):
            srcs = tuple(done[s] for s in n.srcs)
            if is_exchange(n) and n["name"] in self.turn:
                turn = self.turn[n["name"]]
                done[n] = node(n.op, n.type, srcs, **{**dict(n.attrs), "turn": turn})
            else:
                done[n] = rebuild(n, srcs)
        return tuple(done[n] for n in (*outputs, *own))

    # micro-batches

    def _in_micro_batches(self, inputs: Sequence[Node], nodes: Sequence[Node]) -> tuple[Node, ...]:
        """The rank's graph of a function in which `nodes` stand for what micro-batches compute."""
        found: MicroBatch = nodes[0]["of"]
        operands = nodes[0].srcs
        pipe = next(axis for axis in self.axes if axis.schedule)
        table = pipe.table
        parameters = {p: self._parameter(p, name) for p, name in found.parameters.items()}
        stored = [parameters.get(n) for n in found.inputs]

        # before: the operands, a parameter on the rank that has its chunk
        given = list(zip(inputs, self.layouts, strict=True))
        before = self._cut(operands, given, stored, {})

        # one micro-batch: gradients and loss are sums over what the ranks have
        numbers = dict(zip(inputs, self.arguments, strict=False))
        micro = {
            n: numbers.get(x) if n in found.arguments else None
            for n, x in zip(found.inputs, operands, strict=True)
        }
        free = [None if layout is None else (WHOLE, *layout[1:]) for layout in stored]
        sums = [
            self._loss_sums(pipe, found.chunk),
            *(self._sums(p, layout) for p, layout in parameters.items() if p in found.gradients),
            *(self._left(s, pipe) for s in found.states.values()),
        ]
        inside = [(WHOLE, *layout[1:]) for layout in sums]
        slots = {n: g.input(INSIDE + n["slot"], n.type) for n in found.inputs}
        count = len(found.outputs)
        apart = substitute([*found.outputs, *found.returned], slots)
        self.returned = dict(zip(apart[count:], found.returned.values(), strict=True))
        outputs = self._cut(
            apart[:count],
            [(slots[n], layout) for n, layout in zip(found.inputs, free, strict=True)],
            inside,
            {slots[n]: number for n, number in micro.items()},
            in_chunks=True,
        )
        loss, *others = outputs
        gradients, left = others[: len(found.gradients)], others[len(found.gradients) :]
        local = {
            n: self._local(slots[n], layout) for n, layout in zip(found.inputs, free, strict=True)
        }
        own = MicroBatch(
            loss,
            found.chunk,
            {local[p]: d for p, d in zip(found.gradients, gradients, strict=True)},
            tuple(local.values()),
            {local[p]: name for p, name in found.parameters.items()},
            tuple(local[n] for n in found.arguments),
            self.returned,
            {
                local[leaf]: State(value, s.chunk)
                for (leaf, s), value in zip(found.states.items(), left, strict=True)
            },
            None if found.draws is None else (local[found.draws[0]], found.draws[1]),
        )
        self.returned = {}
        given_local = dict(zip(local.values(), before, strict=False))
        results, sent = rank_step(
            own, given_local, table, pipe.chunk, self.stage.rank, self.stage.lanes, self.function
        )

        # behind: what is made of the sums, which only their ranks have
        self.first = BEHIND
        taken = {n: g.input(RESULTS + n["output"], n.type) for n in nodes}
        leaves = [g.input(RESULTS + i, n.type) for i, n in enumerate(found.outputs)]
        wanted = dict(self.request.updates)
        placed = [self.layouts[wanted[i]] if i in wanted else None for i in range(self._count)]
        behind = self._cut(
            substitute(self.request.outputs, taken),
            [*given, *zip(leaves, sums, strict=True)],
            placed,
            dict(zip(inputs, self.arguments, strict=False)),
        )
        behind = self._updated(behind)
        values = {}
        for n, layout, result in zip(leaves, sums, results, strict=True):
            leaf = self._local(n, layout)
            values[leaf] = g.full(leaf.shape, 0, leaf.dtype) if result is None else result
        return substitute([*behind, *before[len(operands) :], *sent], values)

    def _parameter(self, p: Node, name: str) -> Layout:
        """Where a parameter is when it is used."""
        layout: list[Placement] = []
        type = p.type
        for axis in self.axes:
            if axis.schedule:
                layout.append(Owned(axis.table.rank_of(axis.chunk(name))))
            else:
                layout.append(_checked(name, type.shape, axis))
            type = local_type(type, layout[-1], axis.size)
        return tuple(layout)

    def _loss_sums(self, pipe: AxisLayout, chunk: int) -> Layout:
        """Where the loss is, which a chunk has."""
        own = Owned(pipe.table.rank_of(chunk))
        return tuple(own if axis is pipe else SUM for axis in self.axes)

    def _left(self, state: State, pipe: AxisLayout) -> Layout:
        """Where the value is that the last micro-batch leaves in a state."""
        rank = pipe.table.rank_of(state.chunk) if state.chunk != FREE else None
        own = WHOLE if rank is None else Owned(rank)
        return tuple(own if axis is pipe else WHOLE for axis in self.axes)

    def _sums(self, p: Node, placed: Layout) -> Layout:
        """Where the gradient of a parameter so placed is."""
        layout: list[Placement] = []
        type = p.type
        for axis, own in zip(self.axes, placed, strict=True):
            if isinstance(own, Sharded | Owned):
                layout.append(own)
            elif axis.gradients == "rows" and axis.size > 1:
                layout.append(Row(aligned(type.size)))
            else:
                layout.append(SUM)
            type = local_type(type, layout[-1], axis.size)
        return tuple(layout)


INSIDE, RESULTS = 1 << 24, 1 << 25
"""The first slots of the inputs of a micro-batch, and of what stands for its results."""


def _computed(
    function: str,
    inputs: Sequence[Node],
    arguments: Sequence[int | None],
    axes: Sequence[AxisLayout],
    axis: AxisLayout,
) -> dict[Node, Placement]:
    """The parts of the arguments that a rank computes with. Of two axes of ranks that divide one
    axis of the arguments the second one divides what is left by the first."""
    found: dict[Node, Placement] = {}
    at = axis.batch
    before = axes[: axes.index(axis)]
    shapes = [n.shape for n, number in zip(inputs, arguments, strict=False) if number is not None]
    if at is not None and any(shapes) and all(len(shape) <= at for shape in shapes):
        raise InvalidCall(
            f"no argument of {function!r} has an axis {at}, which `batch {at}` of {axis.name!r} "
            f"divides; they have shapes {', '.join(str(list(shape)) for shape in shapes)}"
        )
    major = math.prod(a.pieces for a in before if a.batch == at and at is not None)
    for n, number in zip(inputs, arguments, strict=False):
        if number is None or at is None or len(n.shape) <= at:
            continue
        parts = major * axis.pieces * (1 + (axis.attention == "ring"))
        if n.shape[at] % parts or not n.shape[at]:
            among = f"{major * axis.size} ranks along {axis.name!r}"
            if axis.shares:
                among += f" in shares of {', '.join(map(str, axis.shares))}"
            raise InvalidCall(
                f"axis {at} of argument {number} of {function!r}, of shape {list(n.shape)}, cannot "
                f"be divided among {among}; take a multiple of {parts}"
            )
        found[n] = Sharded(at, major, axis.attention == "ring")
    return found


def check_axes(have: Mapping[str, int], strategy: Strategy) -> None:
    """Raise InvalidCall where a mesh of these axes is another one than the strategy's, and for an
    axis among whose ranks nothing is divided."""
    if have != strategy.sizes:
        raise InvalidCall(
            f"the strategy is for a mesh of {strategy.sizes}, and this one is {dict(have)}; make "
            "it by Mesh.present(**strategy.sizes)"
        )
    for axis in strategy.axes:
        if axis.size > 1 and axis == AxisLayout(axis.name, axis.size):
            raise InvalidCall(
                f"axis {axis.name!r} divides nothing among its {axis.size} ranks, which would all "
                "compute the same; write behind it what it divides, as `batch 0`, or leave it out"
            )


def check_patterns(model: Module, strategy: Strategy) -> None:
    """Raise InvalidCall for patterns that no parameter's name fits, a chunk of a pipeline that has
    no parameter, and shadows or parts where there are no experts, or all have a capacity."""
    names = [name for name, _ in model.named_parameters()]
    if (pipe := strategy.pipeline) is not None:
        depth, have = pipe.table.depth, {pipe.chunk(name): name for name in names}
        wrong = set(range(depth)) ^ set(have)
        for chunk in sorted(wrong, key=lambda c: (c not in have, c)):
            if chunk in have:
                raise InvalidCall(
                    f"{have[chunk]} is in chunk {chunk} of the pipeline along {pipe.name!r}, which "
                    f"has chunks 0 to {depth - 1}"
                )
            raise InvalidCall(
                f"chunk {chunk} of the pipeline along {pipe.name!r} has no parameters; let each of "
                f"the {depth} chunks have a part of the model"
            )
    for axis in strategy.axes:
        for pattern, _ in (*axis.shards, *axis.chunks):
            if not any(fnmatchcase(name, pattern) for name in names):
                near = ", ".join(get_close_matches(pattern, names, 5, 0.0)) or "none"
                raise InvalidCall(
                    f"no parameter of the model is called {pattern!r}, which axis {axis.name!r} of "
                    f"the strategy names; of its {len(names)} the nearest are {near}"
                )
        said = [f"shadows {axis.shadows}"] * (axis.shadows > 0)
        said += [f"parts {axis.parts}"] * ((axis.parts or 1) > 1)
        if said:
            _check_routed(model, axis, said[0])


def _check_routed(model: Module, axis: AxisLayout, said: str) -> None:
    """Raise InvalidCall for what is said of tokens that travel one by one where none do: the ranks
    divide nothing that could be a matrix for each expert; or experts with a capacity all have as
    many rows, and are sent their places."""
    divided = {name: p for name, p in model.named_parameters() if axis.placement(name) != WHOLE}
    if not any(
        p.ndim == EXPERTS_NDIM and axis.placement(n) == Sharded(0) for n, p in divided.items()
    ):
        have = ", ".join(f"{name} {list(p.shape)}" for name, p in divided.items())
        raise InvalidCall(
            f"axis {axis.name!r} has `{said}`, and its ranks divide no experts, which are matrices "
            f"along axis 0 of a parameter as `nn.MixtureOfExperts` has them, but {have}; leave "
            "that line out, or divide a mixture by `parameter *.up shard 0`"
        )
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, MixtureOfExperts) and axis.placement(f"{name}.up") != WHOLE
    }
    if found and all(module.capacity is not None for module in found.values()):
        name, module = next(iter(found.items()))
        raise InvalidCall(
            f"axis {axis.name!r} has `{said}`, and the experts of {name} have the capacity "
            f"{module.capacity!r}, with which each computes as many tokens, however many choose "
            "it; leave that line out, or make the mixture with `capacity=None`"
        )


def layouts_of(
    model: Module, axes: Sequence[AxisLayout], optimizers: Sequence[Optimizer], stage: int = 0
) -> dict[Tensor, Layout]:
    """The layout of every value that is stored: flat arrays of optimizers, and their states, and
    parameters that no optimizer has. `stage` is the rank's number in a pipeline."""
    names = {p.serial: name for name, p in model.named_parameters()}
    found: dict[Tensor, Layout] = {}
    homed: set[int] = set()
    for optimizer in optimizers:
        for shard in optimizer.shards:
            flat = shard.flat
            homed |= {m.serial for m in flat.members}
            found[flat.cell] = _flat_layout(flat, names, axes, "parameters", stage)
            for state in shard.state.values():
                found[state] = _flat_layout(flat, names, axes, "states", stage)
    for name, p in model.named_parameters():
        if p.serial in homes and p.serial not in homed:
            raise InvalidCall(
                f"{name} belongs to an optimizer that `parallel` was not given; pass all of them, "
                "behind the strategy, or make them behind `parallel`"
            )
        if p.serial not in homed:
            found[p] = _parameter_layout(name, p.shape, axes)
    return found


def _parameter_layout(name: str, shape: tuple[int, ...], axes: Sequence[AxisLayout]) -> Layout:
    layout: list[Placement] = []
    for axis in axes:
        p = WHOLE if axis.schedule else _checked(name, shape, axis)
        if axis.parameters == "rows":
            size = aligned(math.prod(shape))
            p = Row(-(-size // axis.size) * axis.size)
        layout.append(p)
        shape = local_type(Type(shape, DType.F32), p, axis.size).shape
    return tuple(layout)


def _flat_layout(
    flat: FlatParameters,
    names: Mapping[int, str],
    axes: Sequence[AxisLayout],
    what: str,
    stage: int,
) -> Layout:
    ends = [*flat.layout.starts[1:], flat.layout.size]
    sizes = [end - start for start, end in zip(flat.layout.starts, ends, strict=True)]
    shapes, members = list(flat.layout.shapes), flat.members
    layout: list[Placement] = []
    for axis in axes:
        if axis.schedule:
            for m in members:
                if m.serial not in names:
                    raise InvalidCall(
                        f"an optimizer has a parameter of shape {list(m.shape)} that is none of "
                        f"the model's, so no chunk of the pipeline along {axis.name!r} has it; "
                        "make it one of the model's, or make the optimizer without it"
                    )
            at = [axis.table.rank_of(axis.chunk(names[m.serial])) for m in members]
            owned = [
                Part(math.prod(shape), size, Owned(rank), size if rank == stage else 0)
                for shape, size, rank in zip(shapes, sizes, at, strict=True)
            ]
            layout.append(Packed(tuple(owned)))
            kept = [i for i, rank in enumerate(at) if rank == stage]
            members = [members[i] for i in kept]
            sizes, shapes = [sizes[i] for i in kept], [shapes[i] for i in kept]
            continue
        rows = (axis.parameters if what == "parameters" else axis.states) == "rows"
        parts: list[Part] = []
        for i, (member, size) in enumerate(zip(members, sizes, strict=True)):
            name, shape = names.get(member.serial, f"parameter {i}"), shapes[i]
            number = math.prod(shape)
            p = _checked(name, shape, axis)
            if rows and p != WHOLE:
                raise InvalidCall(
                    f"axis {axis.name!r} divides {name} both along an axis and in rows; take two "
                    "axes"
                )
            if rows and size % axis.size:
                raise InvalidCall(
                    f"{name} takes {size} elements in the optimizer's array, which {axis.size} "
                    f"ranks along {axis.name!r} cannot divide; take a divisor of {size}"
                )
            if isinstance(p, Sharded):
                where = Sharded(0, outer_size(shape, p.axis, p.major))
                parts.append(part_of(number, size, where, axis.size))
                shapes[i] = local_type(Type(shape, DType.F32), p, axis.size).shape
            else:
                parts.append(part_of(number, size, Row(size) if rows else WHOLE, axis.size))
        layout.append(Packed(tuple(parts)))
        sizes = [part.local for part in parts]
        if rows:
            shapes = [(n,) for n in sizes]
    return tuple(layout)


def _checked(name: str, shape: tuple[int, ...], axis: AxisLayout) -> Placement:
    """A parameter's placement. Raises InvalidCall where its sizes do not allow it."""
    p = axis.placement(name)
    if not isinstance(p, Sharded):
        return p
    if not 0 <= p.axis < len(shape):
        raise InvalidCall(
            f"axis {axis.name!r} divides axis {p.axis} of {name}, which has shape {list(shape)}; "
            f"take one below {len(shape)}"
        )
    if shape[p.axis] % (p.major * axis.size):
        of = f" of each of its {p.major} parts" if p.major > 1 else ""
        raise InvalidCall(
            f"axis {p.axis}{of} of {name}, of shape {list(shape)}, cannot be divided among the "
            f"{axis.size} ranks along {axis.name!r}; take other sizes, or fewer ranks"
        )
    return p
