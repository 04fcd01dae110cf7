"""Programs, copies, fills and graphs: from calls to tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from hal.core.errors import (
    Failure,
    FailureKind,
    OperationFailed,
    Scope,
)
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
    HostFunction,
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
from hal.hosted.machine import Machine, Part
from hal.hosted.memory import Allocation
from hal.hosted.programs import Loaded, Programs
from hal.hosted.queues import Resource, Task
from hal.hosted.session import Session

PIECE_NBYTES = 8 << 20
"""Larger copies and fills reach the machine in pieces of this size, a multiple of any pattern."""


@dataclass(eq=False, slots=True)
class TaskGraph(Keeper):
    """A graph's payload: its commands, and tasks for those without slots."""

    commands: tuple[Command, ...]
    tasks: tuple[Task | None, ...]


class Work:
    """The hooks that submit work to timelines, and those that prepare it."""

    def __init__(self, session: Session, programs: Programs) -> None:
        self._session, self._programs = session, programs
        self._graphs = Graphs(session)
        self.free, self.free_all = self._graphs.free, self._graphs.free_all

    @hookimpl
    def bind(self, program: Program, args: Sequence[Argument]) -> Launchable:
        return self._programs.launchable(program, tuple(args))

    @hookimpl
    def launch(self, launchable: Launchable, grid: Grid, timeline: Timeline, waits: Waits) -> Point:
        task = self._launch(launchable, grid, launchable.native)
        return self._submit("launch", task, timeline, waits)

    @hookimpl
    def copy(
        self, dst: Region | HostMemory, src: Region | HostMemory, timeline: Timeline, waits: Waits
    ) -> Point:
        return self._submit("copy", self._copy(dst, src), timeline, waits)

    @hookimpl
    def fill(self, dst: Region, pattern: bytes, timeline: Timeline, waits: Waits) -> Point:
        return self._submit("fill", self._fill(dst, pattern), timeline, waits)

    @hookimpl
    def host_call(self, function: HostFunction, timeline: Timeline, waits: Waits) -> Point:
        def run(part: bool) -> None:
            if not part:
                function()

        task = Task("host_call", "host_call", run, kind=FailureKind.HOST_CALL)
        return self._submit("host_call", task, timeline, waits)

    @hookimpl
    def record(self, commands: Sequence[Command]) -> Graph:
        keeps = self._graphs.kept(a for command in commands for a in _named(command))
        tasks = tuple(None if _slots(command) else self._task(command, ()) for command in commands)
        recorded = TaskGraph(keeps, tuple(commands), tasks)
        slots = (slot.index for command in commands for slot in _slots(command))
        return self._graphs.graph(recorded, commands, slots)

    @hookimpl
    def replay(
        self, graph: Graph, slots: Sequence[Argument], timeline: Timeline, waits: Waits
    ) -> Point:
        recorded: TaskGraph = graph.native
        tasks = tuple(
            task or self._task(command, slots)
            for task, command in zip(recorded.tasks, recorded.commands, strict=True)
        )
        return self._session.submit_tasks("replay", tasks, timeline, waits, (recorded,))

    def _submit(self, hook: str, task: Task, timeline: Timeline, waits: Waits) -> Point:
        return self._session.submit_tasks(hook, (task,), timeline, waits)

    def _task(self, command: Command, slots: Sequence[Argument]) -> Task:
        """A command as a task; it uses what is in its slots, the graph keeps the rest."""
        given: list[Argument] = []
        match command:
            case LaunchCommand(launchable, grid):
                given = [slots[slot.index] for slot in _slots(command)]
                args = [slots[a.index] if isinstance(a, Slot) else a for a in launchable.native]
                task = self._launch(launchable, grid, args)
            case CopyCommand(dst, src):
                task = self._copy(dst, src)
            case FillCommand(dst, pattern):
                task = self._fill(dst, pattern)
        return replace(task, after=command.after, uses=allocations(given))

    def _launch(self, launchable: Launchable, grid: Grid, args: Sequence[Argument]) -> Task:
        machine, program = self._session.machine, launchable.program
        assert isinstance(machine, Machine), "a machine with streams launches by itself"
        loaded: Loaded = program.native
        uses: tuple[Resource, ...] = (*allocations(args), loaded)
        whole = [_whole(arg) for arg in args]

        def run(part: bool) -> float | None:
            parts = [part_of(a) if isinstance(a, Region) else a for a in whole]
            sizes = (grid[0] // 2, grid[1], grid[2]) if part else grid
            if not all(sizes):
                return machine.fill_ns(0)
            return machine.run(loaded.native, parts, sizes)

        return Task("launch", program.entry, run, uses)

    def _copy(self, dst: Region | HostMemory, src: Region | HostMemory) -> Task:
        uses = tuple(s.buffer.native for s in (dst, src) if isinstance(s, Region))
        read, write = _reader(src), _writer(dst)
        doing = self._session.doing
        nbytes = src.nbytes if isinstance(src, Region) else memoryview(src).nbytes
        machine = self._session.machine
        others = [a.session.machine for a in uses if a.session is not self._session]

        def run(part: bool) -> float | None:
            check_peers(self._session, uses)
            for at, count in pieces(nbytes // 2 if part else nbytes):
                write(at, read(at, count))
                doing.steps += 1
            return machine.copy_ns(nbytes, others[0] if others else None)

        return Task("copy", "copy", run, uses)

    def _fill(self, dst: Region, pattern: bytes) -> Task:
        allocation: Allocation = dst.buffer.native
        write, machine, doing = _writer(dst), allocation.session.machine, self._session.doing

        def run(part: bool) -> float | None:
            count = dst.nbytes // len(pattern)
            for at, nbytes in pieces((count // 2 if part else count) * len(pattern)):
                write(at, pattern * (nbytes // len(pattern)))
                doing.steps += 1
            return machine.fill_ns(dst.nbytes)

        return Task("fill", "fill", run, (allocation,))


def check_peers(session: Session, uses: Iterable[Allocation]) -> None:
    """Fail a copy whose other device is lost. Raises OperationFailed."""
    for allocation in uses:
        peer = allocation.session
        if peer is not session and peer.cause is not None:
            text = f"{peer.name} is lost: {peer.cause}"
            lost = Failure(FailureKind.PEER_LOST, Scope.PEER, session.name, "copy", text)
            raise OperationFailed(lost)


def pieces(nbytes: int) -> Iterator[tuple[int, int]]:
    """A transfer in pieces, each of which is progress: where each begins, and its bytes. No bytes
    are one piece."""
    for at in range(0, max(nbytes, 1), PIECE_NBYTES):
        yield at, min(nbytes - at, PIECE_NBYTES)


def _reader(side: Region | HostMemory) -> Callable[[int, int], bytes | memoryview]:
    if isinstance(side, Region):
        allocation: Allocation = side.buffer.native
        machine, offset = allocation.session.machine, side.offset
        return lambda at, nbytes: machine.read(allocation.memory, offset + at, nbytes)
    view = flat(side)
    return lambda at, nbytes: view[at : at + nbytes]


def _writer(side: Region | HostMemory) -> Callable[[int, bytes | memoryview], None]:
    if isinstance(side, Region):
        allocation: Allocation = side.buffer.native
        machine, offset = allocation.session.machine, side.offset
        return lambda at, data: machine.write(allocation.memory, offset + at, data)
    view = flat(side)
    return lambda at, data: view.__setitem__(slice(at, at + len(data)), data)


def flat(memory: HostMemory) -> memoryview:
    """The bytes of host memory."""
    view = memoryview(memory)
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def _whole(arg: Argument) -> Region | float:
    """What a launch is given: a buffer stands for its whole region."""
    assert not isinstance(arg, Slot), "a replay puts an argument into every slot"
    return arg.region() if isinstance(arg, Buffer) else arg


def part_of(region: Region) -> Part:
    """The memory that a region names."""
    allocation: Allocation = region.buffer.native
    return allocation.part(region.offset, region.nbytes)


def allocations(args: Iterable[Argument]) -> tuple[Allocation, ...]:
    """The allocations among arguments."""
    regions = (a.region() if isinstance(a, Buffer) else a for a in args)
    return tuple(a.buffer.native for a in regions if isinstance(a, Region))


def _slots(command: Command) -> list[Slot]:
    if not isinstance(command, LaunchCommand):
        return []
    return [arg for arg in command.launchable.native if isinstance(arg, Slot)]


def _named(command: Command) -> tuple[Resource, ...]:
    match command:
        case LaunchCommand(launchable):
            given = allocations(a for a in launchable.native if not isinstance(a, Slot))
            return *given, launchable.program.native
        case CopyCommand(dst, src):
            return dst.buffer.native, src.buffer.native
        case FillCommand(dst):
            return (dst.buffer.native,)
