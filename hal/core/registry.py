"""The registry: which plugins and devices this machine has, and the way to open one.

A plugin is imported when it is first asked for, in isolation: whatever it raises becomes its
recorded cause, and every other plugin works on. A device is never replaced by another one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pluggy

from hal.core.description import CONTRACT_VERSION, DeviceSummary, Feature
from hal.core.device import Device, Wrapper
from hal.core.errors import HalError, InvalidCall, PluginError
from hal.core.manifest import Found, Manifest, discover
from hal.core.relay import check_complete, relay
from hal.core.spec import MANDATORY_PLUGIN, PluginSpec
from hal.core.values import OpenOptions
from hal.core.wrappers import DEFAULT_WRAPPERS, wrapper

BLOCKED_VARIABLE = "HAL_PLUGINS_BLOCKED"


@dataclass(frozen=True, slots=True)
class PluginRow:
    """A plugin: `status` is "ok", "broken" or "blocked", and `cause` says why it is not "ok".

    `contract` is the range of contract versions that it speaks, None when its manifest cannot be
    read.
    """

    name: str
    status: str
    cause: str
    distribution: str
    version: str
    contract: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device ("cpu:0"); or a plugin that cannot give any, with its name, status and cause."""

    name: str
    plugin: str
    status: str
    cause: str
    description: str


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The outcome of loading a plugin: its relay, or the cause why there is none."""

    relay: pluggy.PluginManager | None
    cause: str


class Registry:
    """The plugins of this process.

    `blocked` names plugins that are never imported; `extra` adds plugin objects that no
    distribution installs, by name, and hides an installed plugin of the same name.
    """

    def __init__(
        self, blocked: Collection[str] = (), extra: Mapping[str, object] | None = None
    ) -> None:
        self._blocked = frozenset(blocked)
        self._extra = dict(extra or {})
        found = {f.name: f for f in discover()} | {name: _in_memory(name) for name in self._extra}
        self._found = dict(sorted(found.items()))
        self._loaded: dict[str, _Loaded] = {}
        self._lock = threading.RLock()

    def plugins(self) -> tuple[PluginRow, ...]:
        """One row per plugin, by name. Loads every plugin that is not blocked."""
        return tuple(self._plugin_row(found) for found in self._found.values())

    def devices(self) -> tuple[DeviceRow, ...]:
        """One row per device, and one per plugin that is broken or blocked. Opens no device."""
        return tuple(row for found in self._found.values() for row in self._device_rows(found))

    def open(
        self,
        name: str,
        wrappers: Sequence[str | Wrapper] = DEFAULT_WRAPPERS,
        options: OpenOptions | None = None,
    ) -> Device:
        """Open the device `name` ("cpu:0") with wrappers around it, the first one outermost.

        A wrapper is a function of the device or one of the names that `hal.core.wrappers.wrapper`
        knows; `()` means none: then every hook is the plugin's own method.

        Raises InvalidCall for a name that no device has, listing those there are; PluginError when
        its plugin is missing, broken or blocked, or the device cannot be opened.
        """
        made = [wrapper(w) if isinstance(w, str) else w for w in wrappers]
        plugin, index = self._find(name)
        return self._opened(plugin, name, index, options or OpenOptions(), made)

    def _opened(
        self, plugin: str, name: str, index: int, options: OpenOptions, wrappers: Sequence[Wrapper]
    ) -> Device:
        implementation = self._call(plugin, "open_device", index=index, options=options)
        try:
            device = Device(implementation, name, wrappers)
            self._check_manifest(plugin, device)
        except HalError:
            raise
        except Exception as error:  # the plugin's code runs here: describe and health
            raise PluginError(f"{name} cannot be opened: {_said(error)}") from error
        return device

    def _check_manifest(self, plugin: str, device: Device) -> None:
        manifest = self._found[plugin].manifest
        assert manifest is not None, "a plugin that loaded has a manifest"
        if extra := sorted(f.value for f in device.info.features - manifest.features):
            device.close()
            raise PluginError(
                f"{device.name} declares {', '.join(extra)}, which its hal-plugin.toml lacks"
            )

    def _find(self, name: str) -> tuple[str, int]:
        plugin, _, number = name.partition(":")
        if not number.isascii() or not number.isdecimal():
            raise InvalidCall(
                f'{name!r} is not a device name; it is "plugin:index"\n{self._known()}'
            )
        if plugin not in self._found:
            raise PluginError(
                f"no plugin {plugin!r} is installed for the device {name!r}\n{self._known()}"
            )
        if cause := self._load(plugin).cause:
            raise PluginError(
                f"{name}: the plugin {plugin!r} cannot be used: {cause}\n{self._known()}"
            )
        index = int(number)
        if index not in {summary.index for summary in self._enumerate(plugin)}:
            raise InvalidCall(f"there is no device {name!r}\n{self._known()}")
        return plugin, index

    def _known(self) -> str:
        """The devices there are and the plugins that cannot be used, for messages."""
        rows = self.devices()
        known = ", ".join(row.name for row in rows if row.status == "ok") or "none"
        bad = [
            f"{row.status} plugin {row.plugin}: {row.cause}" for row in rows if row.status != "ok"
        ]
        return "\n".join([f"known devices: {known}", *bad])

    def _plugin_row(self, found: Found) -> PluginRow:
        contract = found.manifest.contract if found.manifest else None
        status, cause = self._status(found.name)
        return PluginRow(found.name, status, cause, found.distribution, found.version, contract)

    def _device_rows(self, found: Found) -> list[DeviceRow]:
        name = found.name
        status, cause = self._status(name)
        text = found.manifest.description if found.manifest else ""
        try:
            summaries = self._enumerate(name) if status == "ok" else ()
        except HalError as error:
            status, cause, summaries = "broken", str(error), ()
        if status != "ok":
            return [DeviceRow(name, name, status, cause, text)]
        return [DeviceRow(f"{name}:{s.index}", name, "ok", "", s.description) for s in summaries]

    def _status(self, name: str) -> tuple[str, str]:
        if name in self._blocked:
            return "blocked", f"it is named in {BLOCKED_VARIABLE}"
        cause = self._load(name).cause
        return ("broken", cause) if cause else ("ok", "")

    def _load(self, name: str) -> _Loaded:
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = self._load_now(self._found[name])
            return self._loaded[name]

    def _load_now(self, found: Found) -> _Loaded:
        if found.name in self._blocked:
            return _Loaded(None, f"it is named in {BLOCKED_VARIABLE}")
        if found.cause:
            return _Loaded(None, found.cause)
        try:
            module = (
                self._extra[found.name]
                if found.name in self._extra
                else import_module(found.module)
            )
            manager = relay(PluginSpec, module, found.name)
            check_complete(manager, PluginSpec, found.name, MANDATORY_PLUGIN)
        except KeyboardInterrupt:
            raise
        except PluginError as error:
            return _Loaded(None, str(error))
        except BaseException as error:  # noqa: BLE001  foreign code: even its sys.exit is only its own failure
            return _Loaded(None, _said(error))
        return _Loaded(manager, "")

    def _enumerate(self, plugin: str) -> Sequence[DeviceSummary]:
        summaries: Sequence[DeviceSummary] = self._call(plugin, "enumerate_devices")
        return summaries

    def _call(self, plugin: str, hook: str, **arguments: Any) -> Any:
        """Call a loaded plugin's hook; an error outside the contract is a PluginError."""
        manager = self._load(plugin).relay
        assert manager is not None, "callers have looked at the plugin's cause"
        try:
            return getattr(manager.hook, hook)(**arguments)
        except HalError:
            raise
        except Exception as error:
            raise PluginError(f"plugin {plugin!r} failed in {hook}: {_said(error)}") from error


def registry_of_environment() -> Registry:
    """A registry that blocks the plugins which the variable HAL_PLUGINS_BLOCKED names ("a,b")."""
    names = os.environ.get(BLOCKED_VARIABLE, "").split(",")
    return Registry(blocked={name.strip() for name in names if name.strip()})


def _in_memory(name: str) -> Found:
    manifest = Manifest(
        name, (CONTRACT_VERSION, CONTRACT_VERSION), frozenset(Feature), "added by the program"
    )
    return Found(name, "", "", "", manifest, "")


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
