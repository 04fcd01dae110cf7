"""From the calls of a compiled graph to the steps of a plan: programs loaded, arguments bound,
graphs recorded."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, groupby

from hal.core.description import Feature
from hal.core.device import Device
from hal.core.facts import dataclass
from hal.core.values import (
    Command,
    CopyCommand,
    Handle,
    HostMemory,
    LaunchCommand,
    Region,
    Slot,
)
from stack.compiler.program import (
    BufferRef,
    Call,
    CompiledGraph,
    CopyCall,
    ExchangeCall,
    KernelCall,
    LoopCall,
    launches,
)
from stack.memory.plan import Layout
from stack.runtime.exchange import Exchange, RankGroup, joined, needs
from stack.runtime.hazards import dependencies
from stack.runtime.loop import Loop, several, steps_at_once, written_out
from stack.runtime.memory import Arena, HostArena
from stack.runtime.placement import BufferRange, Placement, refs
from stack.runtime.programs import Loaded, Programs
from stack.runtime.resources import Resources
from stack.runtime.segments import (
    BindAndLaunch,
    Copy,
    Fetch,
    Launch,
    Meet,
    Replay,
    Segment,
    Store,
)


@dataclass(frozen=True, slots=True)
class PlanStep:
    """A part of a plan, and the exchanges that it waits for: each by its number among them."""

    part: Segment | Exchange
    needs: tuple[int, ...]


def recorded(resources: Resources, graph: CompiledGraph, layout: Layout | None) -> Recording:
    """The steps of a graph whose sizes are all known, with temporaries in the places of a layout,
    if one is given."""
    memory = resources.memory
    graph = written_out(graph)
    placement = Placement(graph, memory.alignment, layout)
    arena = resources.arena(placement.layout.arena_nbytes)
    host = memory.host_arena(placement.host.arena_nbytes)
    return Recording(
        resources.device, resources.programs, resources.groups, graph, placement, arena, host
    )


class Recording:
    """The steps of a plan, and what must live as long as they do."""

    def __init__(
        self,
        device: Device,
        programs: Programs,
        groups: Mapping[str, RankGroup],
        graph: CompiledGraph,
        placement: Placement,
        arena: Arena,
        host: HostArena,
    ) -> None:
        self._device, self._programs = device, programs
        self._bodies: list[Recording] = []
        """Of loops: they hold their programs."""
        self._groups = groups
        self._placement = placement
        # Held, so that the memory lives as long as the launches that are bound to it.
        self.arena, self._host = arena, host
        self._stores: dict[int, Store] = {}
        """By what they write, the newest of those that are made."""
        self.handles: list[Handle] = []
        """Graphs and launchables, to be retired with this."""
        weakref.finalize(self, programs.retire, self.handles).atexit = False
        self._calls = graph.calls
        self._stretches = self._between_waits()
        self._cuts: dict[int, tuple[list[PlanStep], int]] = {}
        sources = dict.fromkeys(c.source for c in graph.calls if isinstance(c, KernelCall))
        self.loaded = programs.load(sources)
        self.layout, self.launches = placement.layout, launches(graph)
        self.steps: list[PlanStep] = self._steps(list(self._parts(len(graph.calls))))

    def cut_at_update(self, inputs: Collection[int]) -> tuple[list[PlanStep], int]:
        """The same calls in steps of which the first ones write none of these inputs in place, and
        how many those are. Recorded when it is first asked for."""
        writes = (
            any(span.memory in inputs for span in self._placement.access(call).writes)
            for call in self._calls
        )
        cut = next((i for i, is_write in enumerate(writes) if is_write), 0)
        if cut not in self._cuts:
            parts = list(self._parts(cut))
            ends = accumulate(len(made_of) for _, made_of in parts)
            self._cuts[cut] = self._steps(parts), sum(end <= cut for end in ends)
        return self._cuts[cut]

    def _steps(self, parts: Sequence[tuple[Segment | Exchange, Sequence[Call]]]) -> list[PlanStep]:
        """At the end all exchanges have been waited for."""
        exchanges = [isinstance(part, Exchange) for part, _ in parts]
        if not any(exchanges):
            return [PlanStep(part, ()) for part, _ in parts]
        accesses = [joined([self._placement.access(c) for c in made_of]) for _, made_of in parts]
        waits = needs(accesses, exchanges)
        steps = [PlanStep(part, own) for (part, _), own in zip(parts, waits, strict=True)]
        met = {i for s in steps if not isinstance(s.part, Exchange) for i in s.needs}
        left = tuple(i for i in range(sum(exchanges)) if i not in met)
        return [*steps, PlanStep(Meet(self.arena.region), left)] if left else steps

    def _parts(self, cut: int) -> Iterator[tuple[Segment | Exchange, Sequence[Call]]]:
        """The parts in order, each with the calls that it is made of; none has calls on both sides
        of `cut`."""
        numbered = list(zip(self._calls, self._stretches, strict=True))
        for side in (numbered[:cut], numbered[cut:]):
            for (recordable, _), pairs in groupby(side, lambda p: (self._recordable(p[0]), p[1])):
                group = [call for call, _ in pairs]
                if recordable:
                    slots: dict[BufferRange, Slot] = {}
                    after = dependencies([self._placement.access(call) for call in group])
                    commands = [
                        self._command(c, slots, a)
                        for c, a in zip(group, after, strict=True)
                        if isinstance(c, KernelCall | CopyCall)
                    ]
                    graph = self._device.record(commands)
                    self.handles.append(graph)
                    yield Replay(graph, list(slots)), group
                else:
                    yield from ((self._single(call), (call,)) for call in group)

    def _between_waits(self) -> list[int]:
        """Of each call how many before it, or it, wait for exchanges: it is no part of one with a
        call that does so later, and begins before."""
        exchanges = [isinstance(call, ExchangeCall) for call in self._calls]
        if not any(exchanges):
            return [0] * len(exchanges)
        waits = needs([self._placement.access(call) for call in self._calls], exchanges)
        return list(accumulate(bool(w) and not e for w, e in zip(waits, exchanges, strict=True)))

    def _recordable(self, call: Call) -> bool:
        """A graph takes no array of the run as a side of a copy, since copies have no slots, and no
        exchange."""
        has_graphs = Feature.GRAPH in self._device.info.features
        if not has_graphs or isinstance(call, ExchangeCall | LoopCall):
            return False
        return isinstance(call, KernelCall) or all(r.kind == "temp" for r in refs(call))

    def _command(
        self, call: KernelCall | CopyCall, slots: dict[BufferRange, Slot], after: tuple[int, ...]
    ) -> Command:
        if isinstance(call, CopyCall):
            dst, src = self._fixed(call.dst), self._fixed(call.src)
            return CopyCommand(dst, src, after)
        found = [self._resolved(arg) for arg in call.args]
        args = [
            slots.setdefault(arg, Slot(len(slots))) if isinstance(arg, BufferRange) else arg
            for arg in found
        ]
        launchable = self._device.bind(self._program(call).program, args)
        self.handles.append(launchable)
        return LaunchCommand(launchable, call.grid, after)

    def _single(self, call: Call) -> Segment | Exchange:
        if isinstance(call, ExchangeCall):
            return Exchange(self._groups, call, *map(self._side, (call.dst, *call.sources)))
        if isinstance(call, LoopCall):
            at_once = steps_at_once(call) if all(map(self._recordable, call.body.calls)) else 0
            many = self._segments(several(call, at_once)) if at_once else []
            return Loop(call, self._side, self._segments(call.body), at_once, many)
        if isinstance(call, CopyCall) and call.dst.kind == "host":
            store = Store(self._in_host(call.dst), self._fixed(call.src))
            self._stores[call.dst.index] = store
            return store
        if isinstance(call, CopyCall) and call.src.kind == "host":
            store = self._stores[call.src.index]
            return Fetch(self._fixed(call.dst), self._in_host(call.src), store)
        if isinstance(call, CopyCall):
            return Copy(self._side(call.dst), self._side(call.src))
        args = [self._resolved(arg) for arg in call.args]
        fixed = [arg for arg in args if not isinstance(arg, BufferRange)]
        if len(fixed) < len(args):
            return BindAndLaunch(self._program(call), args, call.grid)
        launchable = self._device.bind(self._program(call).program, fixed)
        self.handles.append(launchable)
        return Launch(launchable, call.grid)

    def _segments(self, body: CompiledGraph) -> list[Segment]:
        """Those of a loop's body."""
        made = Recording(
            self._device,
            self._programs,
            self._groups,
            body,
            self._placement.within(body),
            self.arena,
            self._host,
        )
        self._bodies.append(made)
        parts = [step.part for step in made.steps]
        segments = [part for part in parts if not isinstance(part, Exchange)]
        assert len(segments) == len(parts), "a loop's body has no exchange"
        return segments

    def _program(self, call: KernelCall) -> Loaded:
        return self.loaded[call.source]

    def _resolved(self, arg: BufferRef | int | float) -> int | float | Region | BufferRange:
        return self._side(arg) if isinstance(arg, BufferRef) else arg

    def _side(self, ref: BufferRef) -> Region | BufferRange:
        place = self._placement.place(ref)
        return self._fixed(ref) if place.argument is None else place

    def _in_host(self, ref: BufferRef) -> HostMemory:
        place = self._placement.place(ref)
        return self._host.memory[place.offset : place.offset + place.nbytes]

    def _fixed(self, ref: BufferRef) -> Region:
        place = self._placement.place(ref)
        whole = self.arena.region
        return Region(whole.buffer, whole.offset + place.offset, place.nbytes)
