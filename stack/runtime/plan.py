"""Plans: compiled graphs that are ready to run again and again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Protocol

from hal.core.description import Feature
from hal.core.errors import InvalidCall, error_for
from hal.core.values import Graph, Point, Region, Waits
from hal.tile.node import Type
from stack.compiler.program import CompiledGraph
from stack.memory.plan import Layout
from stack.memory.pool import Pool
from stack.runtime.array import Array, refusal
from stack.runtime.exchange import Exchange
from stack.runtime.memory import Arena, ArrayMemory
from stack.runtime.recording import PlanStep, recorded
from stack.runtime.resources import Resources
from stack.runtime.segments import Meet, Regions, Replay, Segment
from stack.runtime.stream import Stream


class Bound:
    """A plan with some numbers: its last inputs, which are given once."""

    def __init__(self, plan: Plan, numbers: Sequence[Array]) -> None:
        self.plan, self.numbers = plan, numbers

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """As `Plan.run`."""
        return self.plan.run([*inputs, *self.numbers])

    @property
    def launches(self) -> int:
        return self.plan.launches

    @property
    def live_nbytes(self) -> int:
        return self.plan.live_nbytes

    @property
    def arena_nbytes(self) -> int:
        return self.plan.arena_nbytes


class Launched(Protocol):
    """What a plan submits, with its programs loaded and its temporaries placed."""

    steps: list[PlanStep]
    layout: Layout
    launches: int

    @property
    def arena(self) -> Arena: ...

    @property
    def loaded(self) -> object:
        """What holds its programs."""
        ...

    def cut_at_update(self, inputs: Collection[int]) -> tuple[list[PlanStep], int]:
        """As `Recording.cut_at_update`."""
        ...


Launch = Callable[[], Launched]
_Placed = tuple[Launched, Segment | None]
"""A plan's launches, and the one part of a plan that waits for nothing."""

Straight = tuple[
    Stream,
    tuple[Type, ...],
    Pool,
    tuple[tuple[int | None, Type, str, int, int], ...],
    ArrayMemory,
    Graph,
    Callable[[Regions], Sequence[Region]],
]
"""The stream, the types of inputs, their pool, what outputs are made of, what makes them, the
graph, and what gives its slots."""


def argument_nbytes(
    inputs: Sequence[Type], outputs: Sequence[Type], updates: Iterable[tuple[int, int]]
) -> int:
    """What inputs and outputs of a run take."""
    updated = dict(updates)
    fresh = [t for i, t in enumerate(outputs) if i not in updated]
    return sum(t.nbytes for t in (*inputs, *fresh))


class Outline:
    """What a plan takes and gives; those of one graph for sizes that these do not have share it."""

    def __init__(self, resources: Resources, graph: CompiledGraph) -> None:
        """Raises OutOfMemory where an output is larger than the device."""
        self.inputs = list(graph.inputs)
        updates = dict(graph.updates)
        updated = [updates.get(i) for i in range(len(graph.outputs))]
        self.outputs = [
            (at, t, f"result {t}", t.nbytes, resources.memory.pool.rounded(t.nbytes))
            for at, t in zip(updated, graph.outputs, strict=True)
        ]
        """Of each: the input whose array it is, if any, and what an array of its own would be."""
        for _, type, label, *_ in self.outputs:
            resources.memory.check_fits(type, label)
        self.updated = tuple([at for at in updated if at is not None])
        """The inputs that the plan writes in place."""


class Plan:
    """A compiled graph with its programs loaded, its temporaries placed and its launches recorded.

    `launches` is the number of kernel calls in a run; `live_nbytes` the most memory that inputs,
    outputs and temporaries need at one time; `arena_nbytes` what the temporaries take.
    """

    def __init__(
        self, resources: Resources, graph: CompiledGraph | Outline, launch: Launch | None = None
    ) -> None:
        """The graph's calls are made by what `launch` gives, if given; an outline has none."""
        self.source: object = None
        """What it was made from, if others are: it lives as long as they do."""
        self._resources = resources
        self._pool = resources.memory.pool
        if isinstance(graph, Outline):
            assert launch is not None, "an outline has no calls"
            self._outline, self._launch = graph, launch
        else:
            self._outline = Outline(resources, graph)
            self._launch = launch or partial(recorded, resources, graph, None)
        self._placed: _Placed | None = None
        self.straight: Straight | None = None
        """What `run` does where all it submits is one recorded graph, and all that this writes is
        new; none while the plan holds no memory."""
        self._recorded = Feature.GRAPH in resources.device.info.features
        self._loaded: object = None
        """The programs of launches that were let go."""
        launched = self._place()[0]
        self.launches = launched.launches
        self._layout = launched.layout
        self.arena_nbytes = self._layout.arena_nbytes

    def _place(self) -> _Placed:
        """Its launches, in the memory that plans have for temporaries now."""
        launched = self._launch()
        steps = launched.steps
        only = steps[0].part if len(steps) == 1 else None
        placed = self._placed = launched, None if isinstance(only, Exchange) else only
        self._loaded = None
        if self._recorded and isinstance(only, Replay) and not self._outline.updated:
            resources, outline = self._resources, self._outline
            self.straight = (
                *(resources.stream, tuple(outline.inputs), self._pool, tuple(outline.outputs)),
                *(resources.memory, only.graph, only.chosen),
            )
        self._resources.memory.add_tenant(self)
        return placed

    def let_go(self) -> None:
        """Hold the memory for temporaries no more. The next run takes what there is then."""
        self.straight = None
        placed, self._placed = self._placed, None  # at once: several threads may tell it
        if placed is not None:
            self._loaded = placed[0].loaded

    @property
    def live_nbytes(self) -> int:
        fresh = sum(nbytes for at, _, _, nbytes, _ in self._outline.outputs if at is None)
        arguments = sum(t.nbytes for t in self._outline.inputs) + fresh
        return self._layout.live_nbytes + arguments

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Submit one run and give its outputs; what is waited for, if anything, is older work.

        An updated output is its input's own array, written in place; every other one is a new
        array. Raises InvalidCall for arrays that do not fit, the cause of an input that failed,
        OutOfMemory.
        """
        resources = self._resources
        # Before anything is written: who is interrupted, or told that older work failed, has its
        # values as they were.
        resources.stream.throttle()
        regions = self._regions(inputs)
        allocate = resources.memory.allocate
        outputs: list[Array] = []
        for at, type, label, nbytes, _ in self._outline.outputs:
            array = allocate(type, label, nbytes) if at is None else inputs[at]
            outputs.append(array)
            regions.append(array.region)
        if not self._recorded:
            resources.note_fallback(Feature.GRAPH, "launches one by one")
        stream = resources.stream
        launched, only = self._placed or self._place()
        with stream.lock:
            updated = self._outline.updated
            held = {at: inputs[at].readers for at in updated if inputs[at].readers}
            if held:
                points = list(dict.fromkeys(p for readers in held.values() for p in readers))
                self._submit(stream, regions, launched, *launched.cut_at_update(held), points)
            elif only is None:
                self._submit(stream, regions, launched, launched.steps)
            else:
                only.submit(stream, regions, ())
            written = stream.submitted_value
            for array in outputs:
                array.written = written
        return tuple(outputs)

    def _submit(
        self,
        stream: Stream,
        regions: Regions,
        launched: Launched,
        steps: Sequence[PlanStep],
        first: int = 0,
        held: Waits = (),
    ) -> None:
        """Submit the steps; those from `first` on wait for `held`, too."""
        begun: list[Point] = []
        try:
            for i, step in enumerate(steps):
                waits = [*(begun[k] for k in step.needs), *(held if i >= first else ())]
                if isinstance(step.part, Exchange):
                    begun.append(step.part.start(stream, regions, waits))
                else:
                    step.part.submit(stream, regions, waits)
        except BaseException:
            if begun:  # an exchange that nothing waits for would write memory that has a new owner
                Meet(launched.arena.region).submit(stream, regions, begun)
            raise

    def _regions(self, inputs: Sequence[Array]) -> list[Region]:
        types, takes = [array.type for array in inputs], self._outline.inputs
        if types != takes:
            if len(types) != len(takes):
                raise InvalidCall(f"the plan takes {len(takes)} arrays, not {len(types)}")
            for at, (given, wanted) in enumerate(zip(types, takes, strict=True)):
                if given != wanted:
                    raise InvalidCall(f"argument {at} of the plan is {wanted}, not {given}")
        # Equal types are found equal sooner when they are the same objects.
        self._outline.inputs = types
        if [array.pool for array in inputs].count(self._pool) != len(types):
            other = next(array for array in inputs if array.pool is not self._pool)
            name = self._resources.device.name
            raise refusal(other, f"the engine of this plan of {name}")
        if self._outline.updated and len(set(map(id, inputs))) != len(types):
            for i in self._outline.updated:
                if sum(array is inputs[i] for array in inputs) > 1:
                    what = f"argument {i} of the plan is updated, so it must be given once"
                    raise InvalidCall(what)
        try:
            return [array.region for array in inputs]
        except AttributeError:
            for array in inputs:
                if array.failure is not None:
                    raise error_for(array.failure) from None
            raise
