"""Bytearrays, sixteen queues served by a thread each, programs in LLVM IR."""

import threading

import numpy as np

from hal.core import description as d
from hal.core import errors as e
from hal.core import values as v
from hal.core.dtypes import DType
from hal.core.spec import MANDATORY_DEVICE, hookimpl
from hal.tile.numeric import NUMPY
from hal_plugin_trial1.compiler import Compiler

NAME, NBYTES, GRANULE = "trial1:0", 96 * 10_000_000, 96
TYPES = dict.fromkeys(set(DType) - {DType.F16, DType.BF16}, 0.0)
SPACES = (
    d.MemorySpace("ram", d.SpaceKind.GLOBAL, NBYTES, GRANULE),
    d.MemorySpace("stack", d.SpaceKind.SCRATCHPAD, 1 << 19, 64),
)
LIMITS = d.Limits((1 << 30, 1 << 16, 1 << 16), 256, NBYTES, 16, 1, vector_nbytes=32, registers=16)
NUMBERS = d.NumericProfile(dict.fromkeys(d.FUNCTIONS, 2.5), True, True, {t: t for t in TYPES})
FACTS = (LIMITS, SPACES, TYPES, NUMBERS, (v.LLVM_IR,), frozenset())
FAULT = (e.FailureKind.LAUNCH_FAULT, e.Scope.OPERATION, NAME)


@hookimpl
def enumerate_devices():
    return [d.DeviceSummary(0, "bytearrays and LLVM")]


@hookimpl
def open_device(index, options):
    if index or options.settings:
        raise e.InvalidCall(f"there is {NAME} without settings, not {index} {options.settings}")
    return Trial()


class Queue:
    def __init__(self, device, is_device):
        self.device, self.todo, self.freed = device, [], False
        self.value, self.owed, self.failure = 0, 0, None
        self.server = threading.Thread(target=self.serve, daemon=True) if is_device else None
        if self.server:
            self.server.start()

    def end(self, value, failure):
        with self.device.change:
            self.failure = self.failure or failure
            self.value = self.value if self.failure else value
            self.device.change.notify_all()

    def ready(self):
        return self.ended() or (self.todo and all(map(outcome, self.todo[0][1])))

    def ended(self):
        return self.device.closed or (self.freed and not self.todo)

    def serve(self):
        while not self.ended():
            with self.device.change:
                if not self.device.change.wait_for(self.ready, 1) or self.ended():
                    continue
                name, waits, run = self.todo[0]
                causes = [self.failure or True, *map(outcome, waits)]
                failure = next((o for o in causes if o is not True), None)
            try:
                failure or run()
            except (e.HalError, ValueError) as error:
                failure = e.Failure(*FAULT, name, str(error))
            self.todo.pop(0)
            self.end(self.value + 1, failure)


class Trial:
    def __init__(self):
        self.change, self.closed, self.used, self.queues = threading.Condition(), False, 0, []
        self.compiler = Compiler()

    def describe(self):
        return d.DeviceInfo(NAME, "trial1", "bytearrays and LLVM", "trial1", 1, *FACTS)

    def health(self):
        return v.Health(v.HealthState.CLOSED if self.closed else v.HealthState.OK, 0)

    def close(self):
        with self.change:
            busy = lambda: any(queue.ready() for queue in self.queues)
            self.change.wait_for(lambda: self.closed or not busy(), 10)
            self.closed = True
            self.change.notify_all()
        for queue in self.queues:
            queue.server.join(10)
        self.compiler.close()

    def free(self, handle):
        with self.change:
            self.used -= len(handle.native) if isinstance(handle, v.Buffer) else 0
            if isinstance(handle, v.Timeline) and handle.host_driven:
                handle.native.end(0, e.Failure(*FAULT, "free", "the timeline was freed"))
            elif isinstance(handle, v.Timeline):
                self.queues.remove(handle.native)
                handle.native.freed = True
                self.change.notify_all()

    def alloc(self, nbytes, options):
        with self.change:
            size, left = -(-nbytes // GRANULE) * GRANULE, NBYTES - self.used
            self.check(size <= left, e.OutOfMemory("the memory is full", nbytes, left))
            self.used += size
        raw = np.zeros(size + GRANULE * 2, np.uint8)
        start = -raw.ctypes.data % (GRANULE * 2)
        return v.Buffer(NAME, 0, raw[start : start + size], nbytes, "ram")

    def copy(self, dst, src, timeline, waits):
        return self.submit("copy", timeline, waits, lambda: np.copyto(view(dst), view(src)))

    def fill(self, dst, pattern, timeline, waits):
        run = lambda: np.copyto(view(dst), view(pattern * (dst.nbytes // len(pattern))))
        return self.submit("fill", timeline, waits, run)

    def load(self, source):
        self.check(not source.options, e.CompileError("there are no options", "options"))
        found = self.compiler.compile(source.text, source.entry)
        self.check(not isinstance(found, str), e.CompileError("it is no program", str(found)))
        return v.Program(NAME, 0, found, source.entry, source.params)

    def bind(self, program, args):
        slots, keep = np.zeros(max(len(args), 1), np.uint64), []
        for i, (param, arg) in enumerate(zip(program.params, args, strict=True)):
            if param.kind is v.ParamKind.BUFFER:
                keep.append(view(arg.region() if isinstance(arg, v.Buffer) else arg))
                slots[i] = keep[-1].ctypes.data
            else:
                data = np.array(arg, NUMPY[param.dtype]).tobytes()
                slots[i : i + 1].view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
        return v.Launchable(NAME, 0, (slots, keep), program)

    def launch(self, launchable, grid, timeline, waits):
        sizes, count = np.array(grid, np.int64), int(np.prod(grid))
        slots, program = launchable.native[0], launchable.program
        call = lambda: count and program.native(slots.ctypes.data, sizes.ctypes.data, 0, count)
        return self.submit(program.entry, timeline, waits, lambda keep=launchable: call())

    def create_timeline(self, host_driven):
        room = host_driven or len(self.queues) < LIMITS.queues
        self.check(room, e.InvalidCall(f"{NAME} has {LIMITS.queues} queues"))
        queue = Queue(self, not host_driven)
        self.queues += [] if host_driven else [queue]
        return v.Timeline(NAME, 0, queue, host_driven)

    def signal(self, timeline, value, failure):
        queue = timeline.native
        grows = failure or queue.failure or value > queue.value
        self.check(grows, e.InvalidCall(f"signal: {value} does not grow"))
        queue.end(value, failure)

    def wait(self, points, timeout_s, wait_all):
        choose = all if wait_all else any
        enough = lambda: not points or choose(outcome(p) is True for p in points)
        failed = lambda: not enough() and [o for o in map(outcome, points) if o not in (True, None)]
        with self.change:
            self.change.wait_for(lambda: enough() or failed(), min(timeout_s, 1e6))
            if failures := failed():
                raise e.error_for(failures[0])
            return enough()

    def check(self, holds, error):
        if self.closed or not holds:
            raise e.StaleHandle(f"{NAME} is closed") if self.closed else error

    def submit(self, name, timeline, waits, run):
        with self.change:
            self.check(True, None)
            timeline.native.owed += 1
            timeline.native.todo.append((name, tuple(waits), run))
            self.change.notify_all()
            return v.Point(timeline, timeline.native.owed)


def outcome(point):
    queue = point.timeline.native
    return True if queue.value >= point.value else queue.failure


def view(side):
    if isinstance(side, v.Region):
        return side.buffer.native[side.offset : side.offset + side.nbytes]
    return np.frombuffer(side, np.uint8)


for hook in MANDATORY_DEVICE:
    hookimpl(vars(Trial)[hook])
