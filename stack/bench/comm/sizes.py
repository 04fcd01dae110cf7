"""Sizes in bytes as texts: "64M", "8:64M"."""

from __future__ import annotations

import re

from hal.core.errors import InvalidCall

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d{1,12})([KMG]?)")
STEP = 4


def sizes_in(text: str) -> tuple[int, ...]:
    """ "8:64M" are 8, 32 and so on up to 64 MiB, which is always the last; "1M,3M" are these.

    Raises InvalidCall for another text, and for sizes that are not from 4 bytes on.
    """
    first, colon, last = text.partition(":")
    if not colon:
        return tuple(_size(part, text) for part in text.split(","))
    found, end = [_size(first, text)], _size(last, text)
    while found[-1] * STEP < end:
        found.append(found[-1] * STEP)
    return tuple(found) if found[-1] >= end else (*found, end)


def _size(part: str, text: str) -> int:
    match = _SIZE.fullmatch(part.strip())
    nbytes = int(match[1]) * _UNITS[match[2]] if match else 0
    if nbytes < 4:
        raise InvalidCall(
            f"--sizes is FIRST:LAST or a list, in bytes with K, M or G, from 4 on; got {text!r}"
        )
    return nbytes


def size_text(nbytes: int) -> str:
    """1 << 20 as "1M"; what is no whole number of a unit in the next smaller one."""
    for unit, factor in reversed(_UNITS.items()):
        if nbytes >= factor and nbytes % factor == 0:
            return f"{nbytes // factor}{unit}"
    return str(nbytes)
