"""One opened device: the native object and what every part of the implementation shares."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

from hal.core.errors import (
    DeviceLost,
    Failure,
    HalError,
    InvalidCall,
    PluginError,
    Scope,
    StaleHandle,
)
from hal.core.values import Point
from hal_plugin_cpu import blocking
from hal_plugin_cpu._native import ffi, lib
from hal_plugin_cpu.failures import CLOSED, Failures, Names
from hal_plugin_cpu.faults import Faults
from hal_plugin_cpu.kept import Kept

HOST_DRIVEN = "a host-driven timeline takes no operations"

SLICE_NS = 50_000_000
"""How long a native wait may take before the interpreter looks for signals."""


class Session:
    """The native device `native` named `name`, its failures and injected faults.

    The device ends with `close`, with the session's garbage collection or at the exit of the
    process.
    """

    def __init__(
        self, name: str, index: int, threads: int, capacity: int, progress_s: float
    ) -> None:
        """Start the worker threads. Raises PluginError when the system gives no threads or
        memory."""
        native = lib.hc_open(threads, index, capacity, int(progress_s * 1e9))
        if native == ffi.NULL:
            raise PluginError(f"{name}: the system gave no memory or threads for {threads} workers")
        self.name = name
        self.native = ffi.gc(native, lib.hc_release_device)
        self.names = Names()
        self.failures = Failures(name, self.names, progress_s)
        self.faults = Faults(self.failures)
        self.kept = Kept(self.native)
        self._end = weakref.finalize(self, _end, self.native, self.kept)
        _LIVE.add(self)

    @property
    def epoch(self) -> int:
        """The number of resets so far."""
        return int(lib.hc_epoch(self.native))

    def own(self, native: Any) -> Any:
        """The native object with the handle's reference bound to its Python life. Raises
        PluginError for NULL."""
        if native == ffi.NULL:
            raise PluginError(f"{self.name}: the system has no memory left for the native runtime")
        return ffi.gc(native, lib.hc_unref)

    def point_array(self, points: Sequence[Point]) -> Any:
        """A native array of points. Raises StaleHandle for a point of another plugin."""
        try:
            return ffi.new("hc_point[]", [(p.timeline.native, p.value) for p in points])
        except TypeError as error:
            raise self.foreign("points", error) from error

    def refuse(self, code: int, where: str, invalid: str = HOST_DRIVEN) -> NoReturn:
        """Raise what a negative result of the native runtime means; `invalid` explains
        HC_INVALID."""
        raise self._error(code, f"{self.name}.{where}", invalid)

    def _error(self, code: int, where: str, invalid: str) -> HalError:
        if code == lib.HC_LOST:
            return DeviceLost(self.cause())
        if code == lib.HC_FORKED:
            return StaleHandle(
                f"{where}: the device was opened before a fork; open it in this process"
            )
        if code == lib.HC_STALE:
            return StaleHandle(
                f"{where}: a handle was freed, or is of another or closed session or epoch"
            )
        if code == lib.HC_NO_MEMORY:
            return PluginError(f"{where}: the system has no memory left for the native runtime")
        return InvalidCall(f"{where}: {invalid}")

    def foreign(self, where: str, error: Exception) -> StaleHandle:
        """The error for a handle whose payload is not of this plugin."""
        return StaleHandle(f"{self.name}.{where}: a handle is not of this plugin: {error}")

    def cause(self) -> Failure:
        """The first failure of a lost or hanging device."""
        number = ffi.new("int64_t *")
        lib.hc_health(self.native, number)
        return self.failures.value(number[0] or CLOSED)

    def state(self) -> int:
        """The native state of the device."""
        return int(lib.hc_health(self.native, ffi.new("int64_t *")))

    def lose(self, failure: Failure) -> None:
        """Fail everything; until a reset the device takes no work."""
        required = failure.scope is Scope.RESET
        lib.hc_lose(self.native, self.failures.number(failure), required)

    def close(self) -> None:
        """Wait for the submitted work that can run, end the rest, free everything. Idempotent."""
        lib.hc_refuse(self.native)
        while not blocking.quiesce(self.native, SLICE_NS):
            pass  # the interpreter handles signals between two slices
        self._end()


def _end(native: Any, kept: Kept) -> None:
    blocking.shut(native, CLOSED)
    kept.let_all_go()


_LIVE: weakref.WeakSet[Session] = weakref.WeakSet()


def _forget_parent() -> None:
    """In a forked child the workers do not exist; every use of the parent's devices is refused."""
    for session in list(_LIVE):
        lib.hc_mark_forked(session.native)


os.register_at_fork(after_in_child=_forget_parent)
