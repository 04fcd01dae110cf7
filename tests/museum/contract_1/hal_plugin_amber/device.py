"""Bytearrays, programs in Python, work that runs as soon as its waits are reached."""

import time

from hal.core.description import (
    DeviceInfo,
    Feature,
    Limits,
    Link,
    MatrixUnit,
    MemorySpace,
    NumericProfile,
    SpaceKind,
)
from hal.core.dtypes import DType
from hal.core.errors import (
    CompileError,
    Failure,
    FailureKind,
    OutOfMemory,
    Scope,
    UnsupportedFormat,
    error_for,
)
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
    MemoryStats,
    Point,
    Program,
    Region,
    Slot,
    Span,
    Timeline,
)

CAPACITY = 1 << 16
FEATURES = (Feature.MAP, Feature.GRAPH, Feature.TIMESTAMPS, Feature.STATS, Feature.RESET)


class Queue:
    def __init__(self):
        self.value = 0
        self.owed = 0
        self.todo = []
        self.failure = None
        self.spans = {}


class AmberDevice:
    def __init__(self):
        self.epoch = 0
        self.live = {}
        self.peak = 0
        self.allocations = 0
        self.queues = []

    @hookimpl
    def describe(self):
        return DeviceInfo(
            name="amber:0",
            plugin="amber",
            description="frozen",
            fingerprint="amber-1",
            contract=1,
            limits=Limits(
                grid=(8, 8, 8),
                args=8,
                alloc_nbytes=CAPACITY,
                queues=8,
                instances=1,
                vector_nbytes=0,
                registers=0,
                lanes=1,
                caches=(),
            ),
            spaces=(
                MemorySpace(
                    name="ram",
                    kind=SpaceKind.GLOBAL,
                    nbytes=CAPACITY,
                    granularity=1,
                    host_visible=True,
                    coherent=True,
                    dma_only=False,
                ),
            ),
            dtypes={DType.U8: 0.0, DType.F32: 1e9},
            numeric=NumericProfile(
                ulp={"exp": 1.0},
                denormals=True,
                fma=False,
                accumulate={DType.F32: DType.F64},
                deterministic=True,
            ),
            formats=("python/1",),
            features=frozenset(FEATURES),
            matrix_units=(MatrixUnit(4, 4, 4, DType.F32, DType.F32),),
            links=(Link("amber:1", "wire", 1e9, 1e-6),),
            declared={"launch_s": 1e-3},
            facts={"kept": "in a museum"},
        )

    @hookimpl
    def close(self):
        self.live.clear()

    @hookimpl
    def health(self):
        return Health(HealthState.OK, self.epoch, None)

    @hookimpl
    def free(self, handle):
        self.live.pop(id(handle.native), None)

    @hookimpl
    def reset(self):
        self.epoch += 1
        self.live.clear()
        return self.epoch

    @hookimpl
    def stats(self, space):
        live = sum(map(len, self.live.values()))
        return MemoryStats(live, self.peak, self.allocations, len(self.live))

    @hookimpl
    def alloc(self, nbytes, options):
        used = sum(map(len, self.live.values()))
        if nbytes > CAPACITY - used:
            text = f"amber:0 has {CAPACITY - used} bytes left, {options.label!r} asks for {nbytes}"
            raise OutOfMemory(text, nbytes, CAPACITY - used, {"amber": used})
        memory = bytearray(nbytes)
        self.live[id(memory)] = memory
        self.allocations += 1
        self.peak = max(self.peak, used + nbytes)
        return Buffer("amber:0", self.epoch, memory, nbytes, options.space or "ram")

    @hookimpl
    def map(self, region, writable):
        return view(region) if writable else view(region).toreadonly()

    @hookimpl
    def load(self, source):
        if source.format != "python/1":
            raise UnsupportedFormat(f"{source.format}; accepted are python/1")
        scope = {}
        try:
            exec(source.text, scope)
        except SyntaxError as error:
            raise CompileError("not Python", log=str(error), line=error.lineno or 0) from error
        if source.entry not in scope:
            raise CompileError(f"no function {source.entry}", log="", line=0)
        return Program("amber:0", self.epoch, scope[source.entry], source.entry, source.params)

    @hookimpl
    def bind(self, program, args):
        return Launchable("amber:0", self.epoch, tuple(args), program)

    @hookimpl
    def create_timeline(self, host_driven):
        self.queues.append(Queue())
        return Timeline("amber:0", self.epoch, self.queues[-1], host_driven)

    @hookimpl
    def copy(self, dst, src, timeline, waits):
        return self.submit("copy", lambda: copy(dst, src), timeline, waits)

    @hookimpl
    def fill(self, dst, pattern, timeline, waits):
        return self.submit("fill", lambda: fill(dst, pattern), timeline, waits)

    @hookimpl
    def launch(self, launchable, grid, timeline, waits):
        name = launchable.program.entry
        return self.submit(name, lambda: launch(launchable, grid, ()), timeline, waits)

    @hookimpl
    def record(self, commands):
        launches = [c for c in commands if isinstance(c, LaunchCommand)]
        slots = [a.index for c in launches for a in c.launchable.native if isinstance(a, Slot)]
        count = max(slots, default=-1) + 1
        return Graph("amber:0", self.epoch, tuple(commands), len(commands), count)

    @hookimpl
    def replay(self, graph, slots, timeline, waits):
        def run():
            for command in graph.native:
                match command:
                    case LaunchCommand(launchable, grid):
                        launch(launchable, grid, slots)
                    case CopyCommand(dst, src):
                        copy(dst, src)
                    case FillCommand(dst, pattern):
                        fill(dst, pattern)

        return self.submit("replay", run, timeline, waits)

    @hookimpl
    def signal(self, timeline, value, failure):
        queue = timeline.native
        queue.failure = queue.failure or failure
        if queue.failure is None:
            queue.value = value
        self.advance()

    @hookimpl
    def wait(self, points, timeout_s, wait_all):
        done = []
        for point in points:
            queue = point.timeline.native
            done.append(queue.value >= point.value)
            if queue.failure and not done[-1]:
                raise error_for(queue.failure)
        return not points or (all(done) if wait_all else any(done))

    @hookimpl
    def timestamps(self, point):
        return (point.timeline.native.spans[point.value],)

    def submit(self, name, run, timeline, waits):
        queue = timeline.native
        queue.owed += 1
        queue.todo.append((name, run, tuple(waits)))
        self.advance()
        return Point(timeline, queue.owed)

    def advance(self):
        while any(self.step(queue) for queue in self.queues):
            pass

    def step(self, queue):
        if not queue.todo or queue.failure:
            return False
        name, run, waits = queue.todo[0]
        broken = [w.timeline.native.failure for w in waits if w.timeline.native.failure]
        if broken:
            queue.failure = broken[0]
            return True
        if any(w.timeline.native.value < w.value for w in waits):
            return False
        queue.todo.pop(0)
        start = time.monotonic_ns()
        try:
            run()
        except ArithmeticError as error:
            kind, scope = FailureKind.LAUNCH_FAULT, Scope.OPERATION
            queue.failure = Failure(kind, scope, "amber:0", name, str(error), retryable=False)
            return True
        queue.value += 1
        queue.spans[queue.value] = Span(name, start, time.monotonic_ns(), lane=0)
        return True


def view(side):
    if isinstance(side, Buffer):
        return memoryview(side.native)
    if isinstance(side, Region):
        return memoryview(side.buffer.native)[side.offset : side.offset + side.nbytes]
    return memoryview(side).cast("B")


def copy(dst, src):
    view(dst)[:] = bytes(view(src))


def fill(dst, pattern):
    view(dst)[:] = pattern * (dst.nbytes // len(pattern))


def launch(launchable, grid, slots):
    args = [slots[a.index] if isinstance(a, Slot) else a for a in launchable.native]
    launchable.program.native(
        grid, *[view(a) if isinstance(a, Buffer | Region) else a for a in args]
    )
