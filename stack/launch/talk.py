"""What a launcher and its agents say to each other over pipes: lines of JSON, some with bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

GREETING = b"hal-agent/1\n"
"""An agent's first line; a remote shell may have printed something before it."""
LINE_NBYTES = 16 << 20
"""The longest line: the orders for many ranks, with their environment."""
PIECE_NBYTES = 1 << 16
"""The most bytes that come with a line."""
_NBYTES = "nbytes"


class TalkError(ValueError):
    """Bytes that are nothing which the other side says."""


def said(words: dict[str, Any], data: bytes = b"") -> bytes:
    """A line, and its bytes behind it."""
    if data:
        words = {**words, _NBYTES: len(data)}
    return json.dumps(words).encode() + b"\n" + data


class Ear:
    """Takes bytes as they come and gives whole sayings. With `greeting` it first looks for that."""

    def __init__(self, greeting: bytes = b"") -> None:
        self._greeting = greeting
        self._inbox = bytearray()

    def hear(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """The sayings that are complete now: the words and the bytes. Raises TalkError."""
        self._inbox += data
        if self._greeting:
            before, found, _ = self._inbox.partition(self._greeting)
            if not found:
                if len(self._inbox) > PIECE_NBYTES:
                    raise TalkError(f"{bytes(self._inbox[:80])!r} does not lead to a greeting")
                return
            del self._inbox[: len(before) + len(found)]
            self._greeting = b""
        while (saying := self._take()) is not None:
            yield saying

    def _take(self) -> tuple[dict[str, Any], bytes] | None:
        end = self._inbox.find(b"\n")
        if end < 0:
            if len(self._inbox) > LINE_NBYTES:
                raise TalkError(f"a line of over {LINE_NBYTES} bytes")
            return None
        line = bytes(self._inbox[:end])
        try:
            words = json.loads(line)
        except ValueError as error:
            raise TalkError(f"{line[:80]!r} is no JSON") from error
        if not isinstance(words, dict):
            raise TalkError(f"{line[:80]!r} is no object")
        nbytes = words.get(_NBYTES, 0)
        if not isinstance(nbytes, int) or not 0 <= nbytes <= PIECE_NBYTES:
            raise TalkError(f"a line with {nbytes!r} bytes behind it")
        if len(self._inbox) < end + 1 + nbytes:
            return None
        data = bytes(self._inbox[end + 1 : end + 1 + nbytes])
        del self._inbox[: end + 1 + nbytes]
        return words, data
