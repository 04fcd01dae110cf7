"""Threads that work beside the caller, also while the process ends: a save that is under way then
still comes to its end, where `concurrent.futures` takes nothing more."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any

LEAST = 19
"""The nice value of what gives way to everything else; the kernel gives it 1/68 of the weight of a
usual thread, and the lowest priority of disks' best-effort class."""


def give_way() -> None:
    """Let this thread, and those that it starts from now on, run where others leave a processor
    idle, or nearly so. It lasts as long as they do."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST)


class Threads:
    """A few threads that take tasks in their order. Use it in a `with` statement."""

    def __init__(self, count: int) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._count = count
        for _ in range(count):
            Thread(target=self._work, name="hal-storage", daemon=True).start()

    def _work(self) -> None:
        # Blocks for work, which is all that it is for; `__exit__` ends it.
        while (task := self._tasks.get()) is not None:
            future, call = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001  (the future carries it)
                    future.set_exception(error)

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
