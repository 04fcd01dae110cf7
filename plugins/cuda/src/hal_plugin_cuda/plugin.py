"""The entry point of the group `hal.plugins`: finds and opens the CUDA devices."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from hal.core.description import DeviceSummary
from hal.core.spec import hookimpl
from hal.core.values import OpenOptions
from hal.hosted.device import HostedDevice
from hal.hosted.look import Look
from hal.hosted.places import Place, check_index, places
from hal.hosted.settings import numbers
from hal_plugin_cuda.choice import PLUGIN, Choice

DEVICES_VARIABLE = "HAL_CUDA_DEVICES"
"""How often the first device is presented ("8 of 1": number 1), each time with its own context, in
place of all devices once. More than one serve groups where there is one device."""

VARIABLES = {"memory_nbytes": "HAL_CUDA_MEMORY", "progress_s": "HAL_CUDA_PROGRESS"}
"""The settings, and the variables that give them where a setting does not. `memory_nbytes`: the
most bytes that the device allocates (what the driver says, shared among its presentations);
`progress_s`: how long an operation may take before it counts as hanging (60)."""

LOOK = Look(
    "hal_plugin_cuda.find",
    ("CUDA_", "NVIDIA_"),
    "no CUDA driver is installed: the loader finds no libcuda.so.1, which comes with the driver of "
    "the GPU and not with a toolkit; install the driver, or start the container with the GPU",
    "repair or update the GPU's driver; `nvidia-smi` says whether it answers at all",
)


def _places() -> list[Place]:
    return places(LOOK.listed(), DEVICES_VARIABLE)


@hookimpl
def enumerate_devices() -> Sequence[DeviceSummary]:
    """The devices in the driver's order, or what `DEVICES_VARIABLE` makes of the first one."""
    return [DeviceSummary(place.index, place.line) for place in _places()]


@hookimpl
def open_device(index: int, options: OpenOptions) -> HostedDevice:
    """Open a device with the settings of `VARIABLES`."""
    known = _places()
    check_index(PLUGIN, index, len(known))
    given = numbers(f"{PLUGIN}:{index}", VARIABLES, options)
    choice = Choice(known[index], int(given["memory_nbytes"]), given["progress_s"] or 60.0)
    # Only now: the process that lists devices needs none of it.
    machine = import_module("hal_plugin_cuda.machine")
    opened: HostedDevice = machine.opened(choice, options.cache_dir)
    return opened
