"""The entry point of the group `hal.plugins`: finds and opens the host's CPU devices."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from hal.core.description import DeviceSummary
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

SETTINGS = ("threads", "memory_nbytes")
"""`threads`: worker threads; `memory_nbytes`: the most bytes that the device allocates."""


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
    shape = Shape(index, count, _threads(options.settings), _capacity(options.settings, count))
    return CpuDevice(shape, options.cache_dir)


def _devices() -> int:
    return _count(DEVICES_VARIABLE, os.environ.get(DEVICES_VARIABLE, "1"), PluginError)


def _threads(settings: Mapping[str, str]) -> int:
    if "threads" in settings:
        return _count("threads", settings["threads"], InvalidCall)
    if THREADS_VARIABLE in os.environ:
        return _count(THREADS_VARIABLE, os.environ[THREADS_VARIABLE], PluginError)
    return machine.cores()


def _capacity(settings: Mapping[str, str], count: int) -> int:
    if "memory_nbytes" in settings:
        return _count("memory_nbytes", settings["memory_nbytes"], InvalidCall)
    if MEMORY_VARIABLE in os.environ:
        return _count(MEMORY_VARIABLE, os.environ[MEMORY_VARIABLE], PluginError)
    return machine.memory_nbytes() // count


def _count(name: str, text: str, error: type[Exception]) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise error(f"{name} must be a whole number of at least 1, is {text!r}")
    return int(text)
