"""An opened device: its context, its queues, its memory and what runs on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyopencl as cl

from hal.core.description import DeviceInfo
from hal.core.errors import FailureKind, InvalidCall, OperationFailed, PluginError, Scope
from hal.core.values import Grid, KernelSource
from hal.hosted.device import HostedDevice
from hal.hosted.driven import COMPILE_S, DrivenMachine, DriverMemory
from hal.hosted.forks import starts
from hal.hosted.machine import Part
from hal.hosted.order import Order
from hal.hosted.places import Place
from hal.hosted.slab import Slab, Slabs
from hal.hosted.streams import After
from hal_plugin_opencl import find
from hal_plugin_opencl.choice import PLUGIN, Choice
from hal_plugin_opencl.describe import computes_in_host_memory, describe
from hal_plugin_opencl.programs import ADDRESS, Bound, Loaded, Programs
from hal_plugin_opencl.rounds import keeps_loops

_NO_MEMORY = (
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
    cl.status_code.OUT_OF_HOST_MEMORY,
    cl.status_code.OUT_OF_RESOURCES,
    cl.status_code.INVALID_BUFFER_SIZE,
)
_MEANINGS: Mapping[int, tuple[FailureKind, Scope]] = {
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE: (FailureKind.OUT_OF_MEMORY, Scope.OPERATION),
    cl.status_code.OUT_OF_HOST_MEMORY: (FailureKind.OUT_OF_MEMORY, Scope.OPERATION),
    cl.status_code.DEVICE_NOT_AVAILABLE: (FailureKind.DEVICE_LOST, Scope.DEVICE),
}
SMALL = 1 << 16
"""PoCL generates other code for a grid that 16 bits hold."""

_TIMES = (
    cl.profiling_info.QUEUED,
    cl.profiling_info.SUBMIT,
    cl.profiling_info.START,
    cl.profiling_info.END,
)


def lists(lines: Sequence[str], name: str) -> bool:
    """Whether the driver lists these devices now; it is started for the device of that name. Raises
    PluginError in a process that was forked from one in which it ran."""
    starts("OpenCL", name)
    try:
        return [find.summary(device) for device in find.devices()] == list(lines)
    except cl.Error:
        return False


def opened(choice: Choice, cache_dir: str, declared: Mapping[str, float]) -> HostedDevice:
    """Open the device, which declares these figures. Raises PluginError when the driver does not
    let it, and in a process that was forked from one in which it ran: its threads stayed there."""
    starts("OpenCL", choice.name)
    try:
        device = find.at(choice.place)
        info = replace(describe(device, choice), declared=declared)
        return HostedDevice(info, OpenclMachine(info, device, cache_dir, choice.place), Order())
    except cl.Error as error:
        raise PluginError(f"{choice.name} cannot be opened: {error}") from error


class OpenclMachine(DrivenMachine):
    """One context; a stream is an in-order queue of it, a mark an event."""

    meanings = _MEANINGS

    def __init__(self, info: DeviceInfo, device: cl.Device, cache_dir: str, place: Place) -> None:
        self._context = cl.Context([device])
        self._programs = Programs(self._context, device, info.fingerprint, cache_dir, place)
        self._flushes = True
        in_host, granularity = computes_in_host_memory(device), info.spaces[0].granularity
        slabs = Slabs(PLUGIN, granularity) if in_host else None
        super().__init__(info.name, info.limits.progress_s, slabs)
        wait = partial(self.finish, "open", more_s=COMPILE_S)
        if not keeps_loops(self.own, info.fingerprint, cache_dir, wait):
            raise PluginError(
                f"{info.name} ({info.description}) would compute wrong results: its compiler "
                "leaves loops before their end, after 65,536 rounds or so, and says nothing; use "
                "another driver"
            )

    # memory

    def reserve(self, nbytes: int) -> DriverMemory:
        try:
            buffer = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, max(nbytes, 1))
        except cl.Error as error:
            if error.code in _NO_MEMORY:
                raise MemoryError(str(error)) from error
            raise
        return DriverMemory(buffer, ADDRESS.pack(buffer.int_ptr))

    def over(self, slab: Slab) -> DriverMemory:
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        view = slab.view() if slab.array.size else memoryview(bytearray(1))
        try:
            buffer = cl.Buffer(self._context, flags, hostbuf=view)
        except (BufferError, cl.Error) as error:
            raise InvalidCall(f"the device cannot use this memory of the host: {error}") from error
        return DriverMemory(buffer, ADDRESS.pack(buffer.int_ptr), slab)

    # programs

    def compile(self, source: KernelSource) -> Loaded:
        loaded = self._programs.load(source)
        if loaded.guarded:
            event = self.launch(loaded.idle(), (1, 1, 1), self.own, None)
            self.finish(f"launch {loaded.entry}", event, COMPILE_S)
        return loaded

    def close(self) -> None:
        self._programs.keep()

    def bound(self, program: Loaded) -> Bound:
        return Bound(program)

    # streams

    def open_stream(self) -> cl.CommandQueue:
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        return cl.CommandQueue(self._context, properties=profiling)

    @contextmanager
    def together(self, stream: cl.CommandQueue) -> Iterator[Sequence[Any]]:
        """On a processor the device's threads take the cores from the one that hands over."""
        gate = None if self.slabs is None else cl.UserEvent(self._context)
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
        is_small = max(sizes) < SMALL
        if is_small not in bound.loaded.started:
            bound.loaded.started.add(is_small)
            self.expect_long(event)
        return event

    def copy(
        self, dst: Part | memoryview, src: Part | memoryview, nbytes: int, stream: Any, after: After
    ) -> cl.Event:
        if not nbytes:
            return self.nothing(stream, after)
        ends = {"dst_offset": dst, "src_offset": src}
        given: Any = {name: end.offset for name, end in ends.items() if isinstance(end, Part)}
        given |= {"byte_count": nbytes} if len(given) == len(ends) else {"is_blocking": False}
        sides = [s.memory.native if isinstance(s, Part) else s[:nbytes] for s in (dst, src)]
        with self._translated("copy"):
            event = cl.enqueue_copy(stream, *sides, wait_for=after, **given)
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
                stream, dst.memory.native, unit, dst.offset, nbytes, wait_for=after
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

    def clock_ns(self, mark: cl.Event) -> tuple[int, int, int]:
        told: Any = mark.get_profiling_info
        queued, submitted, begin, end = map(told, _TIMES)
        # Intel's runtime does not say when it was given a marker.
        return queued or submitted, begin, end

    @contextmanager
    def _translated(self, operation: str) -> Iterator[None]:
        try:
            yield
        except cl.Error as error:
            raise self._refused(operation, error) from error

    def _refused(self, operation: str, error: cl.Error) -> OperationFailed:
        return OperationFailed(self.failed(operation, error.code, str(error)))
