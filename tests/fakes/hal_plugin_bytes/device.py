"""`BytesDevice`: the contract over bytearrays. Work runs as soon as its waits are reached."""

import time
from dataclasses import dataclass, field

from hal.core.description import (
    DeviceInfo,
    Feature,
    Limits,
    MemorySpace,
    NumericProfile,
    SpaceKind,
)
from hal.core.dtypes import DType
from hal.core.errors import Failure, FailureKind, Scope, error_for
from hal.core.spec import hookimpl
from hal.core.values import (
    Buffer,
    CopyCommand,
    FillCommand,
    Graph,
    Health,
    HealthState,
    Launchable,
    LaunchCommand,
    Point,
    Program,
    Region,
    Slot,
    Span,
    Timeline,
)

PYTHON = "python/1"


@dataclass
class Queue:
    """A timeline's state: counter, operations to come, first failure, spans by value."""

    value: int = 0
    owed: int = 0
    todo: list = field(default_factory=list)
    failure: Failure | None = None
    spans: dict = field(default_factory=dict)


class BytesDevice:
    def __init__(
        self, index=0, features=(Feature.MAP, Feature.GRAPH, Feature.TIMESTAMPS, Feature.RESET)
    ):
        self.name = f"bytes:{index}"
        self.epoch = 0
        self.queues = []
        self.closed = 0
        self.info = DeviceInfo(
            name=self.name,
            plugin="bytes",
            description="bytearrays",
            fingerprint="bytes",
            contract=1,
            limits=Limits(grid=(4, 4, 4), args=4, alloc_nbytes=1 << 20, queues=8, instances=1),
            spaces=(MemorySpace("ram", SpaceKind.GLOBAL, 1 << 20, 1, host_visible=True),),
            dtypes={DType.F32: 0.0, DType.U8: 1e9},
            numeric=NumericProfile({"exp": 0.5}, True, False, {DType.F32: DType.F64}),
            formats=(PYTHON,),
            features=frozenset(features),
        )

    @hookimpl
    def describe(self):
        return self.info

    @hookimpl
    def close(self):
        self.closed += 1

    @hookimpl
    def health(self):
        return Health(HealthState.OK, self.epoch)

    @hookimpl
    def free(self, handle):
        pass

    @hookimpl
    def reset(self):
        self.epoch += 1
        return self.epoch

    @hookimpl
    def alloc(self, nbytes, options):
        return Buffer(self.name, self.epoch, bytearray(nbytes), nbytes, "ram")

    @hookimpl
    def map(self, region, writable):
        view = view_of(region)
        return view if writable else view.toreadonly()

    @hookimpl
    def load(self, source):
        scope = {}
        exec(source.text, scope)
        return Program(self.name, self.epoch, scope[source.entry], source.entry, source.params)

    @hookimpl
    def bind(self, program, args):
        return Launchable(self.name, self.epoch, tuple(args), program)

    @hookimpl
    def create_timeline(self, host_driven):
        self.queues.append(Queue())
        return Timeline(self.name, self.epoch, self.queues[-1], host_driven)

    @hookimpl
    def copy(self, dst, src, timeline, waits):
        return self.submit("copy", lambda: copy_now(dst, src), timeline, waits)

    @hookimpl
    def fill(self, dst, pattern, timeline, waits):
        return self.submit("fill", lambda: fill_now(dst, pattern), timeline, waits)

    @hookimpl
    def launch(self, launchable, grid, timeline, waits):
        run = lambda: launch_now(launchable, grid, ())
        return self.submit(launchable.program.entry, run, timeline, waits)

    @hookimpl
    def record(self, commands):
        args = [a for c in commands if isinstance(c, LaunchCommand) for a in c.launchable.native]
        slots = max((a.index + 1 for a in args if isinstance(a, Slot)), default=0)
        return Graph(self.name, self.epoch, tuple(commands), len(commands), slots)

    @hookimpl
    def replay(self, graph, slots, timeline, waits):
        run = lambda: [command_now(command, slots) for command in graph.native]
        return self.submit("graph", run, timeline, waits)

    @hookimpl
    def signal(self, timeline, value, failure):
        timeline.native.value = value
        timeline.native.failure = timeline.native.failure or failure
        self.advance()

    @hookimpl
    def wait(self, points, timeout_s, wait_all):
        for point in points:
            if point.timeline.native.failure and not reached(point):
                raise error_for(point.timeline.native.failure)
        return (all if wait_all else any)([reached(point) for point in points] or [True])

    @hookimpl
    def timestamps(self, point):
        return point.timeline.native.spans.get(point.value, ())

    def submit(self, name, run, timeline, waits):
        queue = timeline.native
        queue.todo.append((name, run, tuple(waits)))
        queue.owed += 1
        self.advance()
        return Point(timeline, queue.owed)

    def advance(self):
        """Run all that may run; nothing more may once no queue's first operation is ready."""
        while sum(self.step(queue) for queue in self.queues):
            pass

    def step(self, queue):
        if not queue.todo or queue.failure or not all(reached(p) for p in queue.todo[0][2]):
            return False
        name, run, _ = queue.todo.pop(0)
        start = time.monotonic_ns()
        try:
            spans = run() or [Span(name, start, time.monotonic_ns())]
        except ArithmeticError as error:
            operation = FailureKind.LAUNCH_FAULT, Scope.OPERATION, self.name, name
            queue.failure = Failure(*operation, str(error))
            return True
        queue.value += 1
        queue.spans[queue.value] = spans
        return True


def reached(point):
    return point.timeline.native.value >= point.value


def view_of(side):
    if isinstance(side, Buffer):
        return memoryview(side.native)
    if isinstance(side, Region):
        return memoryview(side.buffer.native)[side.offset : side.offset + side.nbytes]
    return memoryview(side).cast("B") if memoryview(side).format != "B" else memoryview(side)


def copy_now(dst, src):
    view_of(dst)[:] = bytes(view_of(src))


def fill_now(dst, pattern):
    view_of(dst)[:] = pattern * (dst.nbytes // len(pattern))


def launch_now(launchable, grid, slots):
    args = [slots[a.index] if isinstance(a, Slot) else a for a in launchable.native]
    ready = [view_of(a) if isinstance(a, Buffer | Region) else a for a in args]
    launchable.program.native(grid, *ready)


def command_now(command, slots):
    start = time.monotonic_ns()
    match command:
        case LaunchCommand(launchable, grid):
            name = launchable.program.entry
            launch_now(launchable, grid, slots)
        case CopyCommand(dst, src):
            name = "copy"
            copy_now(dst, src)
        case FillCommand(dst, pattern):
            name = "fill"
            fill_now(dst, pattern)
    return Span(name, start, time.monotonic_ns())
