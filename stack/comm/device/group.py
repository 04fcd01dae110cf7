"""A group whose ranks are devices: collectives on device memory, behind and before other work."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import NamedTuple, Self

from hal.core.device import Device
from hal.core.errors import (
    Failure,
    FailureKind,
    HalError,
    OperationFailed,
    Scope,
)
from hal.core.values import Collective, Point, Region, Waits
from stack.comm.device.call import Call
from stack.comm.device.meeting import meet
from stack.comm.device.through import Through
from stack.comm.group import Group

SLICE_S = 0.05
"""How long a wait for the device does not look whether the group has failed."""


class DeviceGroup:
    """The device of this rank in a group: it begins collectives on regions of the device's buffers,
    and gives points that the device's other work waits for.

    All ranks begin the same calls in the same order. The devices of the ranks may be of different
    plugins. Calls run one after the other, in a thread of the group, and the first failure fails
    every point from it on: what ended the group, or what failed a point that a call waits for,
    which then ends the group on the other ranks. While this lives, nobody else calls operations of
    `group`, which stays the caller's.
    """

    def __init__(self, group: Group, device: Device) -> None:
        """All ranks of the group make theirs at once. Raises what ends the group."""
        self.group = group
        self.device = device
        self.peers = meet(group, device)
        staged = any(not peer.mapped for peer in self.peers)
        self._through = Through(group, device, staged, self._await)
        self._points = device.create_timeline(True)
        self._lock = threading.Lock()
        self._begun = self._reached = 0
        self._failed: Failure | None = None
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        name = f"{device.name} in {group.key}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def size(self) -> int:
        return self.group.size

    @property
    def failure(self) -> Failure | None:
        """The first failure of a call; None while all is well. Does not block. What has ended the
        group on all ranks, with the rank that caused it, is `group.failure`."""
        return self._failed

    def start(
        self,
        collective: Collective,
        dst: Region,
        src: Region,
        waits: Waits = (),
        parts: Sequence[int] | None = None,
    ) -> Point:
        """Begin a collective behind the points in `waits`; gives the point at which it is done on
        this rank. Does not block.

        `dst` equal to `src` means in place. Regions that the rank does not use may be empty. The
        buffers stay alive until the point. `parts` are the elements of each rank's part where they
        differ (all_gather, gather, reduce_scatter, scatter), equal on all ranks; the collective's
        count does not count then. Raises InvalidCall for regions that do not fit.
        """
        call = Call(collective, None if parts is None else tuple(parts))
        call.check(
            f"{self.device.name} in group {self.group.key!r}", self.rank, self.size, dst, src
        )
        with self._lock:
            self._begun += 1
            self._tasks.put(_Task(self._begun, call, dst, src, tuple(waits)))
            return Point(self._points, self._begun)

    def abort(self, cause: Failure) -> None:
        """Fail every call that is not done, here with `cause`, and end the group on all ranks. Does
        not block, and may be called from any thread and again."""
        self._fail(cause)

    def close(self) -> None:
        """End the calls that are begun, and give back what this has of the device. Those that are
        not done within the group's deadline are aborted. The group stays open."""
        if not self._thread.is_alive():
            return
        self._tasks.put(None)
        self._thread.join(self.group.deadline_s)
        if self._thread.is_alive():
            self._fail(self._failure_of(FailureKind.ABORTED, "close", "its calls did not end"))
            self._thread.join(self.group.deadline_s)
        self._through.close()
        self.device.free(self._points)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _work(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=1.0)
            except Empty:
                continue
            if task is None:
                return
            self._do(task)

    def _do(self, task: _Task) -> None:
        if self._failed is not None:
            return
        try:
            self._await(task.waits)
            self._through.run(task.call, task.dst, task.src)
        except OperationFailed as error:
            self._fail(self._named(error, task))
        except HalError as error:
            self._fail(self._failure_of(FailureKind.ABORTED, str(task.call), str(error)))
        except Exception as error:  # noqa: BLE001  foreign code: a plugin's hook; it fails the point
            text = f"{type(error).__name__}: {error}"
            self._fail(self._failure_of(FailureKind.HOST_CALL, str(task.call), text))
        else:
            self._reach(task.value)

    def _await(self, points: Sequence[Point]) -> None:
        """Until the device has reached the points. Raises what has failed them or the group."""
        while points and not self.device.wait(points, SLICE_S, True):
            if self._failed is not None:
                raise OperationFailed(self._failed)
            if (failure := self.group.failure) is not None:
                raise failure

    def _reach(self, value: int) -> None:
        with self._lock:
            if self._failed is None:
                self._reached = value
                self._signal(value, None)

    def _fail(self, failure: Failure) -> None:
        with self._lock:
            if self._failed is None:
                self._failed = failure
                self._signal(self._reached + 1, failure)
        self.group.abort()

    def _signal(self, value: int, failure: Failure | None) -> None:
        try:
            self.device.signal(self._points, value, failure)
        except HalError:
            assert self.device is not None  # closed or lost: its points have failed with it

    def _named(self, error: OperationFailed, task: _Task) -> Failure:
        """The failure of a wait as it is; what ended the group as this device's."""
        if error is self.group.failure or error.failure.scope is not Scope.PEER:
            return error.failure
        return replace(error.failure, device=self.device.name, operation=str(task.call))

    def _failure_of(self, kind: FailureKind, operation: str, text: str) -> Failure:
        return Failure(kind, Scope.PEER, self.device.name, operation, text)


class _Task(NamedTuple):
    value: int
    call: Call
    dst: Region
    src: Region
    waits: tuple[Point, ...]
