"""What the contract adds to one launch: the device's hook against the plugin's native call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hal_plugin_cpu._native import ffi, lib

import hal
from benchmarks.row import Row
from benchmarks.timer import interleaved
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.values import (
    LLVM_IR,
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
GRID = (1, 1, 1)


def rows(quick: bool) -> Iterator[Row]:
    rounds = 20 if quick else 400
    with hal.open(DEVICE, wrappers=()) as bare, hal.open(DEVICE, wrappers=("validate",)) as checked:
        submits = [_native(bare), _hook(bare), _hook(checked)]
        native_s, bare_s, checked_s = interleaved(submits, rounds, 50)
    peer, note = (1e6 * native_s, "native call"), "submission alone; nothing is waited for"
    yield Row("launch through the contract, no wrapper", "us", 1e6 * bare_s, *peer, note=note)
    yield Row("launch through the contract, validated", "us", 1e6 * checked_s, *peer, note=note)


def _hook(device: Device) -> Callable[[], object]:
    """Submits a launch of an empty program."""
    bound, timeline = _launchable(device)
    launch = device.launch
    return lambda: launch(bound, GRID, timeline, ())


def _native(device: Device) -> Callable[[], object]:
    """The same by the plugin's own native function."""
    bound, timeline = _launchable(device)
    session: Any = device.launch
    native, pointer, queue = session.__self__._native, bound.native.pointer, timeline.native
    launch, null = lib.hc_launch, ffi.NULL
    return lambda: launch(native, pointer, *GRID, queue, 0, null, 0)


def _launchable(device: Device) -> tuple[Launchable, Timeline]:
    param = Param("x", ParamKind.BUFFER, DType.U8)
    source = KernelSource(LLVM_IR, NOTHING, "nothing", (param,))
    bound = device.bind(device.load(source), [device.alloc(64, AllocOptions())])
    return bound, device.create_timeline(False)
