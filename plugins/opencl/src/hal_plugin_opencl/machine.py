"""An opened device: its context, its queue, its memory and what runs on it."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pyopencl as cl

from hal.core.errors import Failure, FailureKind, OperationFailed, PluginError, Scope
from hal.core.values import AllocOptions, Grid, KernelSource, Param, ParamKind
from hal.hosted.device import HostedDevice
from hal.hosted.machine import Machine, Part
from hal.hosted.order import Order
from hal.tile.numeric import constant, quiet
from hal_plugin_opencl import find, programs
from hal_plugin_opencl.describe import describe
from hal_plugin_opencl.plugin import Choice
from hal_plugin_opencl.programs import Loaded

_MEMORY_CODES = (
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

_ABANDONED: list[object] = []
"""Queues and events of operations that never ended: giving them back would wait for them."""


def opened(choice: Choice) -> HostedDevice:
    """Open the device. Raises PluginError when the driver does not let it."""
    try:
        device = find.devices()[choice.position]
        info = describe(device, choice)
        machine = OpenclMachine(info.name, device, choice.progress_s)
    except cl.Error as error:
        raise PluginError(f"opencl:{choice.index} cannot be opened: {error}") from error
    return HostedDevice(info, machine, Order())


class OpenclMachine(Machine):
    """One context and one in-order queue."""

    def __init__(self, name: str, device: cl.Device, progress_s: float) -> None:
        self._name, self._device, self._progress_s = name, device, progress_s
        self._context = cl.Context([device])
        self._queue = cl.CommandQueue(self._context)

    def allocate(self, nbytes: int, options: AllocOptions) -> cl.Buffer:
        try:
            buffer = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, max(nbytes, 1))
        except cl.Error as error:
            if error.code in _MEMORY_CODES:
                raise MemoryError(str(error)) from error
            raise
        if options.zero and nbytes:
            zero = np.zeros(1, np.uint8)
            self._finish("alloc", cl.enqueue_fill_buffer(self._queue, buffer, zero, 0, nbytes))
        return buffer

    def release(self, memory: cl.Buffer) -> None:
        memory.release()

    def read(self, memory: cl.Buffer, offset: int, nbytes: int) -> bytes:
        host = np.empty(nbytes, np.uint8)
        if nbytes:
            with self._translated("copy"):
                event = cl.enqueue_copy(
                    self._queue, host, memory, src_offset=offset, is_blocking=False
                )
            self._finish("copy", event)
        return host.tobytes()

    def write(self, memory: cl.Buffer, offset: int, data: bytes | memoryview) -> None:
        if len(data):
            host = np.frombuffer(data, np.uint8)
            with self._translated("copy"):
                event = cl.enqueue_copy(
                    self._queue, memory, host, dst_offset=offset, is_blocking=False
                )
            self._finish("copy", event)

    def compile(self, source: KernelSource) -> Loaded:
        loaded = programs.load(self._context, self._device, source)
        if loaded.guarded:
            self._start(loaded, [None] * len(loaded.params), (1, 1, 1), run=False)
        return loaded

    def run(self, program: Loaded, args: Sequence[Part | float], grid: Grid) -> None:
        self._start(program, args, grid, run=True)

    def _start(
        self, program: Loaded, args: Sequence[Part | float | None], grid: Grid, run: bool
    ) -> None:
        operation = f"launch {program.entry}"
        sizes = (grid[0] * program.lanes, grid[1], grid[2])
        with self._translated(operation):
            _set_arguments(program, args, run)
            local = (program.lanes, 1, 1)
            event = cl.enqueue_nd_range_kernel(self._queue, program.kernel, sizes, local)
        self._finish(operation, event, 0.0 if program.started else _COMPILE_S)
        program.started = True

    def _finish(self, operation: str, event: cl.Event, more_s: float = 0.0) -> None:
        """Wait for an operation, at most `more_s` longer than it may take."""
        ends, pause_s = time.monotonic() + self._progress_s + more_s, _FIRST_PAUSE_S
        with self._translated(operation):
            self._queue.flush()
            while (status := event.command_execution_status) > 0:
                if time.monotonic() > ends:
                    self._abandon(operation, event)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if status < 0:
            text = f"the driver ended it with status {status}"
            raise self._failed(FailureKind.LAUNCH_FAULT, Scope.OPERATION, operation, text)

    def _abandon(self, operation: str, event: cl.Event) -> None:
        _ABANDONED.extend((self._queue, event))
        self._queue = cl.CommandQueue(self._context)
        text = f"it did not end in {self._progress_s:g} s"
        raise self._failed(FailureKind.HANG, Scope.DEVICE, operation, text)

    def _failed(
        self, kind: FailureKind, scope: Scope, operation: str, text: str
    ) -> OperationFailed:
        return OperationFailed(Failure(kind, scope, self._name, operation, text))

    @contextmanager
    def _translated(self, operation: str) -> Iterator[None]:
        try:
            yield
        except cl.Error as error:
            fault = (FailureKind.LAUNCH_FAULT, Scope.OPERATION)
            kind, scope = _FAILURES.get(error.code, fault)
            raise self._failed(kind, scope, operation, str(error)) from error


def _set_arguments(program: Loaded, args: Sequence[Part | float | None], run: bool) -> None:
    kernel, number = program.kernel, 0
    for param, arg in zip(program.params, args, strict=True):
        for value in _values(param, arg):
            kernel.set_arg(number, value)
            number += 1
    if program.guarded:
        kernel.set_arg(number, bytes([run]))


def _values(param: Param, arg: Part | float | None) -> list[cl.Buffer | bytes | None]:
    """The kernel arguments of a parameter's argument; None stands for none, in a run of nothing."""
    if param.kind is ParamKind.BUFFER:
        if isinstance(arg, Part):
            return [arg.memory, struct.pack("=Q", arg.offset)]
        return [None, struct.pack("=Q", 0)]
    assert not isinstance(arg, Part), "a scalar parameter takes a number"
    with quiet():
        return [constant(0 if arg is None else arg, param.dtype).tobytes()]
