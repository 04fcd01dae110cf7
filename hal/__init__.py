"""HAL: one contract between accelerators and the software that trains models on them.

`open` gives a device, `devices` lists them, `plugins` says what is installed. A vendor's plugin
marks its hooks with `hookimpl`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hal.core.description import CONTRACT_VERSION, DeviceInfo, Feature
    from hal.core.device import Device, Wrapper
    from hal.core.discovery.registry import DeviceRow, PluginRow, Registry
    from hal.core.dtypes import DType
    from hal.core.errors import HalError
    from hal.core.spec import hookimpl
    from hal.core.values import OpenOptions
    from hal.core.wrappers.named import DEFAULT_WRAPPERS
    from hal.process import devices, open, plugins, registry

if not sys.platform.startswith("linux"):
    raise ImportError(
        f"HAL runs on Linux, and this is {sys.platform}: on Windows use WSL 2, on macOS a Linux "
        "container or virtual machine"
    )

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

_HOMES = {
    "hal.core.description": ("CONTRACT_VERSION", "DeviceInfo", "Feature"),
    "hal.core.device": ("Device", "Wrapper"),
    "hal.core.dtypes": ("DType",),
    "hal.core.errors": ("HalError",),
    "hal.core.discovery.registry": ("DeviceRow", "PluginRow", "Registry"),
    "hal.core.spec": ("hookimpl",),
    "hal.core.values": ("OpenOptions",),
    "hal.core.wrappers.named": ("DEFAULT_WRAPPERS",),
    "hal.process": ("devices", "open", "plugins", "registry"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A public name, from its module, which is loaded when one of its names is first used.

    Every module of `hal` and every plugin runs this file first, so it loads nothing itself.
    """
    if name not in _HOME:
        raise AttributeError(f"module 'hal' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value
