"""Arrays of the host as the pointers that the native engine takes."""

from __future__ import annotations

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


def _bytes_of(array: Array, what: str) -> Array:
    """The array's bytes, for an element type that is no buffer for Python."""
    if not array.flags.c_contiguous:
        raise InvalidCall(f"the {what} is not C-contiguous; give a copy")
    if what == "destination" and not array.flags.writeable:
        raise InvalidCall("the destination cannot be written")
    return array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
