"""What machine code says of its kernels: the parameters, by the notes of its ELF file."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NOTE = struct.Struct("<BBH")
_SIZED, _PARAMETER = 4, 0x17
"""A note's form whose number is the length of what follows; the note of a parameter."""


def parameters(cubin: bytes, entry: str) -> tuple[int, ...] | None:
    """The sizes of a kernel's parameters in bytes, in order; None when it has no such kernel."""
    notes = dict(_sections(cubin)).get(f".nv.info.{entry}")
    if notes is None:
        return None
    found = dict(_parameters(notes))
    return tuple(found[ordinal] for ordinal in sorted(found))


def _sections(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """The sections of an ELF file of 64 bits, by name."""
    head = _HEADER.unpack_from(cubin)
    start, size, count, names_at = head[6], head[11], head[12], head[13]
    rows = [_SECTION.unpack_from(cubin, start + i * size) for i in range(count)]
    names = rows[names_at][4]
    for row in rows:
        begin = names + row[0]
        name = cubin[begin : cubin.index(b"\0", begin)].decode()
        yield name, cubin[row[4] : row[4] + row[5]]


def _parameters(notes: bytes) -> Iterator[tuple[int, int]]:
    """The number of each parameter, and its size."""
    at = 0
    while at + _NOTE.size <= len(notes):
        form, kind, size = _NOTE.unpack_from(notes, at)
        at += _NOTE.size
        if form != _SIZED:
            continue
        if kind == _PARAMETER:
            _, ordinal, _, facts = struct.unpack_from("<IHHI", notes, at)
            yield ordinal, facts >> 18
        at += size
