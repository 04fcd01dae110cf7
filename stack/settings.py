"""Settings of the process that are others while somebody holds them so, in any thread."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Undo = Callable[[], None]

TURN_S = 0.0002
"""How long a thread runs Python before another one that waits gets its turn, in `short_turns`."""


class Setting:
    """A setting of the process, changed for the first holder of several and changed back after the
    last one.

    `change` makes the change and gives what undoes it, or None where there is nothing to change.
    """

    def __init__(self, change: Callable[[], Undo | None]) -> None:
        self._change = change
        self._undo: Undo | None = None
        self._lock = threading.RLock()
        self._holders: set[object] = set()
        os.register_at_fork(after_in_child=self._leave_parents)

    @contextmanager
    def held(self) -> Iterator[None]:
        """In it the setting is held."""
        holder = object()
        try:
            with self._lock:
                if not self._holders:
                    self._undo = self._change()
                if self._undo is not None:
                    self._holders.add(holder)
            yield
        finally:
            with self._lock:
                if holder in self._holders:
                    self._holders.remove(holder)
                    self._end()

    def _end(self) -> None:
        if not self._holders and self._undo is not None:
            self._undo()
            self._undo = None

    def _leave_parents(self) -> None:
        """Threads of the parent, which end nothing here, may hold it."""
        self._lock = threading.RLock()
        self._holders.clear()
        self._end()


def _shorten() -> Undo | None:
    before = sys.getswitchinterval()
    if before <= TURN_S:
        return None
    sys.setswitchinterval(TURN_S)
    return lambda: sys.setswitchinterval(before)


short_turns = Setting(_shorten).held
"""In it threads take turns often: one that compiles asks for Python some 60 times for each kernel,
and each time would wait for 5 ms while another thread writes the next kernels."""
