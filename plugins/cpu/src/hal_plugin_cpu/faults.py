"""Injected faults: which hook fails at which of its next calls, and what that means for the native
runtime."""

from __future__ import annotations

import threading

from hal.core.errors import Failure, FailureKind, InvalidCall, Scope, Unsupported
from hal.core.values import Fault
from hal_plugin_cpu._native import lib
from hal_plugin_cpu.failures import Failures

SUBMITTED = frozenset({"launch", "copy", "fill", "replay", "collective", "host_call"})
IMMEDIATE = frozenset({"alloc", "load"})
DETACHED = frozenset({"health"})
"""A fault of `health` belongs to no operation: it goes to the subscribers."""

DEVICE_SCOPES = frozenset({Scope.DEVICE, Scope.RESET})
"""A failure of one of these takes the device with it; RESET says that only a reset helps."""


class Faults:
    """The faults that wait for their call. `pending` is empty most of the time, so hot calls look
    at it first."""

    def __init__(self, failures: Failures) -> None:
        self._failures = failures
        self._lock = threading.Lock()
        self.pending: dict[str, list[tuple[int, Failure]]] = {}

    def add(self, fault: Fault) -> None:
        """Raises Unsupported for a hook that cannot fail on demand or not in this way, InvalidCall
        for a call that has been already."""
        if fault.hook not in SUBMITTED | IMMEDIATE | DETACHED:
            known = ", ".join(sorted(SUBMITTED | IMMEDIATE | DETACHED))
            raise Unsupported(f"no fault can be injected into {fault.hook!r}; possible are {known}")
        if fault.failure.kind is FailureKind.HANG and fault.hook not in SUBMITTED:
            raise Unsupported(f"{fault.hook} cannot hang; only submitted operations can")
        if fault.nth < 1:
            raise InvalidCall(f"inject: nth is 1 for the next call, got {fault.nth}")
        with self._lock:
            self.pending.setdefault(fault.hook, []).append((fault.nth, fault.failure))

    def take(self, hook: str) -> Failure | None:
        """Count a call of the hook; gives the failure if it is this call's turn."""
        with self._lock:
            waiting = [(nth - 1, failure) for nth, failure in self.pending.pop(hook, [])]
            due = [failure for nth, failure in waiting if nth == 0]
            left = [(nth, failure) for nth, failure in waiting if nth > 0]
            if left:
                self.pending[hook] = left
            return due[0] if due else None

    def code(self, hook: str) -> int:
        """As `take`, in the native runtime's form; 0 without a fault."""
        failure = self.take(hook)
        return 0 if failure is None else self._failures.number(failure) << 3 | _action(failure)

    def clear(self) -> None:
        """Forget every fault that has not happened."""
        with self._lock:
            self.pending.clear()


def takes_device(failure: Failure) -> bool:
    """Whether the failure ends the device and not only an operation."""
    return failure.scope in DEVICE_SCOPES


def _action(failure: Failure) -> int:
    hangs = failure.kind is FailureKind.HANG
    if failure.scope is Scope.RESET:
        action = lib.HC_FAULT_HANG_RESET if hangs else lib.HC_FAULT_RESET
    elif failure.scope is Scope.DEVICE:
        action = lib.HC_FAULT_HANG_LOSE if hangs else lib.HC_FAULT_LOSE
    elif hangs:
        action = lib.HC_FAULT_HANG
    elif failure.kind is FailureKind.PARTIAL_WRITE:
        action = lib.HC_FAULT_PARTIAL
    else:
        action = lib.HC_FAULT_FAIL
    return int(action)
