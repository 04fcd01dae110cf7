"""How busy the machine is besides: what a case that looks at time measures while it does so."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from hal.core.discovery.starving import waits_s

_SPIN_S = 1e-3
_PAUSE_S = 4e-3
_LOOKS = 16


class Crowd:
    """How many times slower than alone a thread of this process gets on, 1 or more; how late one
    that sleeps was woken at worst, in `late_s`; for how long one of this process or its children
    had work and no processor, in `starved_s`; and one of the whole machine, in `pressed_s`."""

    def __init__(self) -> None:
        self._wall_s, self._own_s = 0.0, 0.0
        self.late_s = self.starved_s = self.pressed_s = 0.0
        self._waited_s, self._pressed_s = waits_s(os.getpid()), _pressed_s()

    def own_s(self, wall_s: float, wakes: int, elsewhere: bool) -> float:
        """What of a time this machine would have needed alone, if so many threads had to wake in it
        one after the other. `elsewhere`: what took it is a process that is no child of this one."""
        rest_s = max(0.0, wall_s - wakes * self.late_s)
        starved_s = max(self.starved_s, self.pressed_s) if elsewhere else self.starved_s
        return min(rest_s / self.factor(), max(0.0, rest_s - starved_s))

    def looked_s(self) -> float:
        """For how long it has computed itself to see that."""
        return self._own_s

    def count(self) -> None:
        """See for how long threads have waited for a processor."""
        self.starved_s = max(self.starved_s, _starved_s(os.getpid(), self._waited_s))
        self.pressed_s = _pressed_s() - self._pressed_s

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


class Deadline:
    """So many seconds for a process and its children, besides those in which one of their threads
    had work and no processor, or, where it is more, those that the machine is too busy for when
    they are over: what they wait for may be computed elsewhere, as by a server. A machine that is
    busy makes no process late. However busy it is, there are `MOST` times as many."""

    MOST = 10.0

    def __init__(self, process: int, seconds: float) -> None:
        self._process, self._seconds = process, seconds
        self._began_s, self._waited_s = time.monotonic(), waits_s(process)
        self._longer_s: float | None = None

    def left_s(self) -> float:
        """How long it is until then if nothing waits any more; not above 0 when it has come."""
        over_s = time.monotonic() - self._began_s
        if over_s < self._seconds:
            return self._seconds - over_s
        if self._longer_s is None:
            self._longer_s = longer(self._seconds)
        besides_s = max(_starved_s(self._process, self._waited_s), self._longer_s)
        return min(self._seconds + besides_s, self.MOST * self._seconds) - over_s


def end_of(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """How a process ended; None where it did not by a `Deadline` of so many seconds."""
    deadline = Deadline(process.pid, seconds)
    while (left_s := deadline.left_s()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=left_s)
    return None


def factor_now() -> float:
    """How many times slower than alone this thread gets on at the moment."""
    found = Crowd()
    for _ in range(_LOOKS):
        found.look()
    return found.factor()


def longer(seconds: float) -> float:
    """As many seconds more as a thread needs now beyond what it needs alone; however busy it is,
    `Deadline.MOST` times as many at most."""
    return (min(factor_now(), Deadline.MOST) - 1) * seconds


@contextlib.contextmanager
def crowd() -> Iterator[Crowd]:
    """Look beside the body, in a thread, every few milliseconds."""
    found, end = Crowd(), threading.Event()

    def look() -> None:
        slept_s, looks = time.monotonic(), 0
        while not end.wait(_PAUSE_S):
            found.late_s = max(found.late_s, time.monotonic() - slept_s - _PAUSE_S)
            found.look()
            looks += 1
            if looks % _LOOKS == 0:
                found.count()
            slept_s = time.monotonic()

    thread = threading.Thread(target=look, name="how busy it is", daemon=True)
    found.look()
    thread.start()
    try:
        yield found
    finally:
        end.set()
        thread.join(10)


def _pressed_s() -> float:
    """For how long any thread of this machine had work and no processor since it began; 0 on a
    system that does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        some = Path("/proc/pressure/cpu").read_text(encoding="ascii").partition("\n")[0]
        return int(some.rpartition("total=")[2]) * 1e-6
    return 0.0


def _starved_s(process: int, before_s: dict[str, float]) -> float:
    """For how long the one of a process's threads that waited most had work and no processor since
    `before_s` was counted; a thread that is new then joins it."""
    return max(
        (waited - before_s.setdefault(at, 0.0) for at, waited in waits_s(process).items()),
        default=0.0,
    )
