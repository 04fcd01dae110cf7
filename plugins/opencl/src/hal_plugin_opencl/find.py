"""The OpenCL devices of this machine. As a program: lists them as JSON in the last line.

It starts the drivers, which start threads; so listing is done in a process of its own.
"""

from __future__ import annotations

import json
import sys

import pyopencl as cl

_NO_PLATFORM = -1001
"""`CL_PLATFORM_NOT_FOUND_KHR`: what the loader says when there is no driver."""


def devices() -> list[cl.Device]:
    """Every device, by the names of platform and device; equal ones as the driver lists them."""
    found = [device for platform in _platforms() for device in _of_platform(platform)]
    return sorted(found, key=lambda device: (device.platform.name, device.name))


def summary(device: cl.Device) -> str:
    """The device in a line."""
    return " ".join(f"{device.name} ({device.platform.name}, {device.driver_version})".split())


def _platforms() -> list[cl.Platform]:
    try:
        return list(cl.get_platforms())
    except cl.Error as error:
        if error.code == _NO_PLATFORM:
            return []
        raise


def _of_platform(platform: cl.Platform) -> list[cl.Device]:
    try:
        return list(platform.get_devices())
    except cl.Error as error:
        if error.code == cl.status_code.DEVICE_NOT_FOUND:
            return []
        raise


if __name__ == "__main__":
    listed = [summary(device) for device in devices()] if _platforms() else None
    sys.stdout.write("\n" + json.dumps(listed) + "\n")
