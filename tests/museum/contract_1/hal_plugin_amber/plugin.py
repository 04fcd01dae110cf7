"""Finds and opens the one device."""

from hal.core.description import DeviceSummary
from hal.core.errors import InvalidCall
from hal.core.spec import hookimpl
from hal_plugin_amber.device import AmberDevice


@hookimpl
def enumerate_devices():
    return [DeviceSummary(0, "amber")]


@hookimpl
def open_device(index, options):
    if index != 0:
        raise InvalidCall(f"there is no device amber:{index}")
    if options.settings:
        raise InvalidCall(f"unknown settings {sorted(options.settings)}")
    return AmberDevice()
