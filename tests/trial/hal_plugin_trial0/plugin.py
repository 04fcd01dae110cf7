"""Bytearrays, one queue served by one thread, allocations in multiples of 24 bytes."""

import threading
from types import SimpleNamespace

import numpy as np

from hal.core import description as d
from hal.core import errors as e
from hal.core import values as v
from hal.core.dtypes import DType
from hal.core.spec import MANDATORY_DEVICE, hookimpl
from hal.tile.interpret import interpret
from hal.tile.numeric import NUMPY
from hal.tile.parser import parse_kernel
from hal.tile.verify import verify

NAME, NBYTES, GRANULE = "trial0:0", 24 << 20, 24
TYPES = dict.fromkeys((DType.F32, DType.I32, DType.U8, DType.I64), 0.0)
RAM = (d.MemorySpace("ram", d.SpaceKind.GLOBAL, NBYTES, GRANULE),)
LIMITS = d.Limits(grid=(1 << 20, 7, 3), args=12, alloc_nbytes=NBYTES, queues=1, instances=1)
NUMBERS = d.NumericProfile(dict.fromkeys(d.FUNCTIONS, 4.0), True, False, {t: t for t in TYPES})
FAULT = (e.FailureKind.LAUNCH_FAULT, e.Scope.OPERATION, NAME)
FACTS = (LIMITS, RAM, TYPES, NUMBERS, (v.HAL_TILE,), frozenset())


@hookimpl
def enumerate_devices():
    return [d.DeviceSummary(0, "bytearrays")]


@hookimpl
def open_device(index, options):
    if index or options.settings:
        raise e.InvalidCall(f"there is {NAME} without settings, not {index} {options.settings}")
    return Trial()


class Trial:
    def __init__(self):
        self.change, self.todo, self.closed = threading.Condition(), [], False
        self.used = self.queues = 0
        self.server = threading.Thread(target=self.serve, daemon=True)
        self.server.start()

    def describe(self):
        return d.DeviceInfo(NAME, "trial0", "bytearrays", "trial0", 1, *FACTS)

    def health(self):
        return v.Health(v.HealthState.CLOSED if self.closed else v.HealthState.OK, 0)

    def close(self):
        with self.change:
            self.change.wait_for(lambda: self.closed or not self.ready(), 10)
            self.closed = True
            self.change.notify_all()
        self.server.join(10)

    def free(self, handle):
        self.used -= len(handle.native) if isinstance(handle, v.Buffer) else 0
        if isinstance(handle, v.Timeline):
            self.queues -= not handle.host_driven
            self.end(handle.native, 0, e.Failure(*FAULT, "free", "it was freed"))

    def alloc(self, nbytes, options):
        with self.change:
            size, left = -(-nbytes // GRANULE) * GRANULE, NBYTES - self.used
            self.check(size <= left, e.OutOfMemory("the memory is full", nbytes, left))
            self.used += size
        return v.Buffer(NAME, 0, bytearray(size), nbytes, "ram")

    def copy(self, dst, src, timeline, waits):
        return self.submit("copy", timeline, waits, lambda: np.copyto(view(dst), view(src)))

    def fill(self, dst, pattern, timeline, waits):
        return self.copy(dst, pattern * (dst.nbytes // len(pattern)), timeline, waits)

    def load(self, source):
        try:
            verify(kernel := parse_kernel(source.text))
            same = (kernel.name, kernel.params, ()) == (source.entry, source.params, source.options)
            self.check(same, e.HalError(f"{source.entry} is not in the text, or has options"))
        except e.HalError as error:
            raise e.CompileError(str(error), str(error), getattr(error, "line", 0)) from error
        return v.Program(NAME, 0, kernel, source.entry, source.params)

    def bind(self, program, args):
        regions = [a.region() if isinstance(a, v.Buffer) else a for a in args]
        return v.Launchable(NAME, 0, regions, program)

    def launch(self, launchable, grid, timeline, waits):
        kernel = launchable.program.native
        args = {v.ParamKind.BUFFER: {}, v.ParamKind.SCALAR: {}}
        for p, arg in zip(kernel.params, launchable.native, strict=True):
            args[p.kind][p.name] = arg if p.kind is v.ParamKind.SCALAR else view(arg, p.dtype)
        run = lambda: interpret(kernel, grid, *args.values())
        return self.submit(kernel.name, timeline, waits, run)

    def create_timeline(self, host_driven):
        self.check(host_driven or not self.queues, e.InvalidCall(f"{NAME} has one queue"))
        self.queues += not host_driven
        return v.Timeline(NAME, 0, SimpleNamespace(value=0, owed=0, failure=None), host_driven)

    def signal(self, timeline, value, failure):
        grows = failure or timeline.native.failure or value > timeline.native.value
        self.check(grows, e.InvalidCall(f"signal: {value} does not grow"))
        self.end(timeline.native, value, failure)

    def wait(self, points, timeout_s, wait_all):
        choose = all if wait_all or not points else any
        enough = lambda: choose(outcome(p) is True for p in points)
        failed = lambda: not enough() and [o for o in map(outcome, points) if o not in (True, None)]
        with self.change:
            self.change.wait_for(lambda: enough() or failed(), min(timeout_s, 1e6))
            self.check(not failed(), failed() and e.error_for(failed()[0]))
            return enough()

    def check(self, holds, error):
        if self.closed or not holds:
            raise e.StaleHandle(f"{NAME} is closed") if self.closed else error

    def submit(self, name, timeline, waits, run):
        with self.change:
            self.check(True, None)
            timeline.native.owed += 1
            self.todo.append((timeline.native, name, tuple(waits), run))
            self.change.notify_all()
            return v.Point(timeline, timeline.native.owed)

    def ready(self):
        return self.closed or (self.todo and all(map(outcome, self.todo[0][2])))

    def serve(self):
        while not self.closed:
            with self.change:
                if not self.change.wait_for(self.ready, 1) or self.closed:
                    continue
                queue, name, waits, run = self.todo[0]
                causes = [queue.failure or True, *map(outcome, waits)]
                failure = next((o for o in causes if o is not True), None)
            try:
                failure or run()
            except (e.HalError, ValueError) as error:
                failure = e.Failure(*FAULT, name, str(error))
            self.todo.pop(0)
            self.end(queue, queue.value + 1, failure)

    def end(self, queue, value, failure):
        with self.change:
            queue.failure = queue.failure or failure
            queue.value = queue.value if queue.failure else value
            self.change.notify_all()


def outcome(point):
    queue = point.timeline.native
    return True if queue.value >= point.value else queue.failure


def view(side, dtype=DType.U8):
    if isinstance(side, v.Region):
        side = memoryview(side.buffer.native)[side.offset : side.offset + side.nbytes]
    return np.frombuffer(side, NUMPY[dtype])


for hook in MANDATORY_DEVICE:
    hookimpl(vars(Trial)[hook])
