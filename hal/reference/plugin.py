"""The entry point of the group `hal.plugins`: finds and opens the devices."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hal.core.description import DeviceSummary
from hal.core.errors import InvalidCall, PluginError
from hal.core.spec import hookimpl
from hal.core.values import OpenOptions
from hal.hosted.device import HostedDevice
from hal.hosted.order import AdversarialOrder
from hal.reference.describe import DESCRIPTION, PLUGIN, describe
from hal.reference.machine import ReferenceMachine

DEVICES_VARIABLE = "HAL_REFERENCE_DEVICES"
"""How many devices there are (2)."""

PROGRESS_VARIABLE = "HAL_REFERENCE_PROGRESS"
"""After how many ms without progress an operation counts as hanging (2000), unless the setting
`progress_ms` says otherwise."""

SETTINGS = {"seed": "0", "memory_nbytes": str(256 << 20), "progress_ms": ""}
"""With defaults. `seed` decides the order of what may run in several orders; `memory_nbytes` is the
size of the memory; an instance of a program that takes longer than `progress_ms` hangs."""


@hookimpl
def enumerate_devices() -> Sequence[DeviceSummary]:
    """As many devices as the variable `DEVICES_VARIABLE` says."""
    return [DeviceSummary(index, DESCRIPTION) for index in range(_devices())]


@hookimpl
def open_device(index: int, options: OpenOptions) -> HostedDevice:
    """Open a device with the settings `SETTINGS`."""
    count = _devices()
    if not 0 <= index < count:
        raise InvalidCall(f"there is no device {PLUGIN}:{index}; {DEVICES_VARIABLE} gives {count}")
    if unknown := sorted(options.settings.keys() - SETTINGS.keys()):
        raise InvalidCall(
            f"{PLUGIN}:{index}: unknown settings {', '.join(unknown)}; "
            f"known are {', '.join(SETTINGS)}"
        )
    given = {**SETTINGS, **options.settings}
    given["progress_ms"] = given["progress_ms"] or os.environ.get(PROGRESS_VARIABLE, "2000")
    seed, nbytes, progress_ms = (_number(name, given[name], InvalidCall) for name in SETTINGS)
    info = describe(index, count, nbytes, progress_ms / 1000)
    return HostedDevice(info, ReferenceMachine(seed), AdversarialOrder(seed))


def _devices() -> int:
    return _number(DEVICES_VARIABLE, os.environ.get(DEVICES_VARIABLE, "2"), PluginError)


def _number(name: str, text: str, error: type[Exception]) -> int:
    if not text.isdecimal():
        raise error(f"{name} must be a whole number, is {text!r}")
    return int(text)
