"""Injected faults: which hook fails at which of its next calls."""

from __future__ import annotations

import threading

from hal.core.errors import Failure, FailureKind, Scope, Unsupported
from hal.core.values import Fault

SUBMITTED = frozenset({"launch", "copy", "fill", "replay", "collective", "host_call"})
IMMEDIATE = frozenset({"alloc", "load", "health"})


class InjectedFaults:
    """The faults that wait for their call, in `waiting` by hook. It has a lock of its own, so that
    `health` asks it freely."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waiting: dict[str, list[tuple[int, Failure]]] = {}

    def add(self, fault: Fault) -> None:
        """Raises Unsupported for a hook that cannot fail on demand."""
        if fault.hook not in SUBMITTED | IMMEDIATE:
            known = ", ".join(sorted(SUBMITTED | IMMEDIATE))
            raise Unsupported(f"no fault can be injected into {fault.hook!r}; possible are {known}")
        if fault.failure.kind is FailureKind.HANG and fault.hook in IMMEDIATE:
            raise Unsupported(f"{fault.hook} cannot hang; only submitted operations can")
        with self._lock:
            self.waiting.setdefault(fault.hook, []).append((fault.nth, fault.failure))

    def take(self, hook: str) -> Failure | None:
        """Count a call of the hook; gives the failure if it is this call's turn."""
        if hook not in self.waiting:
            return None
        with self._lock:
            counted = [(nth - 1, failure) for nth, failure in self.waiting.pop(hook, [])]
            if left := [(nth, failure) for nth, failure in counted if nth > 0]:
                self.waiting[hook] = left
            return next((failure for nth, failure in counted if nth == 0), None)

    def clear(self) -> None:
        """Forget every fault that has not happened."""
        with self._lock:
            self.waiting.clear()


def needs_reset(failure: Failure) -> bool:
    """Whether the failure leaves a device that waits for `reset`."""
    return failure.scope is Scope.RESET or failure.kind is FailureKind.RESET_REQUIRED


def takes_device(failure: Failure) -> bool:
    """Whether the failure takes the whole device with it."""
    return failure.scope is Scope.DEVICE or needs_reset(failure)
