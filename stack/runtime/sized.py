"""Launches of a graph with sizes: bound once for all of them, recorded once for each grid.

What follows from a size is a slot of the recorded graph (a scalar of a kernel, a part of an array),
so another size costs the values of these, and a recording where a grid is another one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any

from hal.core.description import Feature
from hal.core.values import Command, CopyCommand, Graph, LaunchCommand, Region, Slot
from stack.compiler.program import BufferRef, CompiledGraph, CopyCall, KernelCall
from stack.memory.plan import Layout
from stack.runtime.general import Hole, SizedGraph, at_sizes
from stack.runtime.hazards import Access, ByteRange, dependencies
from stack.runtime.placement import BufferRange
from stack.runtime.plan import Outline, Plan
from stack.runtime.programs import Programs
from stack.runtime.recording import PlanStep, Recording, recorded
from stack.runtime.resources import Resources
from stack.runtime.segments import Regions, chosen
from stack.runtime.stream import Stream

Sizes = tuple[int, ...]
_END = 1 << 62
"""Behind the last byte of every array."""


def plan_of(resources: Resources, graph: SizedGraph, sizes: Sizes) -> Plan:
    """The plan of a graph for these sizes."""
    alignment = resources.memory.alignment
    if graph.is_plain:
        return Plan(resources, graph.form)
    if graph.has_slots is None:
        graph.has_slots = _can_have_slots(resources, graph.form)
    if not graph.has_slots:
        whole = graph.at(sizes)
        return Plan(
            resources, whole, lambda: recorded(resources, whole, graph.layout(sizes, alignment)[0])
        )

    def launch() -> SizedRecording:
        layout, room = graph.layout(sizes, alignment)
        bound = graph.bound
        if not isinstance(bound, SizedLaunches) or bound.layout is not layout:
            bound = graph.bound = SizedLaunches(resources, graph.form, layout, room)
            resources.memory.add_tenant(graph)
        return SizedRecording(resources, bound, graph, sizes)

    types = graph.types(sizes)
    known = graph.outline  # of whichever sizes came last: an outline of others is another one
    if known is None or known[0] is not types[0] or known[1] is not types[1]:
        form = CompiledGraph(*types, graph.form.updates, (), ())
        known = graph.outline = *types, Outline(resources, form)
    return Plan(resources, known[2], launch)


def _can_have_slots(resources: Resources, form: CompiledGraph) -> bool:
    """Whether all calls are commands of one graph, whose slots have the sizes."""
    return Feature.GRAPH in resources.device.info.features and all(
        isinstance(c, KernelCall)
        or (isinstance(c, CopyCall) and c.dst.kind == "temp" == c.src.kind)
        for c in form.calls
    )


class RecordedGraph:
    """A recorded graph, which is given back to the device when nobody holds this any more."""

    def __init__(self, programs: Programs, graph: Graph) -> None:
        self.graph = graph
        weakref.finalize(self, programs.retire, (graph,)).atexit = False


class SizedLaunches:
    """The launches of a graph whose sizes are holes, with temporaries in the places of `layout`,
    where each has `room` bytes, at least what it needs."""

    def __init__(
        self, resources: Resources, form: CompiledGraph, layout: Layout, room: Sizes
    ) -> None:
        self._device, self._programs = resources.device, resources.programs
        self._form, self._room, self.layout = form, room, layout
        self.arena = resources.arena(layout.arena_nbytes)
        updated, count = dict(form.updates), len(form.inputs)
        self._outputs = [updated.get(i, count + i) for i in range(len(form.outputs))]
        kernels = [c for c in form.calls if isinstance(c, KernelCall)]
        self.launches = len(kernels)
        self.loaded = self._programs.load(dict.fromkeys(c.source for c in kernels))
        given = dict.fromkeys(s for c in kernels for a in c.args if (s := self._slot(a)))
        order = sorted(given, key=lambda s: s[0])
        self._slots = {slot: Slot(i) for i, slot in enumerate(order)}
        wholes = [BufferRange(s[1], 0, 0, True) for s in order if s[0] == _WHOLE]
        self.wholes = chosen(wholes)
        self._parts = [s[1:] for s in order if s[0] == _PART]
        self._fixed = [s[1:] for s in order if s[0] > _PART]
        self._after = dependencies([self._access(c) for c in form.calls])
        handles: list[Any] = []
        weakref.finalize(self, self._programs.retire, handles).atexit = False
        self._launchables = []
        for c in form.calls:
            if isinstance(c, KernelCall):
                program = self.loaded[c.source].program
                handles.append(self._device.bind(program, [self._argument(a) for a in c.args]))
                self._launchables.append(handles[-1])
            else:
                self._launchables.append(None)
        self._shapes = tuple(dict.fromkeys(h for c in form.calls for h in _holes_of(c)))
        self._shape = _picked([h.number for h in self._shapes])
        launches = zip(form.calls, self._launchables, self._after, strict=True)
        made = [None if _holes_of(c) else self._command(c, x, a, ()) for c, x, a in launches]
        self._commands = made
        """Those that are the same for all sizes."""
        self._varying = [i for i, command in enumerate(made) if command is None]
        self._graphs: weakref.WeakValueDictionary[Sizes, RecordedGraph]
        self._graphs = weakref.WeakValueDictionary()

    def _slot(self, arg: Any) -> tuple[Any, ...] | None:
        """What an argument takes at each run, or for each sizes; None where it is always one."""
        if type(arg) is Hole:
            return _SCALAR, arg
        if not isinstance(arg, BufferRef):
            return None
        if arg.kind == "temp":
            return (_TEMP, arg) if _is_hole(arg.offset_nbytes) else None
        argument = self._argument_of(arg)
        if arg.offset_nbytes == 0:
            return _WHOLE, argument  # all of it, where the kernel may use less
        return _PART, argument, arg.offset_nbytes, arg.nbytes

    def _argument_of(self, ref: BufferRef) -> int:
        return ref.index if ref.kind == "input" else self._outputs[ref.index]

    def _argument(self, arg: Any) -> Any:
        slot = self._slot(arg)
        if slot is not None:
            return self._slots[slot]
        return self._temp(arg, ()) if isinstance(arg, BufferRef) else arg

    def _temp(self, ref: BufferRef, sizes: Sizes) -> Region:
        """The bytes of a temporary from its place on, as many as it has room for."""
        offset = at_sizes(ref.offset_nbytes, sizes)
        begin = self.arena.region.offset + self.layout.offsets[ref.index] + offset
        return Region(self.arena.region.buffer, begin, self._room[ref.index] - offset)

    def _access(self, call: Any) -> Access:
        """The bytes that a call may use, whatever the sizes are."""
        if isinstance(call, CopyCall):
            return Access((self._span(call.src),), (self._span(call.dst),))
        reads, writes = [], []
        for param, arg in zip(call.source.params, call.args, strict=True):
            if isinstance(arg, BufferRef):
                span = self._span(arg)
                reads += [span] * param.reads
                writes += [span] * param.writes
        return Access(tuple(reads), tuple(writes))

    def _span(self, ref: BufferRef) -> ByteRange:
        begin, nbytes = ref.offset_nbytes, ref.nbytes
        known = type(begin) is int, type(nbytes) is int
        if ref.kind != "temp":
            argument = self._argument_of(ref)
            return (
                ByteRange(argument, begin, begin + nbytes)
                if all(known)
                else ByteRange(argument, begin if known[0] else 0, _END)
            )
        base, room = self.layout.offsets[ref.index], self._room[ref.index]
        end = begin + nbytes if all(known) else room
        return ByteRange(None, base + (begin if known[0] else 0), base + end)

    def graph(self, sizes: Sizes) -> RecordedGraph:
        """The recorded graph for the grids that these sizes give."""
        shape = self._shape(sizes)
        found = self._graphs.get(shape)
        if found is None:
            commands, calls = list[Any](self._commands), self._form.calls
            for i in self._varying:
                bound, after = self._launchables[i], self._after[i]
                commands[i] = self._command(calls[i], bound, after, sizes)
            graph = self._device.record(commands)
            found = self._graphs[shape] = RecordedGraph(self._programs, graph)
        return found

    def _command(self, call: Any, launchable: Any, after: tuple[int, ...], sizes: Sizes) -> Command:
        if isinstance(call, CopyCall):
            nbytes = at_sizes(call.dst.nbytes, sizes)
            dst, src = (
                Region(r.buffer, r.offset, nbytes)
                for r in (self._temp(call.dst, sizes), self._temp(call.src, sizes))
            )
            return CopyCommand(dst, src, after)
        x, y, z = call.grid
        return LaunchCommand(
            launchable, (at_sizes(x, sizes), at_sizes(y, sizes), at_sizes(z, sizes)), after
        )

    def values(self, sizes: Sizes) -> tuple[list[BufferRange], list[Any]]:
        """The parts of arrays, and all that is the same in each run, in the order of the slots
        behind whole arrays."""
        parts = [
            BufferRange(argument, at_sizes(offset, sizes), at_sizes(nbytes, sizes))
            for argument, offset, nbytes in self._parts
        ]
        fixed = [
            self._temp(one, sizes) if isinstance(one, BufferRef) else sizes[one.number]
            for (one,) in self._fixed
        ]
        return parts, fixed


_WHOLE, _PART, _TEMP, _SCALAR = range(4)
"""What slots take, in order."""


class SizedReplay:
    """A recorded graph with the slots of some sizes."""

    def __init__(self, bound: SizedLaunches, sizes: Sizes) -> None:
        self._recorded = bound.graph(sizes)
        self._wholes = bound.wholes
        parts, self._fixed = bound.values(sizes)
        self._parts: Callable[[Regions], Sequence[Region]] | None = None
        if parts:
            self._parts = chosen(parts)

    def submit(self, stream: Stream, regions: Regions, waits: Any) -> None:
        parts = self._parts(regions) if self._parts is not None else ()
        slots = (*self._wholes(regions), *parts, *self._fixed)
        graph = self._recorded.graph
        stream.submitted(stream.device.replay(graph, slots, stream.timeline, waits))


class SizedRecording:
    """The launches of a graph for some sizes."""

    def __init__(
        self, resources: Resources, bound: SizedLaunches, graph: SizedGraph, sizes: Sizes
    ) -> None:
        self._resources, self._bound = resources, bound
        self._graph, self._sizes = graph, sizes
        self.layout, self.launches, self.arena = bound.layout, bound.launches, bound.arena
        self.loaded = bound.loaded
        self.steps = [PlanStep(SizedReplay(bound, sizes), ())]

    @cached_property
    def _cuttable(self) -> Recording:
        return recorded(self._resources, self._graph.at(self._sizes), self.layout)

    def cut_at_update(self, inputs: Any) -> tuple[list[PlanStep], int]:
        """As of `Recording`."""
        return self._cuttable.cut_at_update(inputs)


def _is_hole(size: Any) -> bool:
    return type(size) is Hole


def _holes_of(call: Any) -> list[Hole]:
    """The sizes that a command has which are no slots."""
    found: Any = call.grid
    if isinstance(call, CopyCall):
        found = [n for r in (call.dst, call.src) for n in (r.offset_nbytes, r.nbytes)]
    return [n for n in found if type(n) is Hole]


def _picked(which: Sequence[int]) -> Callable[[Sizes], Sizes]:
    if len(which) < 2:
        return lambda sizes: tuple([sizes[i] for i in which])
    return itemgetter(*which)
