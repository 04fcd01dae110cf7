"""The entry point of the group `hal.plugins`: finds and opens the CUDA devices."""

from __future__ import annotations

from importlib import import_module

from hal.hosted.look import Look
from hal.hosted.plugin import Choice, HostedPlugin

LOOK = Look(
    "hal_plugin_cuda.find",
    ("CUDA_", "NVIDIA_"),
    "no CUDA driver is installed: the loader finds no libcuda.so.1, which comes with the driver of "
    "the GPU and not with a toolkit; install the driver, or start the container with the GPU",
    "repair or update the GPU's driver; `nvidia-smi` says whether it answers at all",
)


def _opened(choice: Choice) -> object:
    # Only now: the process that lists devices needs none of it.
    return import_module("hal_plugin_cuda.machine").opened(choice)


_PLUGIN = HostedPlugin("cuda", LOOK.listed, _opened)
enumerate_devices, open_device = _PLUGIN.enumerate_devices, _PLUGIN.open_device
