"""An operation of a process group that has begun."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hal.core.errors import HalError
from stack.bridge.torch.errors import torch_errors
from stack.bridge.torch.futures import FUTURES
from stack.comm.engine.base import Work


class Begun(dist.Work):
    """Calls that the group's thread runs; `after` is done once they are, by whoever waits first.

    `result` is what torch calls the operation's: a list of tensors, or a list of such lists.
    `timeout_s` is how long a `wait` without a time of its own takes, None for the group's deadline.
    A call cannot be given up alone: it goes on after a wait whose time is over.
    """

    def __init__(
        self,
        calls: Sequence[Work],
        result: Sequence[Any],
        after: Callable[[], None] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__()
        self._calls = calls
        self._first = calls[0]
        self._result = result
        self._after = after
        self._timeout_s = timeout_s
        self.behind: tuple[Begun, ...] = ()
        """Operations that are complete with this one, and are settled with it."""
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until done. Raises torch's DistBackendError with what ended the group."""
        return self._settle(timeout.total_seconds() or self._timeout_s)

    def _settle(self, timeout_s: float | None) -> bool:
        with self._lock:
            try:
                with torch_errors():
                    for call in self._calls:
                        call.wait(timeout_s)
            except RuntimeError as error:  # of which torch's own errors are
                self._error = error
                raise
            self._calls = ()
            after, self._after = self._after, None
            behind, self.behind = self.behind, ()
            if after is not None:
                after()
            for begun in behind:
                begun.settle()
        return True

    def settle(self) -> None:
        """Finish what is complete. Raises as `wait`."""
        self._settle(None)  # the group's deadline ends it

    synchronize = settle

    def wait_a_moment(self, seconds: float) -> None:
        """Wait for the first call that is not done, not longer than that."""
        waiting = next((call for call in self._calls if not call.done), None)
        if waiting is not None:
            with suppress(HalError):  # `settle` raises it
                waiting.wait(seconds)

    @property
    def over(self) -> bool:
        """Whether all calls have ended, well or not."""
        return all(call.done for call in self._calls)

    def is_completed(self) -> bool:
        """Whether it has ended; what it gives is in its place then."""
        if self.over:
            with suppress(RuntimeError):  # `wait` raises it
                self.settle()
        return self.over

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def source_rank(self) -> int:
        """The rank that sent what was received. Raises RuntimeError before it is known."""
        if self._first.peer < 0:
            raise RuntimeError("backend hal: only a receive that is done has a source")
        return self._first.peer

    _source_rank = source_rank

    def tensors(self) -> list[Any]:
        """What the calls give."""
        return list(self._result)

    result = tensors

    def get_future(self) -> Any:
        """A future that is done when the calls are; nobody waits here."""
        return FUTURES.of(self)
