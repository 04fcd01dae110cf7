"""Memory that direct I/O takes."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Array = NDArray[Any]


def aligned(nbytes: int) -> Bytes:
    """New zeros, at least so many bytes, rounded up to pages, that begin at a page."""
    size = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages gives usual ones
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def copy_past_cache(out: Bytes, source: Bytes) -> None:
    """Copy bytes that are not read again soon as fast as memory takes them: the cache would first
    fetch what is then written over."""
    from stack.comm.engine.library import ffi, lib  # noqa: PLC0415  (loaded by who saves)

    to, at = (
        ffi.from_buffer("unsigned char[]", out, True),
        ffi.from_buffer("unsigned char[]", source),
    )
    lib.he_stream(to, at, len(source))


class Scratch:
    """Aligned memory that stays from one use to the next: touching a page for the first time costs
    as much as writing it to a disk does."""

    def __init__(self) -> None:
        self._kept: dict[str, Bytes] = {}

    def memory(self, use: str, nbytes: int) -> Bytes:
        """So many bytes for a use, with anything in them. They are this use's until the next call
        for it."""
        kept = self._kept.get(use)
        if kept is None or not nbytes <= len(kept) <= 2 * max(nbytes, mmap.PAGESIZE):
            del kept
            self._kept.pop(use, None)  # first, so that there are not two
            self._kept[use] = aligned(nbytes)
        return self._kept[use][:nbytes]


def padded(data: bytes) -> Bytes:
    """Bytes in aligned memory, with zeros behind them."""
    out = aligned(len(data))
    out[: len(data)] = np.frombuffer(data, np.uint8)
    return out


def together(wanted: Iterable[tuple[tuple[int, ...], np.dtype[Any]]]) -> list[Array]:
    """New arrays of these shapes and element types in one piece of memory."""
    wanted, offsets, end = list(wanted), [], 0
    for shape, dtype in wanted:
        offsets.append(end)
        end += -(-int(np.prod(shape, dtype=np.int64)) * dtype.itemsize // 64) * 64
    memory = aligned(end)
    return [
        np.ndarray(shape, dtype, memory, offset)
        for (shape, dtype), offset in zip(wanted, offsets, strict=True)
    ]
