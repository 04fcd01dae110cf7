"""The line between a rank and the agent of its host: words as JSON, and descriptors of files."""

from __future__ import annotations

import array
import json
import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Any

from hal.core.errors import DeadlineExceeded, HalError

LONGEST_NBYTES = 1 << 16
"""Of a message."""
MOST_DESCRIPTORS = 64
"""With a message."""
_RIGHTS_NBYTES = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)

Saying = tuple[dict[str, Any], list[int]]


class LineEnded(HalError):
    """The process at the other end of a line is gone."""


class AgentLine:
    """One end. Messages come whole and in order; descriptors that came are the caller's."""

    def __init__(self, end: socket.socket) -> None:
        """Takes the socket over."""
        self._end = end
        self._end.setblocking(False)

    @classmethod
    def pair(cls) -> tuple[AgentLine, socket.socket]:
        """One end, and the other one for another process."""
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(own), other

    @classmethod
    def inherited(cls, descriptor: int) -> AgentLine:
        """The end that this process was started with. Its own children do not get it."""
        os.set_inheritable(descriptor, False)
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        return self._end.fileno()

    def say(
        self, words: dict[str, Any], descriptors: Sequence[int] = (), deadline_s: float = 0.0
    ) -> bool:
        """Say it; whether it was taken within that time. Raises LineEnded."""
        data = json.dumps(words).encode()
        assert len(data) <= LONGEST_NBYTES, words
        assert len(descriptors) <= MOST_DESCRIPTORS, words
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        until_s = time.monotonic() + deadline_s
        while True:
            try:
                self._end.sendmsg([data], rights if descriptors else [])
            except BlockingIOError:
                left_s = until_s - time.monotonic()
                if left_s <= 0 or not select.select([], [self._end], [], left_s)[1]:
                    return False
            except OSError as error:
                raise LineEnded(f"the line to the agent of this host has ended: {error}") from error
            else:
                return True

    def hear(self) -> Saying | None:
        """The next saying; None while there is none. Raises LineEnded."""
        try:
            data, rights, _, _ = self._end.recvmsg(LONGEST_NBYTES, _RIGHTS_NBYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise LineEnded(f"the line has ended: {error}") from error
        if not data:
            raise LineEnded("the line has ended: the process at its other end is gone")
        found = array.array("i")
        for level, kind, bytes_ in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found.frombytes(bytes_[: len(bytes_) - len(bytes_) % found.itemsize])
        return json.loads(data), list(found)

    def heard(self, deadline_s: float) -> Saying | None:
        """The next saying within that time, else None. Raises LineEnded."""
        if (said := self.hear()) is None and deadline_s > 0:
            select.select([self._end], [], [], deadline_s)
            said = self.hear()
        return said

    def wait(self, deadline_s: float, what: str) -> Saying:
        """The next saying. Raises DeadlineExceeded that says `what` in time, LineEnded."""
        if (said := self.heard(deadline_s)) is None:
            raise DeadlineExceeded(f"{what} within {deadline_s:g} s")
        return said

    def close(self) -> None:
        self._end.close()
