"""The registry: which plugins and devices this machine has, and the way to open one.

To open a device imports its plugin into this process; whatever that raises becomes the plugin's
recorded cause. To list plugins and devices tries each plugin in a process of its own, so that one
that crashes or hangs takes nobody with it. A device is never replaced by another one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from hal.core.description import CONTRACT_VERSION, Feature
from hal.core.device import Device, Wrapper
from hal.core.discovery.loading import Plugin, import_plugin, plugin_of, said
from hal.core.discovery.manifest import Found, Manifest, discover
from hal.core.discovery.survey import PluginLook, survey
from hal.core.errors import HalError, InvalidCall, PluginError
from hal.core.facts import dataclass
from hal.core.values import OpenOptions
from hal.core.wrappers.named import DEFAULT_WRAPPERS, wrapper

BLOCKED_VARIABLE = "HAL_PLUGINS_BLOCKED"
_BLOCKED = f"it is named in {BLOCKED_VARIABLE}"
_AFTER_LOADING = ("enumerate", "done")


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
    """A device ("cpu:0"); or a plugin that cannot give any, with its name, status and cause. Where
    devices were opened, one that cannot be is "broken" too."""

    name: str
    plugin: str
    status: str
    cause: str
    description: str


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The outcome of loading a plugin into this process: it, or the cause why there is none."""

    plugin: Plugin | None
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
        """One row per plugin, by name. Imports none into this process."""
        looks = self.looks()
        return tuple(_plugin_row(found, looks[found.name]) for found in self._found.values())

    def devices(self, opens: bool = False) -> tuple[DeviceRow, ...]:
        """One row per device, and one per plugin that is broken or blocked. Imports none into this
        process, and opens no device unless asked: then each is opened and closed in a process of
        its own."""
        looks = self.looks(opens)
        return tuple(
            row for found in self._found.values() for row in _device_rows(found, looks[found.name])
        )

    def found(self) -> tuple[Found, ...]:
        """What discovery found, by name; for a blocked plugin the cause says so."""
        return tuple(
            replace(found, cause=_BLOCKED) if found.name in self._blocked else found
            for found in self._found.values()
        )

    def looks(self, opens: bool = False) -> dict[str, PluginLook]:
        """What the survey found out about each plugin; with `opens` it opened their devices too.

        A plugin that is blocked, or whose manifest does not fit, is not tried: its stage is "".
        """
        found = {f.name: f for f in self.found()}
        tried = [f for f in found.values() if not f.cause and f.name not in self._extra]
        looks = {f.name: PluginLook(f.name, "", f.cause) for f in found.values()}
        looks |= {name: self._look_here(name) for name in self._extra if not found[name].cause}
        return looks | survey(tried, opens)

    def open(
        self,
        name: str,
        wrappers: Sequence[str | Wrapper] = DEFAULT_WRAPPERS,
        options: OpenOptions | None = None,
    ) -> Device:
        """Open the device `name` ("cpu:0") with wrappers around it, the first one outermost.

        A wrapper is a function of the device or one of the names that `wrappers.named.wrapper`
        knows; `()` means none: then every hook is the plugin's own method.

        Raises InvalidCall for a name that no device has, listing those there are; PluginError when
        its plugin is missing, broken or blocked, or the device cannot be opened.
        """
        made = [wrapper(w) if isinstance(w, str) else w for w in wrappers]
        plugin, index = self._find(name)
        try:
            implementation = self._plugin(plugin).open(index, options or OpenOptions())
        except (InvalidCall, PluginError):
            # Only now: to enumerate may take longer than to open.
            self._check_listed(plugin, index)
            raise
        try:
            device = Device(implementation, name, made)
            self._check_manifest(plugin, device)
        except HalError:
            raise
        except Exception as error:  # the plugin's code runs here: describe and health
            raise PluginError(f"{name} cannot be opened: {said(error)}") from error
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
        return plugin, int(number)

    def _check_listed(self, plugin: str, index: int) -> None:
        """Raise InvalidCall for a device that its plugin does not enumerate."""
        if index not in {summary.index for summary in self._plugin(plugin).devices()}:
            raise InvalidCall(f"there is no device '{plugin}:{index}'\n{self._known()}")

    def _known(self) -> str:
        """The devices there are and the plugins that cannot be used, for messages."""
        rows = self.devices()
        known = ", ".join(row.name for row in rows if row.status == "ok") or "none"
        bad = [
            f"{row.status} plugin {row.plugin}: {row.cause}" for row in rows if row.status != "ok"
        ]
        return "\n".join([f"known devices: {known}", *bad])

    def _plugin(self, name: str) -> Plugin:
        plugin = self._load(name).plugin
        assert plugin is not None, "callers have looked at the plugin's cause"
        return plugin

    def _look_here(self, name: str) -> PluginLook:
        """A look at a plugin object that the program added: it is in this process already."""
        try:
            devices = plugin_of(self._extra[name], name).devices()
        except HalError as error:
            return PluginLook(name, "enumerate", str(error))
        return PluginLook(name, "done", "", devices)

    def _load(self, name: str) -> _Loaded:
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = self._load_now(self._found[name])
            return self._loaded[name]

    def _load_now(self, found: Found) -> _Loaded:
        if found.name in self._blocked:
            return _Loaded(None, _BLOCKED)
        if found.cause:
            return _Loaded(None, found.cause)
        try:
            here = self._extra.get(found.name)
            module = import_plugin(found.module) if here is None else here
            return _Loaded(plugin_of(module, found.name), "")
        except PluginError as error:
            return _Loaded(None, str(error))


def registry_of_environment() -> Registry:
    """A registry that blocks the plugins which the variable HAL_PLUGINS_BLOCKED names ("a,b")."""
    names = os.environ.get(BLOCKED_VARIABLE, "").split(",")
    return Registry(blocked={name.strip() for name in names if name.strip()})


def _in_memory(name: str) -> Found:
    manifest = Manifest(
        name, (CONTRACT_VERSION, CONTRACT_VERSION), frozenset(Feature), "added by the program"
    )
    return Found(name, "", "", "", manifest, "")


def _status(look: PluginLook) -> str:
    if look.cause == _BLOCKED:
        return "blocked"
    return "broken" if look.cause else "ok"


def _plugin_row(found: Found, look: PluginLook) -> PluginRow:
    """A plugin that only fails to enumerate is whole: the row of its devices has the cause."""
    contract = found.manifest.contract if found.manifest else None
    whole = look.stage in _AFTER_LOADING
    status, cause = ("ok", "") if whole else (_status(look), look.cause)
    return PluginRow(found.name, status, cause, found.distribution, found.version, contract)


def _device_rows(found: Found, look: PluginLook) -> list[DeviceRow]:
    name = found.name
    if look.cause:
        text = found.manifest.description if found.manifest else ""
        return [DeviceRow(name, name, _status(look), look.cause, text)]
    causes = {refused.name: refused.cause for refused in look.refused}
    rows = [(f"{name}:{summary.index}", summary.description) for summary in look.devices]
    return [
        DeviceRow(row, name, "broken" if row in causes else "ok", causes.get(row, ""), text)
        for row, text in rows
    ]
