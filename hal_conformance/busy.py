"""How busy the machine is besides: what a case that looks at time measures while it does so."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

_SPIN_S = 1e-3
_PAUSE_S = 4e-3
_LOOKS = 16


class Crowd:
    """How many times slower than alone a thread of this process gets on, 1 or more."""

    def __init__(self) -> None:
        self._wall_s, self._own_s = 0.0, 0.0

    def factor(self) -> float:
        """By all that was looked at since the beginning."""
        return max(1.0, self._wall_s / self._own_s) if self._own_s else 1.0

    def look(self) -> None:
        """Compute for a moment, and see how long that takes."""
        begin_s, own_s = time.monotonic(), time.thread_time()
        while time.thread_time() - own_s < _SPIN_S:
            pass
        self._wall_s += time.monotonic() - begin_s
        self._own_s += time.thread_time() - own_s


def factor_now() -> float:
    """How many times slower than alone this thread gets on at the moment."""
    found = Crowd()
    for _ in range(_LOOKS):
        found.look()
    return found.factor()


@contextlib.contextmanager
def crowd() -> Iterator[Crowd]:
    """Look beside the body, in a thread, every few milliseconds."""
    found, end = Crowd(), threading.Event()

    def look() -> None:
        while not end.wait(_PAUSE_S):
            found.look()

    thread = threading.Thread(target=look, name="how busy it is", daemon=True)
    found.look()
    thread.start()
    try:
        yield found
    finally:
        end.set()
        thread.join(10)
