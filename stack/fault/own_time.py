"""What a process takes by itself, without the time in which other work had its processors (Linux's
`schedstat`: nanoseconds that a thread has run, and has waited for a processor)."""

from __future__ import annotations

import os
import time
from contextlib import suppress

_NS = 1e-9


class OwnTime:
    """A stop watch for the threads that there are when this is made."""

    def __init__(self) -> None:
        self._main = _opened(os.getpid())
        tasks = [int(name) for name in os.listdir("/proc/self/task")]
        self._others = [_opened(task) for task in tasks if task != os.getpid()]
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._awake_ns = {stat: _awake_ns(stat) for stat in (self._main, *self._others)}
        self._ran_s, self._began_s = time.process_time(), time.monotonic()

    def passed_s(self) -> tuple[float, float]:
        """What has passed on the clock, and what this process has needed of it: the time that its
        threads ran, and that in which all of them slept, or waited for a device."""
        passed_s = time.monotonic() - self._began_s
        ran_s = time.process_time() - self._ran_s
        awake = {stat: _awake_ns(stat) - before for stat, before in self._awake_ns.items()}
        # Threads that compute do so side by side, while the main one waits for them
        awake_s = (awake.pop(self._main) + max(awake.values(), default=0)) * _NS
        return passed_s, min(passed_s, ran_s + max(0.0, passed_s - awake_s))

    def close(self) -> None:
        for stat in (self._main, *self._others):
            if stat >= 0:
                os.close(stat)


def _opened(task: int) -> int:
    with suppress(OSError):
        return os.open(f"/proc/self/task/{task}/schedstat", os.O_RDONLY)
    return -1


def _awake_ns(stat: int) -> int:
    """How long a thread has run or waited for a processor."""
    try:
        return sum(map(int, os.pread(stat, 80, 0).split()[:2]))
    except OSError:  # the thread has ended; or this system does not count
        return 0
