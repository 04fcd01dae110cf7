"""Failures by number: the native runtime carries numbers, the contract carries values."""

from __future__ import annotations

import threading

from hal.core.errors import Failure, FailureKind, Scope

_STANDING = (
    ("free", "the host-driven timeline was freed before it reached the point"),
    ("replay", "the native runtime has no memory for the graph's state"),
    ("close", "the device was closed or reset before the operation could run"),
)
CLOSED = 3
"""The number of the failure that ends what a closing device cannot run any more."""


class Failures:
    """The failures of one session, numbered from 1; the first three are known to the native
    runtime."""

    def __init__(self, device: str) -> None:
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
        return self._values[number - 1]
