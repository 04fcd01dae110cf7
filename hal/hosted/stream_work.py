"""Programs, copies, fills and graphs on a machine with streams: from calls to its queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from hal.core.facts import dataclass
from hal.core.spec import hookimpl
from hal.core.values import (
    Argument,
    Buffer,
    Command,
    CopyCommand,
    FillCommand,
    Graph,
    Grid,
    HostMemory,
    Launchable,
    LaunchCommand,
    Point,
    Program,
    Region,
    Slot,
    Timeline,
    Waits,
)
from hal.hosted.graphs import Graphs, Keeper
from hal.hosted.lock import LOCK
from hal.hosted.machine import Part
from hal.hosted.memory import Allocation
from hal.hosted.programs import Loaded, Programs
from hal.hosted.queues import Job, Operation, Queue, Resource
from hal.hosted.session import Session
from hal.hosted.streams import After, StreamMachine
from hal.hosted.work import Work, allocations, check_peers, flat, part_of

Step = Callable[[Any, After], Any]
"""Starts one command on a stream behind marks, and gives its mark."""

_SETTLED_EVERY = 512
"""Launches on a timeline for which nobody waits are settled so often."""


@dataclass(frozen=True, eq=False, slots=True)
class Bound:
    """A launchable's payload: what the machine bound, and what a launch uses."""

    native: Any
    operations: tuple[str, ...]
    args: tuple[Argument, ...]
    uses: tuple[Allocation | Loaded, ...]


@dataclass(eq=False, slots=True)
class StreamGraph(Keeper):
    """A graph's payload. `users` are, by slot, the parameters that it is the argument of, `given`
    what they have now. `joined` are all its commands as one of the driver's, where that is so."""

    operations: tuple[str, ...]
    steps: tuple[Step, ...]
    joined: Any
    users: dict[int, list[tuple[Any, int]]]
    given: dict[int, tuple[Allocation, int]] = field(default_factory=dict)


class StreamWork:
    """The hooks that submit work to timelines, and those that prepare it. What joins devices is
    done by the host, as on a machine without streams, but for copies from and to machines that this
    one reaches."""

    def __init__(self, session: Session, machine: StreamMachine, programs: Programs) -> None:
        self._session, self._machine, self._flight = session, machine, session.flight
        self._host, self._take = Work(session, programs), session.bursts.take
        self._programs, self.host_call = programs, self._host.host_call
        self._graphs = Graphs(session)
        self.free, self.free_all = self._graphs.free, self._graphs.free_all

    @hookimpl
    def bind(self, program: Program, args: Sequence[Argument]) -> Launchable:
        return self._programs.launchable(program, self._bound(program, args))

    @hookimpl
    def launch(self, launchable: Launchable, grid: Grid, timeline: Timeline, waits: Waits) -> Point:
        session, bound = self._session, launchable.native
        queue: Queue = timeline.native
        with LOCK:
            # The shortest way, for a launch that can start at once.
            if (
                waits
                or queue.todo
                or queue.failures
                or session.closing
                or session.cause is not None
                or session.faults.waiting
            ):

                def start(part: bool, stream: Any, after: After) -> Sequence[Any]:
                    sizes = (grid[0] // 2, grid[1], grid[2]) if part else grid
                    return (self._machine.launch(bound.native, sizes, stream, after),)

                return self._submit(
                    "launch", Job(bound.operations, start, bound.uses), timeline, waits
                )
            uses = bound.uses
            for used in uses:
                if used.freed:
                    used.check("launch")
            for used in uses:
                used.holds += 1
            value = queue.submitted = queue.submitted + 1
            self._take(queue, (value, bound, grid))
            if not value % _SETTLED_EVERY:
                self._flight.settle(queue)
        return Point(timeline, value)

    @hookimpl
    def copy(
        self, dst: Region | HostMemory, src: Region | HostMemory, timeline: Timeline, waits: Waits
    ) -> Point:
        sides = [side for side in (dst, src) if isinstance(side, Region)]
        uses = tuple(side.buffer.native for side in sides)
        peers = [x.session.machine for x in uses if x.session is not self._session]
        if not all(self._machine.reaches(peer) for peer in peers):
            return self._host.copy(dst, src, timeline, waits)
        to, of = (part_of(s) if isinstance(s, Region) else flat(s) for s in (dst, src))
        step = partial(self._copied, uses, to, of)
        job = _job("copy", step, uses, sides[0].nbytes, host=len(sides) < 2)
        return self._submit("copy", job, timeline, waits)

    @hookimpl
    def fill(self, dst: Region, pattern: bytes, timeline: Timeline, waits: Waits) -> Point:
        step = partial(self._machine.fill, part_of(dst), pattern)
        job = _job("fill", step, (dst.buffer.native,), dst.nbytes, unit=len(pattern))
        return self._submit("fill", job, timeline, waits)

    @hookimpl
    def record(self, commands: Sequence[Command]) -> Graph:
        keeps = self._graphs.kept(a for command in commands for a in _named(command))
        users: dict[int, list[tuple[Any, int]]] = {}
        steps = tuple(self._step(command, users) for command in commands)
        launches = [step.args for step in steps if step.func == self._machine.launch]
        joined = self._machine.joined(launches) if len(launches) == len(steps) > 1 else None
        operations = tuple(_operation(command) for command in commands) or ("replay",)
        recorded = StreamGraph(keeps, operations, steps or (self._machine.nothing,), joined, users)
        return self._graphs.graph(recorded, commands, users)

    @hookimpl
    def replay(
        self, graph: Graph, slots: Sequence[Argument], timeline: Timeline, waits: Waits
    ) -> Point:
        recorded: StreamGraph = graph.native
        parts = [_part(arg) for arg in slots]

        def start(part: bool, stream: Any, after: After) -> Sequence[Any]:
            self._rebind(recorded, slots, parts)
            if recorded.joined is not None and not part:
                mark = self._machine.launch_joined(recorded.joined, stream, after)
                return [mark] * len(recorded.steps)
            steps = recorded.steps[: len(recorded.steps) // 2] if part else recorded.steps
            first, *rest = steps or (self._machine.nothing,)
            with self._machine.together(stream) as gate:
                begun = first(stream, [*(after or ()), *gate] or None)
                return [begun, *(step(stream, None) for step in rest)]

        job = Job(recorded.operations, start, (recorded, *allocations(slots)))
        return self._submit("replay", job, timeline, waits)

    def _copied(
        self,
        uses: tuple[Allocation, ...],
        to: Part | memoryview,
        of: Part | memoryview,
        nbytes: int,
        stream: Any,
        after: After,
    ) -> Any:
        check_peers(self._session, uses)
        return self._machine.copy(to, of, nbytes, stream, after)

    def _submit(self, hook: str, job: Job, timeline: Timeline, waits: Waits) -> Point:
        session = self._session
        with LOCK:
            session.check_usable(hook)
            for resource in job.uses:
                resource.check(hook)
            fault = session.faults.take(hook)
            op = Operation(timeline.native, job, tuple(waits), job.uses, fault)
            return session.submit(op, timeline)

    def _bound(self, program: Program, args: Sequence[Argument]) -> Bound:
        uses = allocations(args)
        for allocation in uses:
            allocation.check("bind")
        loaded: Loaded = program.native
        native = self._machine.bind(loaded.native, [_part(arg) for arg in args])
        return Bound(native, (f"launch {program.entry}",), tuple(args), (*uses, loaded))

    def _step(self, command: Command, users: dict[int, list[tuple[Any, int]]]) -> partial[Any]:
        match command:
            case LaunchCommand(launchable, grid):
                # What the machine launches in this graph: with slots a binding of the graph's own
                bound: Bound = launchable.native
                slots = [
                    (i, arg.index) for i, arg in enumerate(bound.args) if isinstance(arg, Slot)
                ]
                if not slots:
                    native = bound.native
                else:
                    native = self._bound(launchable.program, bound.args).native
                    for number, slot in slots:
                        users.setdefault(slot, []).append((native, number))
                return partial(self._machine.launch, native, grid)
            case CopyCommand(dst, src):
                return partial(self._machine.copy, part_of(dst), part_of(src), dst.nbytes)
            case FillCommand(dst, pattern):
                return partial(self._machine.fill, part_of(dst), pattern, dst.nbytes)

    def _rebind(
        self, recorded: StreamGraph, slots: Sequence[Argument], parts: Sequence[Part | float | Slot]
    ) -> None:
        """Put the slots' arguments in place, where they are not those of the last time."""
        for slot, users in recorded.users.items():
            part = parts[slot]
            assert not isinstance(part, Slot), "a slot's argument is no slot"
            if isinstance(part, Part):
                now = (allocations((slots[slot],))[0], part.offset)
                if recorded.given.get(slot) == now:
                    continue
                recorded.given[slot] = now
            for native, number in users:
                self._machine.rebind(native, number, part)


def _job(
    operation: str,
    step: Callable[[int, Any, After], Any],
    uses: tuple[Resource, ...],
    nbytes: int,
    unit: int = 1,
    host: bool = False,
) -> Job:
    def start(part: bool, stream: Any, after: After) -> Sequence[Any]:
        count = nbytes // unit // 2 * unit if part else nbytes
        return (step(count, stream, after),)

    return Job((operation,), start, uses, host)


def _part(arg: Argument) -> Part | float | Slot:
    if isinstance(arg, Buffer):
        return part_of(arg.region())
    return part_of(arg) if isinstance(arg, Region) else arg


def _named(command: Command) -> Iterable[Resource]:
    match command:
        case LaunchCommand(launchable):
            uses: tuple[Resource, ...] = launchable.native.uses
            return uses
        case CopyCommand(dst, src):
            return dst.buffer.native, src.buffer.native
        case FillCommand(dst):
            return (dst.buffer.native,)


def _operation(command: Command) -> str:
    match command:
        case LaunchCommand(launchable):
            return f"launch {launchable.program.entry}"
        case CopyCommand():
            return "copy"
        case FillCommand():
            return "fill"
