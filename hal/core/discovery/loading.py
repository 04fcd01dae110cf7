"""Loading a plugin into this process, and calling its two hooks.

What comes back from foreign code is checked here: a wrong type is refused where it appears and not
where it first does harm.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pluggy

from hal.core.description import DeviceSummary
from hal.core.errors import HalError, PluginError
from hal.core.relay import check_complete, relay
from hal.core.spec import MANDATORY_PLUGIN, PluginSpec
from hal.core.values import OpenOptions


class Plugin:
    """A plugin whose module has all hooks of `PluginSpec`."""

    def __init__(self, name: str, manager: pluggy.PluginManager) -> None:
        self.name = name
        self._manager = manager

    def devices(self) -> tuple[DeviceSummary, ...]:
        """What the plugin enumerates. Raises PluginError with the cause when it fails to."""
        found = self._call("enumerate_devices")
        where = f"plugin {self.name!r}: enumerate_devices returned"
        if not isinstance(found, Sequence) or isinstance(found, str | bytes):
            raise PluginError(
                f"{where} {_shown(found)}; it must return a sequence of DeviceSummary, empty when "
                f"there is no device"
            )
        for summary in found:
            if not (
                isinstance(summary, DeviceSummary)
                and isinstance(summary.description, str)
                and type(summary.index) is int
                and summary.index >= 0
            ):
                raise PluginError(
                    f"{where} a sequence with {_shown(summary)} in it; each item must be a "
                    f"DeviceSummary with an index of 0 or more and a description"
                )
        indices = [summary.index for summary in found]
        if len(set(indices)) < len(indices):
            raise PluginError(f"{where} the indices {indices}; each index may occur once")
        return tuple(found)

    def open(self, index: int, options: OpenOptions) -> object:
        """The implementation of one device. Raises what the contract allows, else PluginError."""
        opened = self._call("open_device", index=index, options=options)
        if opened is None:
            raise PluginError(
                f"plugin {self.name!r}: open_device({index}) returned None; it must return an "
                f"object that implements DeviceSpec"
            )
        return opened

    def _call(self, hook: str, **arguments: Any) -> Any:
        try:
            return getattr(self._manager.hook, hook)(**arguments)
        except HalError:
            raise
        except Exception as error:  # foreign code: whatever it raises is its failure in this hook
            text = f"plugin {self.name!r} failed in {hook}: {said(error)}{_advice(error)}"
            raise PluginError(text) from error


def import_plugin(module: str) -> object:
    """Import a plugin's module. Raises PluginError with the cause, also for its `sys.exit`."""
    try:
        return import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # foreign code: even its sys.exit is only its own failure
        raise PluginError(said(error)) from error


def plugin_of(module: object, name: str) -> Plugin:
    """The plugin that a module is. Raises PluginError naming what it lacks or has too much."""
    manager = relay(PluginSpec, module, name)
    check_complete(manager, PluginSpec, name, MANDATORY_PLUGIN)
    return Plugin(name, manager)


def said(error: BaseException) -> str:
    """An error in one line, as causes are shown."""
    return f"{type(error).__name__}: {error}"


_LIMITS = {
    errno.EAGAIN: "the host gives no more threads or processes: end some, or raise `ulimit -u`",
    errno.EMFILE: "the host gives no more descriptors: close some, or raise `ulimit -n`",
    errno.ENOMEM: "the host gives no more memory: end what uses it, or raise `ulimit -v`",
}


def _advice(error: Exception) -> str:
    """What to do about an error that comes from a limit of the host; nothing for any other one."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        number = errno.EAGAIN  # Python has no class of its own for it
    text = _LIMITS.get(number or 0, "")
    return f"; {text}" if text else ""


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
