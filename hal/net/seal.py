"""Tags by which both ends of a connection know that a message is the other one's, and the next."""

from __future__ import annotations

import hashlib
import hmac
import struct

Bytes = bytes | bytearray | memoryview
TAG_NBYTES = 16
_NUMBER = struct.Struct(">Q")


class Seals:
    """The tags of one connection: keyed BLAKE2b of a message, in however many parts, and its
    number.

    `key` is that of the handshake; `calling` is whether this end has called, so that the two
    directions differ. Nobody on the way can change, repeat, drop or reorder a message unnoticed.
    """

    def __init__(self, key: bytes, calling: bool) -> None:
        sides = (b"caller", b"listener") if calling else (b"listener", b"caller")
        self._ours, self._theirs = (hmac.digest(key, side, "sha256") for side in sides)
        self._sent = self._heard = 0

    def tag(self, *parts: Bytes) -> bytes:
        """The tag of the next message that this end sends."""
        self._sent += 1
        return _tag(self._ours, self._sent, parts)

    def holds(self, tag: Bytes, *parts: Bytes) -> bool:
        """Whether the other end has sent this as its next message."""
        self._heard += 1
        return hmac.compare_digest(tag, _tag(self._theirs, self._heard, parts))


def _tag(key: bytes, number: int, parts: tuple[Bytes, ...]) -> bytes:
    digest = hashlib.blake2b(_NUMBER.pack(number), digest_size=TAG_NBYTES, key=key)
    for part in parts:
        digest.update(part)
    return digest.digest()
