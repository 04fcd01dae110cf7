"""The one timeline of an engine: everything is submitted to it in order, and every wait has a
deadline."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable

from hal.core.device import Device
from hal.core.errors import DeadlineExceeded, DeviceLost, Failure, OperationFailed
from hal.core.facts import dataclass
from hal.core.values import HostMemory, Point, Region, Timeline, Waits

DEPTH = 64
"""How many operations may be submitted ahead of the device, so that Ctrl-C and failures are seen
soon."""

Side = Region | HostMemory

OnFailure = Callable[[Failure, Callable[[int], bool]], None]
"""Called after a failure with its cause and a test whether a value of the old timeline was
reached."""


@dataclass(slots=True)
class _HostUse:
    """Memory of the host that an operation uses until the timeline reaches `ends`."""

    memory: object
    ends: int = sys.maxsize


class Stream:
    """Submits to a device's timeline and waits for it.

    A failed timeline fails everything after it. So a failure that leaves the device usable ends the
    timeline: the stream settles it, reports it through `on_failure`, and goes on with a new one.
    """

    def __init__(self, device: Device, timeout_s: float, on_failure: OnFailure) -> None:
        self.device = device
        self.timeout_s = timeout_s
        # Held while something is submitted and noted, so that a restart sees all or nothing of it.
        self.lock = threading.RLock()
        self.timeline: Timeline = device.create_timeline(False)
        self._failed: Timeline | None = None
        """The one that failed last: who still waits for its points hears by what."""
        self._on_failure = on_failure
        self._last: Point | None = None
        self._reached = 0
        self._kept: deque[_HostUse] = deque()
        """By value."""

    def copy(self, dst: Side, src: Side, keep: object = None, waits: Waits = ()) -> Point:
        """Submit a copy; `keep` stays alive until it is done."""
        use = _HostUse(keep)
        if keep is not None:
            # Before the submission: an interrupt between the two must not free memory in use.
            self._kept.append(use)
        point = self.device.copy(dst, src, self.timeline, waits)
        use.ends = point.value
        self.submitted(point)
        return point

    @property
    def submitted_value(self) -> int:
        """The value of the newest operation on `timeline`; 0 before the first."""
        return self._last.value if self._last is not None else 0

    @property
    def newest(self) -> Waits:
        """The point after everything that was submitted to `timeline`; none before the first."""
        return () if self._last is None else (self._last,)

    def submitted(self, point: Point) -> None:
        """Note an operation that was submitted to `timeline`."""
        self._last = point

    def throttle(self) -> None:
        """Wait for older work if too much of it is still to be done; raises as `wait`."""
        last = self._last
        if last is not None and last.value - self._reached > DEPTH:
            self.wait(Point(last.timeline, last.value - DEPTH // 2), "earlier work")

    def wait(self, point: Point, what: str, timeout_s: float | None = None) -> None:
        """Wait until a point is reached.

        Raises DeadlineExceeded naming `what`; OperationFailed or DeviceLost with the first cause.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            reached = self.device.wait([point], limit_s, True)
        except DeviceLost:
            raise
        except OperationFailed as error:
            with self.lock:
                if point.timeline is self.timeline:
                    # Go on with a new timeline once the failed one owes nothing more.
                    old, kept = self.timeline, self._kept
                    self._settle()
                    self._on_failure(
                        error.failure, lambda value: self._was_reached(Point(old, value))
                    )
                    if self._failed is not None:
                        self.device.free(self._failed)
                    self._failed = old
                    self.timeline = self.device.create_timeline(False)
                    self._last, self._reached, self._kept = None, 0, deque()
                    kept.clear()
            raise
        if not reached:
            raise DeadlineExceeded(
                f"{self.device.name}: {what} did not end within {limit_s:g} s; "
                f"the device says {self.device.health().state.value}"
            )
        with self.lock:  # two threads would let go of memory that the next operations use
            if point.timeline is self.timeline and point.value > self._reached:
                self._reached = point.value
                while self._kept and self._kept[0].ends <= point.value:
                    self._kept.popleft()

    def drain(self, what: str, timeout_s: float | None = None) -> None:
        """Wait for everything submitted so far; raises as `wait`."""
        if self._last is not None:
            self.wait(self._last, what, timeout_s)

    def _settle(self) -> None:
        assert self._last is not None, "a failed timeline has had an operation"
        try:
            settled = self.device.wait([self._last], self.timeout_s, True)
        except OperationFailed:
            return
        if not settled:
            raise DeadlineExceeded(f"{self.device.name}: a failed timeline did not settle in time")

    def _was_reached(self, point: Point) -> bool:
        try:
            return self.device.wait([point], 0, True)
        except OperationFailed:
            return False
