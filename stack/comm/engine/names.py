"""What ranks call their calls, as the number that travels with a call."""

from __future__ import annotations

import hashlib
import zlib

_NAMES = {0: ""}
"""Those of this process. Ranks run one program, so what one of them says is known to the others."""


def learn(name: str) -> int:
    """The number of a name, of 62 bits, equal in every process and 0 for the empty one. From now on
    this process has the words for it when another rank says it."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    number = int.from_bytes(digest) >> 2 | 1 if name else 0
    _NAMES[number] = name
    return number


def tag_of(name: str) -> int:
    """The same for messages, whose tags have 31 bits."""
    number = zlib.crc32(name.encode()) >> 1 if name else 0
    _NAMES[number] = name
    return number


def is_known(number: int) -> bool:
    """Whether this process has the words."""
    return number in _NAMES


def name_of(number: int) -> str:
    """The name in words, or that this process has never used it; "" for 0."""
    return _NAMES.get(number, f"something that this process does not know ({number:#x})")
