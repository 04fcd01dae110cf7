"""The entry point of the group `hal.plugins`: finds and opens the OpenCL devices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module

from hal.core.description import DeviceSummary
from hal.core.spec import hookimpl
from hal.core.values import OpenOptions
from hal.hosted.device import HostedDevice
from hal.hosted.look import Look
from hal.hosted.places import Place, check_index, places
from hal.hosted.settings import numbers
from hal_plugin_opencl.choice import PLUGIN, Choice

CALIBRATE_VARIABLE = "HAL_OPENCL_CALIBRATE"
"""1: measure what the devices do when the first one is opened, and declare it."""

DEVICES_VARIABLE = "HAL_OPENCL_DEVICES"
"""How often the first device is presented ("8 of 1": number 1), each time with its own context, in
place of all devices once. More than one serve groups where there is one device."""

PARTITION_VARIABLE = "HAL_OPENCL_PARTITION"
"""Into how many equal parts the first device is divided, which are presented in place of all
devices: each has so many of its compute units for itself."""

VARIABLES = {
    "memory_nbytes": "HAL_OPENCL_MEMORY",
    "progress_s": "HAL_OPENCL_PROGRESS",
    "lanes": "HAL_OPENCL_LANES",
}
"""The settings, and the variables that give them where a setting does not. `memory_nbytes`: the
most bytes that the device allocates (what the driver says, shared among its presentations);
`progress_s`: how long an operation may take before it counts as hanging (60); `lanes`: the most
work-items that run an instance together (1 on a CPU, else as many as most devices let be)."""


LOOK = Look(
    "hal_plugin_opencl.find",
    ("OCL_", "OPENCL_", "POCL_", "CUDA_VISIBLE", "ROCR_VISIBLE"),
    "no OpenCL driver (ICD) is installed; install the vendor's, or PoCL with "
    "`pip install hal-plugin-opencl[pocl]`",
    "repair the driver, or leave it out: the variable OCL_ICD_VENDORS names the folder of the "
    "drivers (/etc/OpenCL/vendors)",
)


def _places() -> list[Place]:
    return places(LOOK.listed(), DEVICES_VARIABLE, PARTITION_VARIABLE)


@hookimpl
def enumerate_devices() -> Sequence[DeviceSummary]:
    """The devices by the names of platform and device, or what `DEVICES_VARIABLE` or
    `PARTITION_VARIABLE` makes of the first one."""
    return [DeviceSummary(place.index, place.line) for place in _places()]


@hookimpl
def open_device(index: int, options: OpenOptions) -> HostedDevice:
    """Open a device with the settings of `VARIABLES`."""
    known = _places()
    check_index(PLUGIN, index, len(known))
    given = numbers(f"{PLUGIN}:{index}", VARIABLES, options)
    sizes = int(given["memory_nbytes"]), given["progress_s"] or 60.0, int(given["lanes"])
    choices = tuple(Choice(place, *sizes) for place in known)
    declared = {}
    if os.environ.get(CALIBRATE_VARIABLE, "") not in ("", "0"):
        declared = import_module("hal_plugin_opencl.calibrate").figures(choices)
    # Only now: pyopencl writes an environment variable when it is imported.
    machine = import_module("hal_plugin_opencl.machine")
    opened: HostedDevice = machine.opened(choices[index], options.cache_dir, declared)
    return opened
