"""The entry point of the group `hal.plugins`: finds and opens the OpenCL devices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from hal.core.description import DeviceSummary
from hal.core.errors import InvalidCall, PluginError
from hal.core.spec import hookimpl
from hal.core.values import OpenOptions
from hal.hosted.device import HostedDevice
from hal_plugin_opencl import look

PLUGIN = "opencl"

CALIBRATE_VARIABLE = "HAL_OPENCL_CALIBRATE"
"""1: measure what the devices do when the first one is opened, and declare it."""

DEVICES_VARIABLE = "HAL_OPENCL_DEVICES"
"""How often the first device is presented, each time with its own context, in place of all devices
once. More than one serve groups where there is one device."""

VARIABLES = {
    "memory_nbytes": "HAL_OPENCL_MEMORY",
    "progress_s": "HAL_OPENCL_PROGRESS",
    "lanes": "HAL_OPENCL_LANES",
}
"""The settings, and the variables that give them where a setting does not. `memory_nbytes`: the
most bytes that the device allocates (what the driver says, shared among its presentations);
`progress_s`: how long an operation may take before it counts as hanging (60); `lanes`: the most
work-items that run an instance together (1 on a CPU, else as many as most devices let be)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An opened device: index `index` of `count`, the `position` of its hardware among those found
    and how many devices share that; `memory_nbytes` 0 leaves the size to the driver, `lanes` 0 the
    lanes to the kind of device."""

    index: int
    count: int
    position: int
    shared: int
    memory_nbytes: int
    progress_s: float
    lanes: int


@hookimpl
def enumerate_devices() -> Sequence[DeviceSummary]:
    """The devices by the names of platform and device, or the first one as often as the variable
    `DEVICES_VARIABLE` says."""
    lines, times = look.listed(), _times()
    shown = lines[:1] * times if times else lines
    return [DeviceSummary(index, line) for index, line in enumerate(shown)]


@hookimpl
def open_device(index: int, options: OpenOptions) -> HostedDevice:
    """Open a device with the settings of `VARIABLES`."""
    count = len(enumerate_devices())
    if not 0 <= index < count:
        raise InvalidCall(f"there is no device {PLUGIN}:{index}; there are {count}")
    if unknown := sorted(options.settings.keys() - VARIABLES.keys()):
        raise InvalidCall(
            f"{PLUGIN}:{index}: unknown settings {', '.join(unknown)}; "
            f"known are {', '.join(VARIABLES)}"
        )
    memory, progress, lanes = (_number(name, options) for name in VARIABLES)
    times = _times()
    choice = Choice(
        index,
        count,
        position=0 if times else index,
        shared=times or 1,
        memory_nbytes=int(memory),
        progress_s=progress or 60.0,
        lanes=int(lanes),
    )
    # Only now: pyopencl writes an environment variable when it is imported.
    declared = {}
    if os.environ.get(CALIBRATE_VARIABLE, "") not in ("", "0"):
        declared = import_module("hal_plugin_opencl.calibrate").figures(choice)
    machine = import_module("hal_plugin_opencl.machine")
    opened: HostedDevice = machine.opened(choice, options.cache_dir, declared)
    return opened


def _times() -> int:
    text = os.environ.get(DEVICES_VARIABLE, "0")
    if not text.isdecimal():
        raise PluginError(f"{DEVICES_VARIABLE} must be a whole number, is {text!r}")
    return int(text)


def _number(name: str, options: OpenOptions) -> float:
    """A setting, or its variable; 0 where neither is given."""
    given = name in options.settings
    text = options.settings[name] if given else os.environ.get(VARIABLES[name], "")
    try:
        number = float(text or "0")
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e15 or (given and not number):
        where = name if given else VARIABLES[name]
        raise (InvalidCall if given else PluginError)(f"{where} must be above 0, is {text!r}")
    return number
