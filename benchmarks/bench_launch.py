"""What the contract adds to one launch: the device's hook against the plugin's native call, and
against what a user of OpenCL would write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
from hal_plugin_cpu._native import ffi, lib

import hal
from benchmarks import opencl
from benchmarks.row import Bar, Row
from benchmarks.timer import interleaved
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import HalError
from hal.core.values import (
    LLVM_IR,
    OPENCL_C,
    AllocOptions,
    KernelSource,
    Launchable,
    Param,
    ParamKind,
    Timeline,
)

DEVICE = "cpu:0"
NOTHING = """
define void @nothing(ptr %args, ptr %grid, i64 %begin, i64 %end) {
  ret void
}
"""
OPENCL_DEVICE = "opencl:0"
OPENCL_NOTHING = "__kernel void nothing(__global uchar *x_base, ulong x_offset) {}"
GRID = (1, 1, 1)


def rows(quick: bool) -> Iterator[Row]:
    yield from _cpu(20 if quick else 400)
    yield from _opencl(20 if quick else 400)


def _cpu(rounds: int) -> Iterator[Row]:
    with hal.open(DEVICE, wrappers=()) as bare, hal.open(DEVICE, wrappers=("validate",)) as checked:
        source = (LLVM_IR, NOTHING)
        submits = [_native(bare), _hook(bare, *source), _hook(checked, *source)]
        native_s, bare_s, checked_s = interleaved(submits, rounds, 50)
    peer, note = (1e6 * native_s, "native call"), "submission alone; nothing is waited for"
    yield Row("launch through the contract, no wrapper", "us", 1e6 * bare_s, *peer, note=note)
    yield Row("launch through the contract, validated", "us", 1e6 * checked_s, *peer, note=note)


def _opencl(rounds: int) -> Iterator[Row]:
    claim, bar = "launch on OpenCL through the contract, no wrapper", Bar(limit=5)
    try:
        device = hal.open(OPENCL_DEVICE, wrappers=())
    except HalError as error:
        yield Row(claim, "us", None, bar=bar, note=str(error))
        return
    with device:
        submits = [_hook(device, OPENCL_C, OPENCL_NOTHING), _raw_opencl()]
        elapsed = interleaved(submits, rounds, 50)
        computed = interleaved(submits, rounds, 50, time.thread_time)
    note = f"{device.info.description}; the peer sets its arguments at each launch; {opencl.load()}"
    for (ours_s, raw_s), of, limit in (
        (elapsed, "", bar),
        (computed, "by processor time of the launching thread, ", None),
    ):
        yield Row(claim, "us", 1e6 * ours_s, 1e6 * raw_s, "pyopencl", bar=limit, note=of + note)


def _raw_opencl() -> Callable[[], object]:
    """The same in pyopencl, on the first device of the first platform."""
    # Only now: an import of pyopencl writes an environment variable.
    cl: Any = import_module("pyopencl")
    context = cl.Context(cl.get_platforms()[0].get_devices()[:1])
    queue = cl.CommandQueue(context)
    kernel = cl.Kernel(cl.Program(context, OPENCL_NOTHING).build(), "nothing")
    buffer, offset = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64), np.uint64(0)
    return lambda: kernel(queue, GRID, GRID, buffer, offset)


def _hook(device: Device, language: str, text: str) -> Callable[[], object]:
    """Submits a launch of an empty program."""
    bound, timeline = _launchable(device, language, text)
    launch = device.launch
    return lambda: launch(bound, GRID, timeline, ())


def _native(device: Device) -> Callable[[], object]:
    """The same by the plugin's own native function."""
    bound, timeline = _launchable(device, LLVM_IR, NOTHING)
    session: Any = device.launch
    native, pointer, queue = session.__self__._native, bound.native.pointer, timeline.native
    launch, null = lib.hc_launch, ffi.NULL
    return lambda: launch(native, pointer, *GRID, queue, 0, null, 0)


def _launchable(device: Device, language: str, text: str) -> tuple[Launchable, Timeline]:
    param = Param("x", ParamKind.BUFFER, DType.U8)
    source = KernelSource(language, text, "nothing", (param,))
    bound = device.bind(device.load(source), [device.alloc(64, AllocOptions())])
    return bound, device.create_timeline(False)
