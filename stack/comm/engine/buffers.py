"""Arrays of the host as the pointers that the native engine takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.errors import InvalidCall
from stack.comm.engine.library import ffi

Array = NDArray[Any]
_from_buffer = ffi.from_buffer


def writable(array: Array) -> Any:
    """Where the array lies. Raises InvalidCall if it cannot be written or has gaps."""
    try:
        return _from_buffer("char[]", array, True)
    except (ValueError, BufferError, TypeError):
        return _from_buffer("char[]", _bytes_of(array, "destination"), True)


def readable(array: Array) -> Any:
    """Where the array lies. Raises InvalidCall if it has gaps."""
    try:
        return _from_buffer("char[]", array)
    except (ValueError, BufferError, TypeError):
        return _from_buffer("char[]", _bytes_of(array, "source"))


def native_counts(counts: Sequence[int] | None) -> Any:
    """Numbers for the engine; NULL for None."""
    return ffi.NULL if counts is None else _numbers(tuple(counts))


@lru_cache(maxsize=256)
def _numbers(counts: tuple[int, ...]) -> Any:
    return ffi.new("int64_t[]", counts)


def _bytes_of(array: Array, what: str) -> Array:
    """The array's bytes, for an element type that is no buffer for Python."""
    if not array.flags.c_contiguous:
        raise InvalidCall(f"the {what} is not C-contiguous; give a copy")
    if what == "destination" and not array.flags.writeable:
        raise InvalidCall("the destination cannot be written")
    return array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
