"""The changes of keys, as they happen."""

from __future__ import annotations

import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

from hal.core.errors import DeadlineExceeded
from hal.core.facts import dataclass
from stack.comm.store.link import Link
from stack.comm.store.wire import Code, Message, StoreError, WireError


@dataclass(frozen=True, slots=True)
class Change:
    """A key has another value now, or none (None); then `why` says how it ended: "deleted", or
    what happened to the process that held its lease."""

    key: str
    value: bytes | None
    why: str = ""


class Watch:
    """The changes of all keys with a prefix, in order, on a connection of its own.

    First come the keys that are there. When the connection breaks, it is made again and tells what
    differs from what was told before; changes in between that were undone are not told. One thread
    at a time calls `next`; any thread may close.
    """

    def __init__(self, link: Link, prefix: bytes, hidden: int, until_s: float) -> None:
        self._link = link
        self._prefix = prefix
        self._hidden = hidden
        self._known: dict[bytes, bytes] = {}
        self._changes: deque[Change] = deque()
        self._closed = False
        self._waiting = threading.Lock()
        self._begin(until_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it; a `next` that waits raises StoreError."""
        self._closed = True
        self._link.interrupt()
        with self._waiting:
            self._link.close()

    def next(self, deadline_s: float) -> Change:
        """The next change. Raises DeadlineExceeded when there is none within that time, StoreError
        when the watch is closed."""
        until_s = time.monotonic() + deadline_s
        while not self._changes:
            if self._closed:
                raise StoreError(f"the watch of {self._prefix.decode()!r} is closed")
            with self._waiting:
                try:
                    self._note(self._link.hear(until_s))
                except TimeoutError:
                    text = (
                        f"nothing under {self._prefix.decode()!r} changed within {deadline_s:g} s"
                    )
                    raise DeadlineExceeded(text) from None
                except (OSError, WireError):
                    self._link.close()
                    if not self._closed:
                        self._begin(until_s)
        return self._changes.popleft()

    def _begin(self, until_s: float) -> None:
        """Ask the server for the keys and all changes, and note what differs."""
        what = f"the watch of {self._prefix.decode()!r} did not begin"
        there = {}
        for message in self._link.stream(Code.WATCH, (self._prefix,), until_s, what):
            there[message.fields[0]] = message
        for key in sorted(self._known.keys() - there.keys()):
            self._note(Message(Code.CHANGED, 0, (key, b"", b"it went while the connection broke")))
        for key, message in there.items():
            if self._known.get(key) != message.fields[1]:
                self._note(message)

    def _note(self, message: Message) -> None:
        key, value, *why = message.fields
        name = key[self._hidden :].decode()
        if why:
            self._known.pop(key, None)
            self._changes.append(Change(name, None, why[0].decode()))
        else:
            self._known[key] = value
            self._changes.append(Change(name, value))
