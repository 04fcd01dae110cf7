"""Threads that work beside the caller, also while the process ends: a save that is under way then
still comes to its end, where `concurrent.futures` takes nothing more."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any

LEAST = 19
"""The nice value of what gives way to everything else; the kernel gives it 1/68 of the weight of a
usual thread, and the lowest priority of disks' best-effort class."""


SHARE = 1 / 20
"""How much of one processor the threads of one `Threads` take that give way: a step beside them
takes little longer, also where it needs every processor that there is."""

_here = threading.local()


def give_way() -> None:
    """Let this thread, and those that it starts from now on, run where others leave a processor
    idle, or nearly so; and let its `Threads` take no more than SHARE. It lasts as long as they
    do."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST)
    _here.gives_way = True


def pause(busy_s: float, took_s: float, count: int) -> float:
    """Seconds that one of `count` threads which give way rests after a task that took so long, in
    which a processor was busy for `busy_s`."""
    return max(0.0, busy_s * count / SHARE - took_s)


class Threads:
    """A few threads that take tasks in their order. Use it in a `with` statement."""

    def __init__(self, count: int) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._count = count
        self._gives_way = getattr(_here, "gives_way", False)
        for _ in range(count):
            Thread(target=self._work, name="hal-storage", daemon=True).start()

    def _work(self) -> None:
        # Blocks for work, which is all that it is for; `__exit__` ends it.
        while (task := self._tasks.get()) is not None:
            self._do(*task)

    def _do(self, future: Future[Any], call: Callable[[], Any]) -> None:
        begun, busy = time.perf_counter(), time.thread_time()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001  (the future carries it)
                future.set_exception(error)
        if self._gives_way:
            took, busy = time.perf_counter() - begun, time.thread_time() - busy
            time.sleep(pause(busy, took, self._count))

    def give(self, call: Callable[[], Any]) -> Future[Any]:
        """Begin a task when a thread is free."""
        future: Future[Any] = Future()
        self._tasks.put((future, call))
        return future

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *error: object) -> None:
        for _thread in range(self._count):
            self._tasks.put(None)
