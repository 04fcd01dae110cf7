"""Failures by number: the native runtime carries numbers, the contract carries values."""

from __future__ import annotations

import threading

from hal.core.errors import Failure, FailureKind, Scope
from hal_plugin_cpu._native import lib

_STANDING = (
    ("free", "the host-driven timeline was freed before it reached the point"),
    ("replay", "the native runtime has no memory for the graph's state"),
    ("close", "the device was closed or reset before the operation could run"),
)
CLOSED = 3
"""The number of the failure that ends what a closing device cannot run any more."""

_OTHER_NAMES = {-1: "copy", -2: "fill", -3: "host_call", -4: "collective"}


class Names:
    """What the native runtime's numbers of operations stand for: `programs` lists the entries of
    all loaded programs, the rest is negative."""

    def __init__(self) -> None:
        self.programs: list[str] = []

    def span(self, number: int) -> str:
        """The name that a span of the operation carries."""
        return _OTHER_NAMES[number] if number < 0 else self.programs[number]

    def operation(self, number: int) -> str:
        """The name that a failure of the operation carries."""
        return self.span(number) if number < 0 else f"launch {self.span(number)}"


class Failures:
    """The failures of one session, numbered from 1; the first three are known to the native
    runtime, and beyond HC_HANGS it has one for a hang of each operation that `names` knows."""

    def __init__(self, device: str, names: Names, progress_s: float) -> None:
        self._device = device
        self._names = names
        self._progress_s = progress_s
        self._lock = threading.Lock()
        self._values = [
            Failure(FailureKind.ABORTED, Scope.OPERATION, device, operation, message)
            for operation, message in _STANDING
        ]

    def number(self, failure: Failure) -> int:
        """Take a failure in; gives its number."""
        with self._lock:
            self._values.append(failure)
            return len(self._values)

    def value(self, number: int) -> Failure:
        """The failure with that number."""
        if number >= lib.HC_HANGS:
            operation = self._names.operation(number - lib.HC_HANGS + lib.HC_FIRST_NAME)
            text = f"no progress for {self._progress_s:g} s"
            return Failure(FailureKind.HANG, Scope.QUEUE, self._device, operation, text)
        return self._values[number - 1]
