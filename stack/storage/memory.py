"""Memory that direct I/O takes and that is fast to touch for the first time."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Array = NDArray[Any]


def aligned(nbytes: int) -> Bytes:
    """New zeros, at least so many bytes, rounded up to pages, that begin at a page. In large pages
    where the system has them: touching 128 MiB of small ones took six times as long."""
    size = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


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
