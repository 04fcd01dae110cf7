"""The calls of a device in a group, one after the other, in a thread between device and engine."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from hal.core.device import Device
from hal.core.errors import (
    Failure,
    FailureKind,
    HalError,
    InvalidCall,
    OperationFailed,
    OutOfMemory,
    Scope,
)
from hal.core.values import Point, Region, Waits
from stack.comm.device.through import Through
from stack.comm.engine.failures import CallMismatch
from stack.comm.group import Group
from stack.comm.messages import RankCall, kind_of

SLICE_S = 0.05
"""How long a wait for the device does not look whether the group has failed."""
IDLE_S = 1.0


class CallLine:
    """Runs calls behind the points that they wait for, and reaches a point for each.

    Two host-driven timelines tie it to the device: the one counts the calls that are begun, so that
    the thread sleeps in a wait of the device and hears at once when that is lost; the other one
    counts those that are done. The first failure fails every point from it on, and ends the group.
    """

    def __init__(self, group: Group, device: Device, staged: bool) -> None:
        """`staged`: as in `Through`."""
        self._group = group
        self._device = device
        self._through = Through(group, device, staged, self._await_copies)
        self._calls = device.create_timeline(True)
        self._points = device.create_timeline(True)
        self._lock = threading.Lock()
        self._begun = self._taken = self._reached = 0
        self._tasks: deque[_Task | None] = deque()
        self._last: Callable[[], None] | None = None
        self._stopped = False
        self.failure: Failure | None = None
        self.sent: Counter[str] = Counter()
        """Bytes that the calls which are done have sent, by `kind_of` them."""
        name = f"{device.name} in {group.key}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def start(
        self, call: RankCall, dst: Region, src: Region, waits: Waits, elements: Region | None = None
    ) -> Point:
        """Begin a call; gives its point. Does not block. Raises InvalidCall after `leave`."""
        with self._lock:
            self.check_here()
            value = self._push(_Task(self._begun + 1, call, dst, src, elements, tuple(waits)))
            return Point(self._points, value)

    def check_here(self) -> None:
        """Raise InvalidCall after `leave`."""
        if self._last is not None:
            where = f"{self._device.name} in group {self._group.key!r}"
            raise InvalidCall(f"{where}: the device has left it")

    def fail(self, failure: Failure) -> None:
        """Fail every call that is not done, and end the group on all ranks. Does not block. Only
        the first failure counts."""
        with self._lock:
            first = self.failure is None
            self.failure = self.failure or failure
        self._group.abort()  # before anybody wakes, so that no later call of another rank succeeds
        if first:
            self._signal(self._reached + 1, failure)

    def leave(self, last: Callable[[], None]) -> None:
        """End the calls that are begun, then call `last`. Does not block. Only the first one
        counts."""
        with self._lock:
            if self._last is not None:
                return
            self._last = last
            stopped = self._stopped
            with suppress(HalError):  # a device that is gone stops the thread
                self._push(None)
        if stopped:
            last()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end after `leave`; whether it has come."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _push(self, task: _Task | None) -> int:
        """With the lock held."""
        self._tasks.append(task)
        self._begun += 1
        self._device.signal(self._calls, self._begun, None)
        return self._begun

    def _work(self) -> None:
        try:
            while (task := self._next()) is not None:
                if self.failure is None:
                    self._do(task)
        except OperationFailed as error:
            self._end(error.failure)  # the device is lost
        except HalError as error:
            self._end(self._failure(FailureKind.ABORTED, "group", f"its device is gone: {error}"))
        else:
            with suppress(HalError):  # as in `_signal`
                self._through.close()
                self._device.free(self._calls)
                self._device.free(self._points)
        with self._lock:
            self._stopped = True
            last = self._last
        if last is not None:
            last()

    def _next(self) -> _Task | None:
        """The next call, once it is begun; None after the last one."""
        self._taken += 1
        while not self._device.wait([Point(self._calls, self._taken)], IDLE_S, True):
            continue
        return self._tasks.popleft()

    def _do(self, task: _Task) -> None:
        try:
            # Until the device has reached the points. Raises what has failed them or the group.
            while task.waits and not self._device.wait(task.waits, SLICE_S, True):
                self._check_group()
            sent = self._through.run(task.call, task.dst, task.src, task.elements)
        except OperationFailed as error:
            self._end(self._own(error.failure, task))
        except OutOfMemory as error:
            self._end(self._failure(FailureKind.OUT_OF_MEMORY, str(task.call), str(error)))
        except CallMismatch as error:
            failure = self._failure(FailureKind.ABORTED, str(task.call), str(error))
            self._end(replace(failure, ranks=error.ranks))
        except HalError as error:
            self._end(self._failure(FailureKind.ABORTED, str(task.call), str(error)))
        except Exception as error:  # noqa: BLE001  foreign code: a plugin's hook; it fails the point
            text = f"{type(error).__name__}: {error}"
            self._end(self._failure(FailureKind.HOST_CALL, str(task.call), text))
        else:
            with self._lock:
                if self.failure is None:
                    self.sent[kind_of(task.call, task.elements is not None)] += sent
                    self._reached = task.value
                    self._signal(task.value, None)

    def _end(self, failure: Failure) -> None:
        """`fail`; what this rank is the first to meet is told to the others before they hear that
        it has ended the group."""
        if self._group.failure is None:
            self._group.say_why(OperationFailed(failure))
        self.fail(failure)

    def _await_copies(self, points: Sequence[Point]) -> None:
        """As `_await`, for copies, which do not take longer than the group's deadline."""
        until_s = time.monotonic() + self._group.deadline_s
        while points and not self._device.wait(points, SLICE_S, True):
            self._check_group()
            if time.monotonic() > until_s:
                text = f"a copy of a call did not end within {self._group.deadline_s:g} s"
                raise OperationFailed(self._failure(FailureKind.HANG, "copy", text))

    def _check_group(self) -> None:
        if self.failure is not None:
            raise OperationFailed(self.failure)
        if (failure := self._group.failure) is not None:
            raise failure

    def _signal(self, value: int, failure: Failure | None) -> None:
        try:
            self._device.signal(self._points, value, failure)
        except HalError:
            return  # the device is closed or lost, and every point with it

    def _own(self, failure: Failure, task: _Task) -> Failure:
        """What ended the group, as a failure of this device; another one unchanged."""
        error = self._group.failure
        if isinstance(error, OperationFailed) and failure == error.failure:
            return replace(failure, device=self._device.name, operation=str(task.call))
        return failure

    def _failure(self, kind: FailureKind, operation: str, text: str) -> Failure:
        return Failure(kind, Scope.PEER, self._device.name, operation, text)


class _Task(NamedTuple):
    value: int
    call: RankCall
    dst: Region
    src: Region
    elements: Region | None
    waits: tuple[Point, ...]
