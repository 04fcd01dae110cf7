"""How long a process had of a machine that others use, too."""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress

PATIENCE = 20
"""After how many times its seconds a deadline passes on any machine."""

_LOOK_S = 0.1
_NS = 1e-9


class Allowance:
    """So many seconds for a process and those that it starts, from when this is made.

    Time for which one of them was ready to run and no processor was free is not counted: a busy
    machine makes no hang. A system that does not say how long that was has the clock's seconds.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._began_s = seconds, time.monotonic()
        self._starved_s = 0.0
        self._before: dict[str, float] = {}

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
            waits = waits_s(pid)
            # They wait side by side, and whoever runs may wait for one of the others.
            more = (waited - self._before.get(task, 0.0) for task, waited in waits.items())
            self._starved_s += max(more, default=0.0)
            self._before = waits
        return passed_s - self._starved_s >= self._seconds


def waits_s(process: int) -> dict[str, float]:
    """For how long each thread of a process, and of those that descend from it, was ready to run
    and no processor was free; none on a system that does not say."""
    found: dict[str, float] = {}
    processes = [str(process)]
    for one in processes:
        with suppress(OSError, ValueError, IndexError):  # it may end at any time
            for task in os.listdir(f"/proc/{one}/task"):
                here = f"/proc/{one}/task/{task}"
                found[task] = int(_read(f"{here}/schedstat").split()[1]) * _NS
                processes += _read(f"{here}/children").split()
    return found


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()
