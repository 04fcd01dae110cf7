"""Who notices that an operation of the host makes no progress: a machine that does not return."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from hal.core.facts import dataclass

LOOKS = 8
"""How often the watch looks in the time after which an operation counts as hanging."""


@dataclass(slots=True)
class Doing:
    """What the session's thread works on, and how far it is: `operation` is empty while it works on
    nothing that is watched. `steps` only grows. That thread alone writes it."""

    operation: str = ""
    steps: int = 0

    def step(self, operation: str) -> None:
        """The thread goes on, with this operation."""
        self.steps += 1
        self.operation = operation


class Quiet:
    """For how long what is looked at was seen to be the same. Time for which a thread of this
    process was ready and no processor was free is not counted: whoever works may wait for what that
    one holds, as threads of Python do, and a busy machine makes no hang."""

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self.begin()

    def begin(self) -> None:
        """It came on just now."""
        self._seen, self._since_s, self._starved_s = self._look(), time.monotonic(), 0.0
        self._before: dict[int, float] = {}

    def _came_on(self) -> bool:
        if self._look() == self._seen:
            return False
        self.begin()
        return True

    def lasts(self, limit_s: float) -> bool:
        """Whether it has been so long. What threads waited is counted from the first look on, and
        looked at again only where the clock says that it has. Who counts may wait long for the
        interpreter's lock, in which what is looked at comes on: then it has not."""
        if self._came_on():
            return False
        if self._before and time.monotonic() - self._since_s - self._starved_s < limit_s:
            return False
        waits = waits_s()
        self._starved_s += max(
            (waited - self._before.get(thread, waited) for thread, waited in waits.items()),
            default=0.0,
        )
        self._before = waits
        long = time.monotonic() - self._since_s - self._starved_s >= limit_s
        return long and not self._came_on()


class Watch:
    """Calls `lose` with the name of an operation that has shown no progress for `progress_s`, as
    `Quiet` counts it.

    Progress is a `step`, or that the machine's `beats` are others.
    """

    def __init__(
        self,
        name: str,
        progress_s: float,
        doing: Doing,
        beats: Callable[[], int],
        lose: Callable[[Doing, int], None],
    ) -> None:
        self._progress_s, self._doing, self._beats, self._lose = progress_s, doing, beats, lose
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"{name} watch", daemon=True)

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; call without the lock."""
        self._end.set()
        self._thread.join(timeout=10.0)

    def _loop(self) -> None:
        quiet = Quiet(lambda: (self._doing.steps, self._beats()))
        while not self._end.wait(self._progress_s / LOOKS):
            steps = self._doing.steps
            if not self._doing.operation:
                quiet.begin()
            elif quiet.lasts(self._progress_s):
                self._lose(self._doing, steps)


Made = TypeVar("Made")


class NoProgress(Exception):
    """What was watched does not get on; the text says for how long."""


def watched(name: str, limit_s: float, beats: Callable[[], int], work: Callable[[], Made]) -> Made:
    """What `work` gives or raises; a thread of its own does it.

    Raises NoProgress when it has shown none for `limit_s`, as `Quiet` counts it: the `beats` are
    the same. The thread is abandoned then.
    """
    made: Future[Made] = Future()

    def do() -> None:
        try:
            made.set_result(work())
        except BaseException as error:  # noqa: BLE001  foreign code: the caller hears it
            made.set_exception(error)

    threading.Thread(target=do, name=name, daemon=True).start()
    quiet = Quiet(beats)
    while not wait([made], timeout=limit_s / LOOKS).done:
        if quiet.lasts(limit_s):
            raise NoProgress(f"no progress for {limit_s:g} s")
    return made.result(timeout=0)


def waits_s() -> dict[int, float]:
    """For how long each thread of this process was ready and did not run, by native id."""
    threads = {thread.native_id or 0 for thread in threading.enumerate()}
    with suppress(OSError):
        threads = set(map(int, os.listdir("/proc/self/task")))
    return {thread: _waited_s(thread) for thread in threads}


def _waited_s(thread: int) -> float:
    """How long a thread of this process was ready and did not run; 0 on a system that does not
    say."""
    try:
        said = Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="ascii")
        return int(said.split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0
