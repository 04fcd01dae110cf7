"""The OpenCL devices of this machine. As a program: lists them as JSON in the last line.

It starts the drivers, which start threads; so listing is done in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pyopencl as cl

from hal.core.errors import PluginError
from hal.hosted.look import tell
from hal.hosted.places import Place

Found = TypeVar("Found")

_NO_PLATFORM = -1001
"""`CL_PLATFORM_NOT_FOUND_KHR`: what the loader says when there is no driver."""


def devices() -> list[cl.Device]:
    """Every device, by the names of platform and device; equal ones as the driver lists them."""
    found = [
        device
        for platform in _platforms()
        for device in _listed(platform.get_devices, cl.status_code.DEVICE_NOT_FOUND)
    ]
    return sorted(found, key=lambda device: (device.platform.name, device.name))


def at(place: Place) -> cl.Device:
    """The device at a place. Raises PluginError when it is not there or cannot be divided so."""
    known = devices()
    if place.position >= len(known):
        raise PluginError(
            f"the driver gives this process {len(known)} devices, and number {place.position} was "
            f"asked ({place.line}); is its memory limited (`ulimit -v`), or the device gone?"
        )
    device: Any = known[place.position]
    found: cl.Device = device
    if place.parts:
        equally = cl.device_partition_property.EQUALLY
        size = device.max_compute_units // place.parts
        if not size or equally not in device.partition_properties:
            text = f"its driver does not divide its {device.max_compute_units} units equally"
            raise PluginError(f"{device.name} has no {place.parts} parts: {text}")
        found = device.create_sub_devices([equally, size])[place.index]
    return found


def summary(device: cl.Device) -> str:
    """The device in a line."""
    return " ".join(f"{device.name} ({device.platform.name}, {device.driver_version})".split())


def _platforms() -> list[cl.Platform]:
    return _listed(cl.get_platforms, _NO_PLATFORM)


def _listed(listing: Callable[[], Iterable[Found]], none: int) -> list[Found]:
    """What the driver lists; nothing where its error says that there is none."""
    try:
        return list(listing())
    except cl.Error as error:
        if error.code != none:
            raise
        return []


if __name__ == "__main__":
    tell([summary(device) for device in devices()] if _platforms() else None)
