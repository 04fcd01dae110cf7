"""HAL: one contract between accelerators and the software that trains models on them.

`open` gives a device, `devices` lists them, `plugins` says what is installed. A vendor's plugin
marks its hooks with `hookimpl`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from hal.core.description import CONTRACT_VERSION, DeviceInfo, Feature
from hal.core.device import Device, Wrapper
from hal.core.dtypes import DType
from hal.core.errors import HalError
from hal.core.registry import DeviceRow, PluginRow, Registry, registry_of_environment
from hal.core.spec import hookimpl
from hal.core.values import OpenOptions
from hal.core.wrappers import DEFAULT_WRAPPERS

__version__ = "0.1.0"
__all__ = [
    "CONTRACT_VERSION",
    "DEFAULT_WRAPPERS",
    "DType",
    "Device",
    "DeviceInfo",
    "DeviceRow",
    "Feature",
    "HalError",
    "OpenOptions",
    "PluginRow",
    "Registry",
    "Wrapper",
    "devices",
    "hookimpl",
    "open",
    "plugins",
    "registry",
]


@functools.cache
def registry() -> Registry:
    """The registry of this process, made at the first call."""
    return registry_of_environment()


def open(
    name: str,
    wrappers: Sequence[str | Wrapper] = DEFAULT_WRAPPERS,
    options: OpenOptions | None = None,
) -> Device:
    """Open a device of this process's registry. See `Registry.open`."""
    return registry().open(name, wrappers, options)


def devices() -> tuple[DeviceRow, ...]:
    """The devices of this machine, and the plugins that cannot give any."""
    return registry().devices()


def plugins() -> tuple[PluginRow, ...]:
    """The installed plugins."""
    return registry().plugins()
