"""What ranks call their calls, as the number that travels with a call."""

from __future__ import annotations

import hashlib

_NAMES: dict[int, str] = {}
"""Those of this process. Ranks run one program, so what one of them says is known to the others."""


def number_of(name: str) -> int:
    """The number of a name, equal in every process; 0 for the empty one."""
    if not name:
        return 0
    number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) | 1
    _NAMES[number] = name
    return number


def name_of(number: int) -> str:
    """The name in words, or that this process has never used it; "" for 0."""
    if not number:
        return ""
    return _NAMES.get(number, f"something that this process does not know ({number:#x})")
