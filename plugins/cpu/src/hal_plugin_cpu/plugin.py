"""The entry point of the group `hal.plugins`: finds and opens the host's CPU devices."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from functools import cache

from hal.core.description import DeviceSummary
from hal.core.device import Device
from hal.core.errors import InvalidCall, PluginError
from hal.core.spec import hookimpl
from hal.core.values import OpenOptions
from hal_plugin_cpu import machine
from hal_plugin_cpu.describe import Shape, summary
from hal_plugin_cpu.device import CpuDevice

DEVICES_VARIABLE = "HAL_CPU_DEVICES"
"""How many devices there are, sharing the cores and the memory (1). More than one serve groups in
one process."""

THREADS_VARIABLE = "HAL_CPU_THREADS"
"""Worker threads of each device, unless the setting `threads` says otherwise (the allowed
processors)."""

MEMORY_VARIABLE = "HAL_CPU_MEMORY"
"""The most bytes that each device allocates, unless the setting `memory_nbytes` says otherwise
(what
the process can have)."""

PROGRESS_VARIABLE = "HAL_CPU_PROGRESS"
"""Seconds without progress after which an operation counts as hanging, unless the setting
`progress_s` says otherwise (2)."""

SETTINGS = ("threads", "memory_nbytes", "progress_s")
"""`threads`: worker threads; `memory_nbytes`: the most bytes that the device allocates;
`progress_s`: how long an operation may make no progress."""

CALIBRATE_VARIABLE = "HAL_CPU_CALIBRATE"
"""1: measure what the devices do when the first one is opened, and declare it."""

_calibrating = threading.Lock()

_LEAST_PROGRESS_S = 0.01
"""Threads of a busy machine may rest for so long."""


@hookimpl
def enumerate_devices() -> Sequence[DeviceSummary]:
    """One device per count of `HAL_CPU_DEVICES`."""
    return [DeviceSummary(index, summary(_threads({}))) for index in range(_devices())]


@hookimpl
def open_device(index: int, options: OpenOptions) -> CpuDevice:
    """Open a device with the settings `SETTINGS`."""
    count = _devices()
    if not 0 <= index < count:
        raise InvalidCall(f"there is no device cpu:{index}; {DEVICES_VARIABLE} gives {count}")
    if unknown := sorted(set(options.settings) - set(SETTINGS)):
        raise InvalidCall(
            f"cpu:{index}: unknown settings {', '.join(unknown)}; known are {', '.join(SETTINGS)}"
        )
    declared: Mapping[str, float] = {}
    if os.environ.get(CALIBRATE_VARIABLE, "") not in ("", "0"):
        with _calibrating:
            declared = _measured(count, tuple(sorted(options.settings.items())))
    return CpuDevice(_shape(index, count, options.settings, declared), options.cache_dir)


def _shape(
    index: int, count: int, settings: Mapping[str, str], declared: Mapping[str, float]
) -> Shape:
    if "memory_nbytes" in settings:
        capacity = _count("memory_nbytes", settings["memory_nbytes"], InvalidCall)
    elif MEMORY_VARIABLE in os.environ:
        capacity = _count(MEMORY_VARIABLE, os.environ[MEMORY_VARIABLE], PluginError)
    else:
        capacity = machine.memory_nbytes() // count
    if "progress_s" in settings:
        progress_s = _seconds("progress_s", settings["progress_s"], InvalidCall)
    else:
        text = os.environ.get(PROGRESS_VARIABLE, "2")
        progress_s = _seconds(PROGRESS_VARIABLE, text, PluginError)
    return Shape(index, count, _threads(settings), capacity, progress_s, declared)


@cache
def _measured(count: int, settings: tuple[tuple[str, str], ...]) -> Mapping[str, float]:
    """What devices so opened do; measured once in a process."""
    # Imported here, since it is asked for by few.
    from hal.hosted.calibrate import measured  # noqa: PLC0415
    from hal_plugin_cpu.calibration_texts import TEXTS  # noqa: PLC0415

    devices: list[CpuDevice] = []
    try:
        for index in range(count):
            devices.append(CpuDevice(_shape(index, count, dict(settings), {}), ""))
        return measured([Device(d, d.describe().name) for d in devices], TEXTS)
    finally:
        for device in devices:
            device.close()


def _devices() -> int:
    return _count(DEVICES_VARIABLE, os.environ.get(DEVICES_VARIABLE, "1"), PluginError)


def _threads(settings: Mapping[str, str]) -> int:
    if "threads" in settings:
        return _count("threads", settings["threads"], InvalidCall)
    if THREADS_VARIABLE in os.environ:
        return _count(THREADS_VARIABLE, os.environ[THREADS_VARIABLE], PluginError)
    return machine.cores()


def _seconds(name: str, text: str, error: type[Exception]) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _LEAST_PROGRESS_S <= seconds < 1e6:
        raise error(f"{name} must be at least {_LEAST_PROGRESS_S} seconds, is {text!r}")
    return seconds


def _count(name: str, text: str, error: type[Exception]) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise error(f"{name} must be a whole number of at least 1, is {text!r}")
    return int(text)
