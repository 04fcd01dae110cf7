"""Futures of operations that run in the background: threads of the process complete them.

PyTorch's data-parallel wrapper asks for the future of each bucket of gradients while the backward
pass goes on, so nobody may wait there. What is done after a future may itself wait for another one,
so a thread looks which operations have ended, and others complete their futures.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Protocol

import torch

_SLICE_S = 0.001
_IDLE_S = 1.0
"""How long a thread waits for the next future to complete."""


class PendingWork(Protocol):
    """An operation that has begun."""

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        ...

    def wait_a_moment(self, seconds: float) -> None:
        """Wait for a part of it, not longer than that."""
        ...

    def settle(self) -> None:
        """Finish what is complete. Raises what has ended the group."""
        ...

    def tensors(self) -> list[torch.Tensor]:
        """What it gives."""
        ...


class Futures:
    """Completes futures in the order in which their operations end. Its thread lives as long as
    some are open; an operation ends by its group's deadline at the latest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[tuple[PendingWork, Any]] = []
        self._running = False
        self._completers = Completers()

    def of(self, pending: PendingWork) -> Any:
        """A future that will have the operation's tensors, or its error."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        with self._lock:
            self._open.append((pending, future))
            if not self._running:
                self._running = True
                threading.Thread(target=self._serve, name="hal futures", daemon=True).start()
        # Python's set_exception sets an exception as the value, which torch's own code takes for
        # tensors. What is raised in a callback is an error there, too.
        return future.then(lambda done: done.value())

    def _serve(self) -> None:
        for waiting in iter(self._first, None):
            for pending, future in self._ended():
                self._completers.take(pending, future)
            waiting.wait_a_moment(_SLICE_S)

    def _first(self) -> PendingWork | None:
        """The oldest operation that is open; without one the thread ends."""
        with self._lock:
            self._running = bool(self._open)
            return self._open[0][0] if self._open else None

    def _ended(self) -> list[tuple[PendingWork, Any]]:
        with self._lock:
            ended = [pair for pair in self._open if pair[0].over]
            self._open = [pair for pair in self._open if not any(pair is e for e in ended)]
        return ended


class Completers:
    """Threads that complete futures: one more where all that there are have something to do. None
    of them holds up the end of the process."""

    def __init__(self) -> None:
        self._some = threading.Condition()
        self._ready: deque[tuple[PendingWork, Any]] = deque()
        self._idle = 0

    def take(self, pending: PendingWork, future: Any) -> None:
        """Complete the future of an operation that has ended. Does not block."""
        with self._some:
            self._ready.append((pending, future))
            if len(self._ready) <= self._idle:
                self._some.notify()
            else:
                threading.Thread(target=self._serve, name="hal completes", daemon=True).start()

    def _serve(self) -> None:
        for pending, future in iter(self._next, None):
            try:
                pending.settle()
            except Exception as error:  # noqa: BLE001 - whoever waits for the future raises it
                future.set_exception(error)
            else:
                future.set_result(pending.tensors())

    def _next(self) -> tuple[PendingWork, Any] | None:
        with self._some:
            self._idle += 1
            self._some.wait_for(lambda: bool(self._ready), _IDLE_S)
            self._idle -= 1
            return self._ready.popleft() if self._ready else None


FUTURES = Futures()
