"""A key that lives as long as the process which set it."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from hal.core.errors import DeadlineExceeded, HalError
from stack.comm.store.link import Link
from stack.comm.store.wire import Code

_BEATS = 5
"""Signs of life in the time after which the server ends a silent lease."""
_END_S = 10.0


class Lease:
    """A key on a connection of its own, whose end deletes the key. A thread gives signs of life.

    A process that is stopped, or cut off, for longer than the server's lease time loses it.
    """

    def __init__(self, link: Link, name: str, key: bytes, value: bytes, until_s: float) -> None:
        self._link = link
        self._name = name
        self._lost = ""
        self._released = False
        try:
            link.ask(Code.LEASE, (key, value), until_s, f"{name!r} was not leased in time")
        except BaseException:
            link.close()
            raise
        self._thread = threading.Thread(target=self._beat, name="hal-lease", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    @property
    def lost(self) -> str:
        """Why the key is not this process's any more; "" while it is, as far as is known."""
        return self._lost

    def release(self) -> None:
        """Let the key go. Raises DeadlineExceeded when the thread does not end."""
        self._released = True
        self._link.interrupt()
        self._thread.join(_END_S)
        if self._thread.is_alive():
            raise DeadlineExceeded(f"the lease of {self._name!r} did not end within {_END_S} s")

    def wait_lost(self, deadline_s: float) -> str:
        """Wait until the key is lost, or until that time has passed; gives `lost`."""
        self._thread.join(deadline_s)
        return self._lost

    def _beat(self) -> None:
        """Give signs of life until the connection ends: the server sees both."""
        pause_s = self._link.lease_s / _BEATS
        try:
            while True:
                self._link.once(Code.BEAT, time.monotonic() + self._link.lease_s - pause_s)
                self._link.rest(pause_s)
        except (OSError, HalError, ValueError) as error:
            self._lost = "released" if self._released else str(error) or "the store is silent"
        finally:
            self._link.close()
