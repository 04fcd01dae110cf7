"""The entry point of the group `hal.plugins`: the six core groups of an emulated chip."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module

from hal.core.description import DeviceSummary
from hal.core.errors import InvalidCall, PluginError
from hal.core.spec import hookimpl
from hal.core.values import OpenOptions
from hal.hosted.device import HostedDevice
from hal_plugin_sunway.choice import CORE_GROUPS, DESCRIPTION, PLUGIN, Choice

MODES = ("static", "dynamic")

VARIABLES: Mapping[str, str] = {
    "memory_nbytes": "HAL_SUNWAY_MEMORY",
    "progress_s": "HAL_SUNWAY_PROGRESS",
    "memory_mode": "HAL_SUNWAY_MODE",
    "chip": "HAL_SUNWAY_CHIP",
    "without": "HAL_SUNWAY_WITHOUT",
    "report": "HAL_SUNWAY_REPORT",
    "trace": "HAL_SUNWAY_TRACE",
}
"""The settings, and the variables that give them where a setting does not. `memory_nbytes`: the
main memory of a core group (16 GiB); `progress_s`: host seconds that a CPE may compute without a
call of the runtime (60); `memory_mode`: "static" as under the loader, or "dynamic" as under the
operating system, where allocation is slow; `chip`: "name=value,..." in place of figures of the
chip; `without`: remedies of the ring that are off, "name,name"; `report`: a file to which each
launch, allocation and transfer between core groups adds a line of JSON with its emulated time;
`trace`: a file for the per-CPE timeline of the newest launch, which Perfetto opens."""


@hookimpl
def enumerate_devices() -> Sequence[DeviceSummary]:
    """One device for each core group."""
    return [DeviceSummary(index, DESCRIPTION) for index in range(CORE_GROUPS)]


@hookimpl
def open_device(index: int, options: OpenOptions) -> HostedDevice:
    """Open a core group with the settings of `VARIABLES`."""
    if not 0 <= index < CORE_GROUPS:
        raise InvalidCall(f"there is no device {PLUGIN}:{index}; there are {CORE_GROUPS}")
    if unknown := sorted(options.settings.keys() - VARIABLES.keys()):
        raise InvalidCall(
            f"{PLUGIN}:{index}: unknown settings {', '.join(unknown)}; "
            f"known are {', '.join(VARIABLES)}"
        )
    mode = _text("memory_mode", options) or MODES[0]
    if mode not in MODES:
        raise InvalidCall(f"memory_mode must be one of {', '.join(MODES)}, is {mode!r}")
    choice = Choice(
        index,
        int(_number("memory_nbytes", options)),
        _number("progress_s", options) or 60.0,
        mode,
        _text("chip", options),
        _text("without", options),
        _text("report", options),
        _text("trace", options),
        options.cache_dir,
    )
    # Only now: what it brings along takes longer than importing a plugin may.
    opened: HostedDevice = import_module("hal_plugin_sunway.device").SunwayDevice(choice)
    return opened


def _text(name: str, options: OpenOptions) -> str:
    """A setting, or its variable; "" where neither is given."""
    return options.settings.get(name, os.environ.get(VARIABLES[name], ""))


def _number(name: str, options: OpenOptions) -> float:
    """A setting or its variable as a number above 0; 0 where neither is given."""
    given, text = name in options.settings, _text(name, options)
    try:
        number = float(text or "0")
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e15 or (given and not number):
        where = name if given else VARIABLES[name]
        raise (InvalidCall if given else PluginError)(f"{where} must be above 0, is {text!r}")
    return number
