"""The entry point of the group `hal.plugins`: the devices that `HAL_REMOTE` lists."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from hal.core.description import DeviceSummary
from hal.core.spec import hookimpl
from hal.core.values import OpenOptions
from hal.hosted.places import check_index
from hal_plugin_remote.address import neighbours, places

if TYPE_CHECKING:
    from hal_plugin_remote.device import RemoteDevice


@hookimpl
def enumerate_devices() -> Sequence[DeviceSummary]:
    """The entries of `HAL_REMOTE`; nobody is asked whether the servers are there."""
    return [
        DeviceSummary(index, f"{place.device} at {place.address}")
        for index, place in enumerate(places())
    ]


@hookimpl
def open_device(index: int, options: OpenOptions) -> RemoteDevice:
    """Open a session on the device's server; settings are those of the device there."""
    known = places()
    check_index("remote", index, len(known))
    # Only now: finding devices needs none of it.
    device: type[RemoteDevice] = import_module("hal_plugin_remote.device").RemoteDevice
    return device(known[index], options, neighbours(known[index]))
