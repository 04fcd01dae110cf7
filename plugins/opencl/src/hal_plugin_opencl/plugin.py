"""The entry point of the group `hal.plugins`: finds and opens the OpenCL devices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from hal.cache import Cache
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


def _drivers() -> list[tuple[str, int, int]]:
    """The loaders and drivers that are installed: the files where they are sought, with what tells
    a new one from an old one."""
    binding = find_spec("pyopencl")
    own = (binding and binding.submodule_search_locations) or ()
    sought = [os.path.join(place, ".libs") for place in own]
    sought.append(os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors")
    folders = [place for place in sought if os.path.isdir(place)]
    paths = [os.path.join(folder, name) for folder in folders for name in os.listdir(folder)]
    files = sorted(path for path in (*paths, *sought) if os.path.isfile(path))
    return [(path, (status := os.stat(path)).st_size, status.st_mtime_ns) for path in files]


LOOK = Look(
    "hal_plugin_opencl.find",
    ("OCL_", "OPENCL_", "POCL_", "CUDA_VISIBLE", "ROCR_VISIBLE"),
    "no OpenCL driver (ICD) is installed; install the vendor's, or PoCL with "
    "`pip install hal-plugin-opencl[pocl]`",
    "repair the driver, or leave it out: the variable OCL_ICD_VENDORS names the folder of the "
    "drivers (/etc/OpenCL/vendors)",
    _drivers,
)


def _places(lines: Sequence[str]) -> list[Place]:
    return places(lines, DEVICES_VARIABLE, PARTITION_VARIABLE)


@hookimpl
def enumerate_devices() -> Sequence[DeviceSummary]:
    """The devices by the names of platform and device, or what `DEVICES_VARIABLE` or
    `PARTITION_VARIABLE` makes of the first one."""
    return [DeviceSummary(place.index, place.line) for place in _places(LOOK.listed())]


@hookimpl
def open_device(index: int, options: OpenOptions) -> HostedDevice:
    """Open a device with the settings of `VARIABLES`."""
    cache = Cache(options.cache_dir, "looks")
    kept = LOOK.kept(cache)
    if kept is not None and index < len(_places(kept)):
        opened = _opened(index, options, kept, True)
        if opened is not None:
            return opened
    lines = LOOK.listed()
    LOOK.keep(cache, lines)
    opened = _opened(index, options, lines, False)
    assert opened is not None, "a device that was seen now is not looked for again"
    return opened


def _opened(
    index: int, options: OpenOptions, lines: Sequence[str], ask: bool
) -> HostedDevice | None:
    """A device of those that a driver lists by these lines. With `ask` the driver is asked whether
    it still lists them; None where it does not."""
    known = _places(lines)
    check_index(PLUGIN, index, len(known))
    given = numbers(f"{PLUGIN}:{index}", VARIABLES, options)
    sizes = int(given["memory_nbytes"]), given["progress_s"] or 60.0, int(given["lanes"])
    choices = tuple(Choice(place, *sizes) for place in known)
    # Only now: pyopencl writes an environment variable when it is imported.
    machine = import_module("hal_plugin_opencl.machine")
    if ask and not machine.lists(lines, choices[index].name):
        return None
    declared = {}
    if os.environ.get(CALIBRATE_VARIABLE, "") not in ("", "0"):
        declared = import_module("hal_plugin_opencl.calibrate").figures(choices)
    opened: HostedDevice = machine.opened(choices[index], options.cache_dir, declared)
    return opened
