"""The plugin's two hooks."""

from hal.core.description import DeviceSummary
from hal.core.errors import InvalidCall
from hal.core.spec import hookimpl
from hal_plugin_bytes.device import BytesDevice


@hookimpl
def enumerate_devices():
    return [DeviceSummary(0, "first bytes"), DeviceSummary(1, "second bytes")]


@hookimpl
def open_device(index, options):
    if index not in (0, 1):
        raise InvalidCall(f"there is no device bytes:{index}; there are 2")
    if options.settings:
        raise InvalidCall(f"unknown settings {sorted(options.settings)}")
    return BytesDevice(index)
