"""CLBlast, through its C interface (Debian: libclblast1)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import opencl
from benchmarks.row import BenchmarkError

LIBRARY = "libclblast.so.1"
NAME = "CLBlast"
_ROW_MAJOR, _PLAIN = 101, 111


def library() -> ctypes.CDLL | None:
    """The library; None where it is not installed."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None


def product(found: ctypes.CDLL, queue: Any, n: int) -> Callable[[], None]:
    """A function that multiplies two n by n matrices of ones and waits. Its first call compiles.

    Raises BenchmarkError when the library refuses.
    """
    a, b, c = (opencl.buffer(queue, np.ones((n, n), np.float32)) for _ in range(3))
    size, none, one, zero = ctypes.c_size_t(n), ctypes.c_size_t(0), 1.0, 0.0
    handle = ctypes.c_void_p(queue.int_ptr)

    def operand(buffer: Any) -> tuple[ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]:
        return ctypes.c_void_p(buffer.int_ptr), none, size

    def run() -> None:
        status = found.CLBlastSgemm(
            *(_ROW_MAJOR, _PLAIN, _PLAIN, size, size, size, ctypes.c_float(one)),
            *(*operand(a), *operand(b), ctypes.c_float(zero), *operand(c)),
            *(ctypes.byref(handle), None),
        )
        if status:
            raise BenchmarkError(f"{NAME} refuses a product of size {n} with status {status}")
        queue.finish()

    run()
    return run
