"""Host memory that operations in flight use: the device keeps it, whatever the host does."""

from __future__ import annotations

import threading
from typing import Any

from hal.core.values import Point
from hal_plugin_cpu._native import lib

_ABANDONED: list[Any] = []
"""Memory that threads of ended sessions may still use: they were abandoned as hanging."""


class Kept:
    """Memory of copies until their points, and imported memory until its buffer is out of use."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._lock = threading.Lock()
        self._copies: list[tuple[Point, Any]] = []
        self._imports: list[tuple[Any, Any]] = []

    def until_reached(self, point: Point, memory: Any) -> None:
        """Keep the memory until the point is reached."""
        if not reached(point):
            with self._lock:
                self._copies.append((point, memory))

    def until_unused(self, buffer: Any, memory: Any) -> None:
        """Keep the memory until the native buffer is freed and no operation uses it."""
        with self._lock:
            self._imports.append((buffer, memory))

    def let_go(self) -> None:
        """Let go of what is not in use any more."""
        if self._copies or self._imports:
            with self._lock:
                self._copies = [entry for entry in self._copies if not self._done(entry[0])]
                self._imports = [entry for entry in self._imports if lib.hc_in_use(entry[0])]

    def let_all_go(self) -> None:
        """Nothing runs any more but what hangs: the device was closed or reset."""
        with self._lock:
            if lib.hc_abandoned(self._native):
                _ABANDONED.extend((*self._copies, *self._imports))
            self._copies.clear()
            self._imports.clear()

    def _done(self, point: Point) -> bool:
        """A copy that failed may still run for a moment, so it counts as done once nothing runs."""
        failed = lib.hc_failed(point.timeline.native)
        return reached(point) or bool(failed and not lib.hc_running(self._native))


def reached(point: Point) -> bool:
    """Whether the point's timeline has advanced to it."""
    return bool(lib.hc_value(point.timeline.native) >= point.value)
