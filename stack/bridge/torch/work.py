"""An operation of a process group that has begun."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hal.core.errors import HalError
from stack.bridge.torch.futures import FUTURES
from stack.comm.engine.base import Work


class Begun(dist.Work):
    """Calls that the group's thread runs; `after` is done once they are, by whoever waits first.

    torch's own timeouts are deadlines of the group: a call cannot be given up alone.
    """

    def __init__(
        self,
        calls: Sequence[Work],
        result: Sequence[torch.Tensor],
        after: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._calls = calls
        self._result = result
        self._after = after
        self._error: HalError | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until done. Raises torch's DistBackendError with what ended the group."""
        return self._settle(timeout.total_seconds() or None)

    def _settle(self, timeout_s: float | None) -> bool:
        with self._lock:
            try:
                for call in self._calls:
                    call.wait(timeout_s)
            except HalError as error:
                self._error = error
                raise dist.DistBackendError(str(error)) from error
            self._calls = ()
            after, self._after = self._after, None
            if after is not None:
                after()
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

    def exception(self) -> HalError | None:
        return self._error

    def tensors(self) -> list[torch.Tensor]:
        """What the calls give."""
        return list(self._result)

    result = tensors

    def get_future(self) -> Any:
        """A future that is done when the calls are; nobody waits here."""
        return FUTURES.of(self)
