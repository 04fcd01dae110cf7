"""An operation of a process group that has begun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hal.core.errors import HalError
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

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until done. Raises torch's DistBackendError with what ended the group."""
        return self._settle(timeout.total_seconds() or None)

    def _settle(self, timeout_s: float | None) -> bool:
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

    def synchronize(self) -> None:
        self._settle(None)  # the group's deadline ends it

    def is_completed(self) -> bool:
        return all(call.done for call in self._calls)

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> HalError | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return list(self._result)

    def get_future(self) -> Any:
        """A future that is done: this waits first, since nobody would be told later."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        try:
            self._settle(None)
        except dist.DistBackendError as error:
            future.set_exception(error)
        else:
            future.set_result(list(self._result))
        return future
