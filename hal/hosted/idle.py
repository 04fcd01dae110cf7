"""What a driver has back when its device does nothing, because it would wait for that itself."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Lock

_PAUSE_S = 50e-6


class Spent:
    """Calls that give something back. To note one calls no driver, so that Python may forget a
    thing anywhere; `is_idle` says whether the device does nothing."""

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self._is_idle = is_idle
        self._calls: deque[Callable[[], object]] = deque()
        self.turn = Lock()
        """Held in each call: while somebody else has it, nothing is given back."""
        self.clear = self._calls.clear

    def add(self, call: Callable[[], object]) -> None:
        """Have it called by `tidy`."""
        self._calls.append(call)

    def tidy(self, until_s: float = 0.0) -> None:
        """Call what was noted if the device is idle, or as soon as it is, until a time of the
        monotonic clock."""
        while self._calls:
            if self._is_idle():
                with self.turn:
                    if self._calls:
                        self._calls.popleft()()
            elif time.monotonic() >= until_s:
                return
            else:
                time.sleep(_PAUSE_S)
