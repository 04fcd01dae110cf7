"""An opened device: its context, its queues, its memory and what runs on it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyopencl as cl

from hal.core.errors import Failure, FailureKind, OperationFailed, PluginError, Scope
from hal.core.values import AllocOptions, Grid, KernelSource, SharedHandle, Slot
from hal.hosted.device import HostedDevice
from hal.hosted.machine import Part
from hal.hosted.order import Order
from hal.hosted.slab import Slabs
from hal.hosted.streams import After, StreamMachine
from hal_plugin_opencl import find
from hal_plugin_opencl.describe import computes_in_host_memory, describe, granularity
from hal_plugin_opencl.memory import Memory, adopted, of_driver
from hal_plugin_opencl.plugin import PLUGIN, Choice
from hal_plugin_opencl.programs import Bound, Loaded, Programs

_NO_MEMORY = (
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
    cl.status_code.OUT_OF_HOST_MEMORY,
    cl.status_code.OUT_OF_RESOURCES,
    cl.status_code.INVALID_BUFFER_SIZE,
)
_FAILURES: Mapping[int, tuple[FailureKind, Scope]] = {
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE: (FailureKind.OUT_OF_MEMORY, Scope.OPERATION),
    cl.status_code.OUT_OF_HOST_MEMORY: (FailureKind.OUT_OF_MEMORY, Scope.OPERATION),
    cl.status_code.DEVICE_NOT_AVAILABLE: (FailureKind.DEVICE_LOST, Scope.DEVICE),
}
_COMPILE_S = 60.0
"""How long a driver may take to generate code at a first launch."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10e-6, 1e-3
_WARM_GRIDS: tuple[Grid, ...] = ((1, 1, 1), (1 << 16, 1, 1))
"""PoCL generates other code for a grid that 16 bits hold."""

_BEGIN_AND_END = (cl.profiling_info.START, cl.profiling_info.END)

_ABANDONED: list[object] = []
"""Streams and operations that never ended: giving them back would wait for them."""


def opened(choice: Choice, cache_dir: str, declared: Mapping[str, float]) -> HostedDevice:
    """Open the device, which declares these figures. Raises PluginError when the driver does not
    let it."""
    try:
        device = find.devices()[choice.position]
        info = replace(describe(device, choice), declared=declared)
        machine = OpenclMachine(info.name, info.fingerprint, device, cache_dir, choice.progress_s)
    except cl.Error as error:
        raise PluginError(f"opencl:{choice.index} cannot be opened: {error}") from error
    return HostedDevice(info, machine, Order())


class OpenclMachine(StreamMachine):
    """One context; a stream is an in-order queue of it, a mark an event."""

    def __init__(
        self, name: str, fingerprint: str, device: cl.Device, cache_dir: str, progress_s: float
    ) -> None:
        self._name, self._progress_s = name, progress_s
        self._context = cl.Context([device])
        self._programs = Programs(self._context, device, fingerprint, cache_dir)
        self._slabs = (
            Slabs(PLUGIN, granularity(device)) if computes_in_host_memory(device) else None
        )
        self._first: tuple[cl.Event, float] | None = None
        self._flushes = True
        self._own = self.open_stream()
        # The most of several, because each is too small by the time from the look at the clock on.
        self._clock_ns = max(self._difference_ns() for _ in range(8))

    # memory

    def allocate(self, nbytes: int, options: AllocOptions) -> Memory:
        if self._slabs is not None:
            return adopted(self._context, self._slabs.allocated(max(nbytes, 1), options))
        try:
            memory = of_driver(self._context, nbytes)
        except cl.Error as error:
            if error.code in _NO_MEMORY:
                raise MemoryError(str(error)) from error
            raise
        if options.zero and nbytes:
            self._finish(
                "alloc", self.fill(Part(memory, 0, nbytes), b"\0", nbytes, self._own, None)
            )
        return memory

    def release(self, memory: Memory) -> None:
        memory.release()

    def read(self, memory: Memory, offset: int, nbytes: int) -> bytes:
        if memory.slab is not None:
            return memory.slab.array[offset : offset + nbytes].tobytes()
        host = bytearray(nbytes)
        part = Part(memory, offset, nbytes)
        self._finish("copy", self.copy(memoryview(host), part, nbytes, self._own, None))
        return bytes(host)

    def write(self, memory: Memory, offset: int, data: bytes | memoryview) -> None:
        if memory.slab is not None:
            memory.slab.view()[offset : offset + len(data)] = data
            return
        part = Part(memory, offset, len(data))
        self._finish("copy", self.copy(part, memoryview(data), len(data), self._own, None))

    def map(self, memory: Memory) -> memoryview:
        return memory.host.view()

    def adopt(self, memory: memoryview) -> Memory:
        assert self._slabs is not None, "declared with slabs alone"
        return adopted(self._context, self._slabs.adopted(memory))

    def share(self, memory: Memory, nbytes: int) -> SharedHandle:
        assert self._slabs is not None, "declared with slabs alone"
        return self._slabs.handle(memory.host, nbytes)

    def attach(self, shared: SharedHandle) -> Memory:
        assert self._slabs is not None, "declared with slabs alone"
        return adopted(self._context, self._slabs.attached(shared))

    # programs

    def compile(self, source: KernelSource) -> Loaded:
        loaded = self._programs.load(source)
        if loaded.guarded:
            for grid in _WARM_GRIDS:
                event = self.launch(loaded.idle(), grid, self._own, None)
                self._finish(f"launch {loaded.entry}", event, _COMPILE_S)
        return loaded

    def close(self) -> None:
        self._programs.keep()

    def bind(self, program: Loaded, args: Sequence[Part | float | Slot]) -> Bound:
        bound = Bound(program)
        for index, arg in enumerate(args):
            if not isinstance(arg, Slot):
                bound.put(index, arg)
        return bound

    def rebind(self, bound: Bound, index: int, arg: Part | float) -> None:
        bound.put(index, arg)

    # streams

    def open_stream(self) -> cl.CommandQueue:
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        return cl.CommandQueue(self._context, properties=profiling)

    @contextmanager
    def together(self, stream: cl.CommandQueue) -> Iterator[Sequence[Any]]:
        """On a processor the device's threads take the cores from the one that hands over."""
        gate = None if self._slabs is None else cl.UserEvent(self._context)
        self._flushes = False
        try:
            yield () if gate is None else (gate,)
        finally:
            self._flushes = True
            if gate is not None:
                gate.set_status(cl.command_execution_status.COMPLETE)
            stream.flush()

    def launch(self, bound: Bound, grid: Grid, stream: cl.CommandQueue, after: After) -> cl.Event:
        if 0 in grid:
            return self.nothing(stream, after)
        lanes = bound.lanes
        sizes = grid if lanes == 1 else (grid[0] * lanes, grid[1], grid[2])
        try:
            event = cl.enqueue_nd_range_kernel(
                stream, bound.kernel, sizes, bound.local, None, after
            )
            if self._flushes:
                stream.flush()
        except cl.Error as error:
            raise self._refused(f"launch {bound.loaded.entry}", error) from error
        if not bound.loaded.started:
            bound.loaded.started = True
            self._first = (event, time.monotonic() + _COMPILE_S)
        return event

    def copy(
        self, dst: Part | memoryview, src: Part | memoryview, nbytes: int, stream: Any, after: After
    ) -> cl.Event:
        if not nbytes:
            return self.nothing(stream, after)
        given: dict[str, Any] = {"wait_for": after}
        if isinstance(dst, Part):
            given["dst_offset"] = dst.offset
        if isinstance(src, Part):
            given["src_offset"] = src.offset
        if isinstance(dst, Part) and isinstance(src, Part):
            given["byte_count"] = nbytes
        else:
            given["is_blocking"] = False
        sides = [s.memory.buffer if isinstance(s, Part) else s[:nbytes] for s in (dst, src)]
        with self._translated("copy"):
            event = cl.enqueue_copy(stream, *sides, **given)
            stream.flush()
        return event

    def fill(
        self, dst: Part, pattern: bytes, nbytes: int, stream: cl.CommandQueue, after: After
    ) -> cl.Event:
        if not nbytes:
            return self.nothing(stream, after)
        unit = np.frombuffer(pattern, np.uint8)
        with self._translated("fill"):
            event = cl.enqueue_fill_buffer(
                stream, dst.memory.buffer, unit, dst.offset, nbytes, wait_for=after
            )
            stream.flush()
        return event

    def nothing(self, stream: cl.CommandQueue, after: After) -> cl.Event:
        with self._translated("marker"):
            event = cl.enqueue_marker(stream, after)
            stream.flush()
        return event

    def state(self, mark: cl.Event) -> int:
        state: int = mark.command_execution_status
        return state

    def is_patient(self) -> bool:
        if self._first is None:
            return False
        event, until_s = self._first
        if time.monotonic() < until_s and self.state(event) > 0:
            return True
        self._first = None
        return False

    def failure(self, operation: str, state: int) -> Failure:
        text = f"the driver ended it with status {state}"
        kind, scope = _FAILURES.get(state, (FailureKind.LAUNCH_FAULT, Scope.OPERATION))
        return Failure(kind, scope, self._name, operation, text)

    def times(self, mark: cl.Event) -> tuple[int, int]:
        begin_ns, end_ns = (_clock_ns(mark, which) for which in _BEGIN_AND_END)
        return begin_ns + self._clock_ns, end_ns + self._clock_ns

    def abandon(self, held: Sequence[Any]) -> None:
        _ABANDONED.extend((*held, self._own))
        self._own = self.open_stream()

    def _difference_ns(self) -> int:
        """What is to be added to the driver's clock to have the host's, or a little less."""
        now_ns = time.monotonic_ns()
        event = self.nothing(self._own, None)
        self._finish("open", event)
        return now_ns - _clock_ns(event, cl.profiling_info.QUEUED)

    def _finish(self, operation: str, event: cl.Event, more_s: float = 0.0) -> None:
        """Wait for an operation on the own stream, at most `more_s` longer than it may take."""
        ends, pause_s = time.monotonic() + self._progress_s + more_s, _FIRST_PAUSE_S
        while (state := self.state(event)) > 0:
            if time.monotonic() > ends:
                self.abandon([event])
                text = f"it did not end in {self._progress_s:g} s"
                raise OperationFailed(
                    Failure(FailureKind.HANG, Scope.DEVICE, self._name, operation, text)
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if state < 0:
            raise OperationFailed(self.failure(operation, state))

    @contextmanager
    def _translated(self, operation: str) -> Iterator[None]:
        try:
            yield
        except cl.Error as error:
            raise self._refused(operation, error) from error

    def _refused(self, operation: str, error: cl.Error) -> OperationFailed:
        kind, scope = _FAILURES.get(error.code, (FailureKind.LAUNCH_FAULT, Scope.OPERATION))
        return OperationFailed(Failure(kind, scope, self._name, operation, str(error)))


def _clock_ns(event: cl.Event, which: cl.profiling_info) -> int:
    """A time of an event, in ns of the driver's clock."""
    time_ns: Any = event.get_profiling_info(which)
    return int(time_ns)
