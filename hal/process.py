"""The registry of this process, and the functions of `hal` that ask it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from hal.core.device import Device, Wrapper
from hal.core.discovery.registry import DeviceRow, PluginRow, Registry, registry_of_environment
from hal.core.values import OpenOptions
from hal.core.wrappers.named import DEFAULT_WRAPPERS


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


def devices(opens: bool = False) -> tuple[DeviceRow, ...]:
    """The devices of this machine, and the plugins that cannot give any. See `Registry.devices`."""
    return registry().devices(opens)


def plugins() -> tuple[PluginRow, ...]:
    """The installed plugins."""
    return registry().plugins()
