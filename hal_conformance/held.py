"""What this process holds of the system: descriptors, threads, memory."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from pathlib import Path

from hal.core.facts import dataclass
from hal_conformance.expect import Unfit, Wrong

SETTLE_S = 3.0
"""How long a thread that was joined may still be in the system's list."""


@dataclass(frozen=True, slots=True)
class Held:
    """Counts of one moment."""

    descriptors: int
    threads: int


def held() -> Held:
    """Count now. Raises Unfit on a system that does not list them."""
    gc.collect()
    folders = Path("/proc/self/fd"), Path("/proc/self/task")
    if not all(folder.is_dir() for folder in folders):
        raise Unfit("this system does not list a process's descriptors and threads")
    return Held(*(len(os.listdir(folder)) for folder in folders))


def check_held(before: Held, what: str, slack: int = 0) -> None:
    """No more than `slack` more of each is held than before, as soon as things have settled."""
    end = time.monotonic() + SETTLE_S
    while (grown := _grown(before)) > slack and time.monotonic() < end:
        time.sleep(0.01)
    if grown > slack:
        raise Wrong(f"{what} left things behind: {before} before, {held()} after")


@dataclass(frozen=True, slots=True)
class Used:
    """The memory of this process: what the system counts, and what the C library gave out, in which
    what was freed before and is used again shows, too (0 where it does not say)."""

    resident: int
    given: int

    def grown(self) -> int:
        """How many bytes more there are now, by the count that grew more."""
        now = used()
        return max(now.resident - self.resident, now.given - self.given)


def used() -> Used:
    """Count now. Raises Unfit on a system that does not say."""
    return Used(resident_nbytes(), _given_nbytes())


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())


def _given_nbytes() -> int:
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return 0
    ask.restype = _Mallinfo
    found = ask()
    return int(found.uordblks + found.hblkhd)


def resident_nbytes() -> int:
    """The memory of this process. Raises Unfit on a system that does not say."""
    gc.collect()
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        raise Unfit("this system does not say how much memory a process has")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _grown(before: Held) -> int:
    now = held()
    return max(now.descriptors - before.descriptors, now.threads - before.threads)
