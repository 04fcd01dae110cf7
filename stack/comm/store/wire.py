"""What a store and its clients say to each other over a connection.

A message is its length (4 bytes), a code (1), a number (8), fields, each with its length (4), and a
tag (16, `hal.net.seal`); everything is big-endian. Before the first one comes the handshake of
`hal.net.handshake`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

from hal.core.errors import HalError
from hal.core.facts import dataclass
from hal.net.seal import TAG_NBYTES, Seals

VALUE_NBYTES = 1 << 20
"""The longest value."""
KEY_NBYTES = 1 << 10
"""The longest key, in UTF-8."""
KEYS = 1 << 10
"""The most keys that one call waits for."""
MESSAGE_NBYTES = VALUE_NBYTES * 2 + KEYS * (KEY_NBYTES + 4)
"""The longest message: a compare_set of two whole values, or a wait for many keys."""

LEASE_S = 15.0
"""A process that gives no sign of life for so long loses its leases, unless the server is told
another time."""

PLACE = b"hal-store/2"
"""What the handshake calls a job's store."""
COUNT = struct.Struct(">q")
"""A number as a field."""
GRANT = struct.Struct(">d")
"""What the server grants with a handshake: the time of its leases in seconds."""

_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">BQ")


class StoreError(HalError):
    """The store cannot serve this call: it is full, the token is wrong, a lease is taken or lost,
    or at its address is something else."""

    next_step = "start the job again, and look at what its launcher says"


class WireError(ValueError):
    """Bytes that are no message."""


class Code(IntEnum):
    """What a message is: a request, or an answer."""

    SET = 10
    GET = 11
    FIND = 12
    WAIT = 13
    ADD = 14
    COMPARE_SET = 15
    DELETE = 16
    LEASE = 17
    BEAT = 18
    WATCH = 19
    CLEAR = 20
    USAGE = 21
    DONE = 30
    INVALID = 31
    FAILED = 32
    CHANGED = 33
    CURRENT = 34


_CODES = frozenset(Code)


@dataclass(frozen=True, slots=True)
class Message:
    """`number` is that of the request that is made or answered."""

    code: Code
    number: int = 0
    fields: tuple[bytes, ...] = ()


def nbytes_of(message: Message) -> int:
    """How long a message is, behind its length."""
    fields = sum(_LENGTH.size + len(field) for field in message.fields)
    return _HEAD.size + fields + TAG_NBYTES


def pack(message: Message, seals: Seals) -> bytes:
    """The bytes of the next message of a connection, its length first."""
    parts = [_HEAD.pack(message.code, message.number)]
    for field in message.fields:
        parts += (_LENGTH.pack(len(field)), field)
    body = b"".join(parts)
    return b"".join((_LENGTH.pack(len(body) + TAG_NBYTES), body, seals.tag(body)))


def unpack(body: bytes) -> Message:
    """The message with these bytes, which lack the length. Raises WireError."""
    if len(body) < _HEAD.size:
        raise WireError(f"a message of {len(body)} bytes has no head")
    code, number = _HEAD.unpack_from(body)
    if code not in _CODES:
        raise WireError(f"there is no message with the code {code}")
    return Message(Code(code), number, tuple(_fields(body)))


def take(inbox: bytearray, limit: int, seals: Seals) -> Message | None:
    """Remove the first message from what has been received; None while it is not complete.

    Raises WireError for one that is longer than `limit`, or is not what the other end said next.
    """
    if len(inbox) < _LENGTH.size:
        return None
    (nbytes,) = _LENGTH.unpack_from(inbox)
    if nbytes > limit:
        raise WireError(f"a message of {nbytes} bytes is too long; {limit} are allowed")
    end = _LENGTH.size + nbytes
    if len(inbox) < end:
        return None
    body, tag = bytes(inbox[_LENGTH.size : end - TAG_NBYTES]), bytes(inbox[end - TAG_NBYTES : end])
    del inbox[:end]
    if nbytes < TAG_NBYTES or not seals.holds(tag, body):
        raise WireError("a message that was changed, repeated or lost on the way")
    return unpack(body)


def _fields(body: bytes) -> Iterator[bytes]:
    at = _HEAD.size
    while at < len(body):
        if at + _LENGTH.size > len(body):
            raise WireError("a message ends within the length of a field")
        (nbytes,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size + nbytes
        if at > len(body):
            raise WireError("a message ends within a field")
        yield body[at - nbytes : at]
