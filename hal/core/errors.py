"""Errors of the contract: few, each named after what its receiver does next.

A failure of the device is a value (`Failure`); it travels on timelines and reaches a waiter wrapped
in `OperationFailed` or `DeviceLost`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from hal.core.facts import dataclass


class FailureKind(Enum):
    """What went wrong on the device."""

    LAUNCH_FAULT = "launch-fault"
    ILLEGAL_ADDRESS = "illegal-address"
    OUT_OF_MEMORY = "out-of-memory"
    COMPILE = "compile"
    DATA_CORRUPTION = "data-corruption"
    HANG = "hang"
    DEVICE_LOST = "device-lost"
    RESET_REQUIRED = "reset-required"
    LINK_DOWN = "link-down"
    PARTIAL_WRITE = "partial-write"
    PEER_LOST = "peer-lost"
    ABORTED = "aborted"
    HOST_CALL = "host-call"


class Scope(Enum):
    """How far a failure reaches, from one operation to the link between devices."""

    OPERATION = "operation"
    QUEUE = "queue"
    DEVICE = "device"
    RESET = "reset"
    PEER = "peer"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class Failure:
    """A device failure as a value. It is kept unchanged from its first cause to every waiter.

    `device` is the name of the device ("cpu:0"), `operation` the hook or program that failed
    ("launch matmul_0"), `retryable` says whether the same operation may succeed if submitted again.
    `ranks` are those of a group that caused it; none where it was no rank.
    """

    kind: FailureKind
    scope: Scope
    device: str
    operation: str
    message: str
    retryable: bool = False
    ranks: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.device}: {self.kind.value} in {self.operation}: {self.message}"


class HalError(Exception):
    """Base of every error of the contract. `next_step` tells the receiver what to do."""

    next_step = "report this as a bug"


class InvalidCall(HalError, ValueError):
    """The call's arguments break the contract: wrong size, foreign handle, bad range."""

    next_step = "fix the call"


class StaleHandle(InvalidCall):
    """The handle belongs to a closed device or to an epoch before a reset."""

    next_step = "create the handle again on the device as it is now"


class Unsupported(HalError):
    """The device does not declare this capability. Nothing has changed on the device."""

    next_step = "ask `describe()` for what the device can do, and use that"


class UnsupportedFormat(Unsupported):
    """The program format is not among `DeviceInfo.formats`."""


class CompileError(HalError):
    """The device refused a program.

    `log` is the compiler's own output, `line` the 1-based line of the source text (0: unknown).
    """

    next_step = "fix the program's source"

    def __init__(self, message: str, log: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.log = log
        self.line = line


class OutOfMemory(HalError, MemoryError):
    """A memory space cannot give `requested` bytes; `available` is how many it could, `held` who
    has them."""

    next_step = "free memory or ask for less"

    def __init__(
        self, message: str, requested: int, available: int, held: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(message)
        self.requested = requested
        self.available = available
        self.held = dict(held or {})

    def __reduce__(self) -> tuple[type[OutOfMemory], tuple[object, ...]]:
        # Without it a pickle keeps the message alone, and cannot be read back.
        return type(self), (str(self), self.requested, self.available, self.held)


class DeadlineExceeded(HalError, TimeoutError):
    """A wait reached its deadline; the work itself may still complete."""

    next_step = "wait longer, or ask `health()`"


class OperationFailed(HalError):
    """An awaited point failed; `failure` is the first cause."""

    next_step = "restart the step"

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class DeviceLost(OperationFailed):
    """The device, or its queue, is gone until `reset()`; `failure` is the first cause."""

    next_step = "reset the device or drop it"


class PluginError(HalError):
    """A plugin cannot be used: it is missing, broken, or speaks another contract version."""

    next_step = "install or repair the plugin; `hal devices` shows each plugin's cause"


def error_for(failure: Failure) -> OperationFailed:
    """The error that a waiter raises for a failure, by its scope."""
    lost = failure.scope in (Scope.DEVICE, Scope.RESET)
    return DeviceLost(failure) if lost else OperationFailed(failure)
