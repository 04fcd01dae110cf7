"""How long a process had of a machine that others use, too."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from contextlib import suppress

PATIENCE = 20
"""After how many times its seconds a deadline passes on any machine."""

_LOOK_S = 0.1
_NS = 1e-9


class Deadline:
    """Passes when a process and those that it started had so many seconds since this was made.

    Time for which one of them was ready to run and no processor was free is not counted: a busy
    machine makes no hang. A system that does not say how long that was has the clock's seconds.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._began_s = seconds, time.monotonic()
        self._starved_s = 0.0
        self._before: dict[str, int] = {}

    def has_ended(self, pid: int) -> bool:
        """Whether the process, which was started when this was made or later, ends in time: waits
        for one of the two."""
        descriptor = os.pidfd_open(pid)
        try:
            while not select.select([descriptor], [], [], _LOOK_S)[0]:
                if self._passed(pid):
                    return False
            return True
        finally:
            os.close(descriptor)

    def _passed(self, pid: int) -> bool:
        """What the threads waited is looked at only where the clock says that it is time."""
        passed_s = time.monotonic() - self._began_s
        if passed_s >= self._seconds * PATIENCE:
            return True
        if passed_s - self._starved_s >= self._seconds:
            waits = dict(_waits_ns(pid))
            # They wait side by side, and whoever runs may wait for one of the others.
            more = (waited - self._before.get(task, 0) for task, waited in waits.items())
            self._starved_s += max(more, default=0) * _NS
            self._before = waits
        return passed_s - self._starved_s >= self._seconds


def _waits_ns(pid: int) -> Iterator[tuple[str, int]]:
    """For how long each thread of a process, and of those below it, was ready and did not run."""
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            here = f"/proc/{pid}/task/{task}"
            with suppress(OSError, ValueError, IndexError):  # it may end at any time
                yield here, int(_read(f"{here}/schedstat").split()[1])
                for child in _read(f"{here}/children").split():
                    yield from _waits_ns(int(child))


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()
