"""A rank hears its agent also while it is in a call that waits for others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from hal.core.errors import DeadlineExceeded
from stack.comm.world import BEAT_S
from stack.launch.line import AgentLine, LineEnded, Saying


class Hearing:
    """Hears a line in a thread, which calls `at_once` with the words of each saying before `next`
    gives it; until `close`, or the line's end."""

    def __init__(self, line: AgentLine, at_once: Callable[[dict[str, Any]], None]) -> None:
        self._line = line
        self._at_once = at_once
        self._sayings: queue.SimpleQueue[Saying | LineEnded] = queue.SimpleQueue()
        self._is_closed = False
        threading.Thread(target=self._hear, name="hal-line", daemon=True).start()

    def next(self, deadline_s: float) -> Saying | None:
        """The next saying within that time, else None. Raises LineEnded."""
        try:
            said = self._sayings.get(deadline_s > 0, deadline_s)
        except queue.Empty:
            return None
        if isinstance(said, LineEnded):
            self._sayings.put(said)
            raise said
        return said

    def wait(self, deadline_s: float, what: str) -> Saying:
        """The next saying. Raises DeadlineExceeded that says `what` in time, LineEnded."""
        if (said := self.next(deadline_s)) is None:
            raise DeadlineExceeded(f"{what} within {deadline_s:g} s")
        return said

    def close(self) -> None:
        """Idempotent."""
        self._is_closed = True

    def _hear(self) -> None:
        try:
            while not self._is_closed:
                if (said := self._line.heard(BEAT_S)) is not None:
                    self._at_once(said[0])
                    self._sayings.put(said)
        except LineEnded as error:
            self._sayings.put(error)
