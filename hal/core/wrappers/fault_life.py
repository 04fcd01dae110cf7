"""What injected faults did to a device: held and failed operations, and its loss.

A fault holds an operation through a *gate*, a host-driven timeline of which the operation waits for
the first point. To fail the gate fails the operation as the contract says; to signal it lets the
operation run. A lost device is kept as it was at that moment: a point that was not reached then
never is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from hal.core.device import Device
from hal.core.errors import Failure, FailureKind, HalError, Scope, error_for
from hal.core.values import Health, HealthState, Point, Timeline

_LOOK_S = 0.01
"""How long a wait goes on before it looks whether the device was lost."""

_END_S = 1.0
"""How long the end of the life waits for a thread that watches an operation."""

_FATAL = (Scope.DEVICE, Scope.RESET)


class Life:
    """A device from its opening, or a reset, to its loss, reset or end."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._gates: list[Timeline] = []
        self._watchers: list[threading.Thread] = []
        self._newest: dict[int, Point] = {}
        self._frozen: dict[int, int] = {}
        self.lost: Failure | None = None
        self.hanging: Failure | None = None

    # operations

    def note(self, point: Point) -> None:
        """Remember the newest point of its timeline."""
        with self._lock:
            known = self._newest.get(id(point.timeline))
            if known is None or known.value < point.value:
                self._newest[id(point.timeline)] = point

    def before(self, timeline: Timeline, waits: Sequence[Point]) -> tuple[Point, ...]:
        """What an operation that is submitted now comes after."""
        newest = self._newest.get(id(timeline))
        return (*waits, newest) if newest else tuple(waits)

    def gate(self) -> Point:
        """A point that holds what waits for it, until it is opened or failed."""
        timeline = self._device.create_timeline(True)
        with self._lock:
            self._gates.append(timeline)
        return Point(timeline, 1)

    def open(self, gate: Point) -> None:
        """Let run what waits for a gate."""
        self._signal(gate, None)

    def fail(self, gate: Point, failure: Failure) -> None:
        """Fail what waits for a gate; a failure of the whole device takes it with it."""
        self._signal(gate, failure)
        if failure.scope in _FATAL:
            self.lose(failure)

    def later(
        self, after: Sequence[Point], delay_s: float, act: Callable[[], None], name: str
    ) -> None:
        """Act `delay_s` seconds after these points are over, unless the life ends before."""

        def watch() -> None:
            while not self._are_over(after):
                if self._ended.is_set():
                    return
            if not self._ended.wait(delay_s):
                with suppress(HalError):  # the session ended in between: nobody is left to tell
                    act()

        watcher = threading.Thread(target=watch, name=f"fault {name}", daemon=True)
        with self._lock:
            self._watchers = [one for one in self._watchers if one.is_alive()] + [watcher]
            watcher.start()

    # loss and end

    def lose(self, failure: Failure) -> None:
        """The device is gone: keep which points are reached now."""
        with self._lock:
            if self.lost is None:
                self._frozen = {key: self._reached(p) for key, p in self._newest.items()}
                self.lost = failure

    def check(self) -> None:
        """Raise DeviceLost with the first cause if the device is lost."""
        if self.lost is not None:
            raise error_for(self.lost)

    def end(self, failure: Failure) -> None:
        """Fail what faults still hold, so that the device can close or reset."""
        self._ended.set()
        for watcher in self._watchers:
            if watcher is not threading.current_thread():
                watcher.join(_END_S)
        for timeline in self._gates:
            self._signal(Point(timeline, 1), failure)

    def wait(self, points: Sequence[Point], timeout_s: float, wait_all: bool) -> bool:
        """As `DeviceSpec.wait`; a loss wakes it."""
        ends = time.monotonic() + timeout_s
        while self.lost is None:
            left = max(0.0, ends - time.monotonic())
            if self._device.wait(points, min(left, _LOOK_S), wait_all):
                return True
            if left == 0.0:
                return False
        unreached = [p for p in points if p.value > self._frozen.get(id(p.timeline), 0)]
        if not unreached or (not wait_all and len(unreached) < len(points)):
            return True
        self._device.wait(unreached, 0.0, wait_all)  # one that failed before the loss says so
        assert self.lost is not None, "the device is lost"
        raise error_for(self.lost)

    def health(self, found: Health) -> Health:
        """The device's health with what faults did to it."""
        if self.lost is not None:
            reset = self.lost.scope is Scope.RESET
            state = HealthState.RESET_REQUIRED if reset else HealthState.LOST
            return Health(state, found.epoch, self.lost)
        if self.hanging is not None:
            return Health(HealthState.HANGING, found.epoch, self.hanging)
        return found

    def _signal(self, gate: Point, failure: Failure | None) -> None:
        with suppress(HalError):  # it was signalled before, or the session has ended
            self._device.signal(gate.timeline, gate.value, failure)

    def _are_over(self, points: Sequence[Point]) -> bool:
        try:
            return self._device.wait(points, _LOOK_S, True)
        except HalError:
            return True

    def _reached(self, newest: Point) -> int:
        """The value that a timeline has reached, at most that of its newest point."""
        low, high = 0, newest.value
        while low < high:
            middle = (low + high + 1) // 2
            reached = self._is_reached(Point(newest.timeline, middle))
            low, high = (middle, high) if reached else (low, middle - 1)
        return low

    def _is_reached(self, point: Point) -> bool:
        try:
            return self._device.wait((point,), 0.0, True)
        except HalError:
            return False


def ended(device: str, why: str) -> Failure:
    """The failure of what a fault held to the end."""
    return Failure(FailureKind.ABORTED, Scope.OPERATION, device, why, "the device was closed")
