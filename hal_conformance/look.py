"""The first look at a device, in the process that runs it: where its plugin is, what devices it
lists, what the device says about itself."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import hal
from hal.core.description_json import to_json
from hal.core.discovery.manifest import Found, discover, manifest_path
from hal.core.errors import HalError, PluginError

FIRST = ("A.imports", "A.lists", "A.opens")
"""The cases of the first look: without them there is nothing to run."""

FILES = ("plugin_look",)
"""Where they stand."""


def plugin_of(device: str) -> Found:
    """The installed plugin of a device. Raises what `hal.open` raises when there is none."""
    name, _, index = device.partition(":")
    found = next((f for f in discover() if f.name == name), None)
    if found is None or not (index.isascii() and index.isdecimal()):
        hal.open(device).close()
        raise PluginError(f"{device} could be opened, but no distribution installs its plugin")
    return found


def peers(device: str) -> tuple[str, ...]:
    """The names of all devices of the plugin, asked in this process."""
    found = plugin_of(device)
    listed = import_module(found.module).enumerate_devices()
    return tuple(f"{found.name}:{summary.index}" for summary in listed)


def facts(device: str) -> dict[str, Any] | None:
    """What the devices are called and the device's description, None if it does not open; None
    for all if the plugin cannot say what devices there are."""
    try:
        listed = peers(device)
    except Exception:  # noqa: BLE001  the plugin's code runs here, and a case says what it raised
        return None
    try:
        with hal.open(device) as opened:
            info = to_json(opened.info)
    except HalError:
        info = None
    return {"peers": listed, "info": info}


def folder(found: Found) -> str:
    """Where the plugin's manifest lies."""
    return os.path.dirname(manifest_path(found.module))
