"""How fast one core authenticates what goes between hosts, against copying it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.row import Row
from stack.comm.engine import _native

GIB = 2**30
LONG, SHORT = 1 << 20, 128
_KEY, _NONCE = bytes(range(32)), bytes(12)


class _Piece(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("nbytes", ctypes.c_int64))


def rows(quick: bool) -> Iterator[Row]:
    """The rate of tags of long messages, which the network and two copies limit anyway."""
    rounds = 20 if quick else 200
    native = ctypes.CDLL(_native.__file__)
    width = ctypes.c_int.in_dll(native, "he_mac_width").value
    given, taken = np.ones(LONG, np.uint8), np.ones(LONG, np.uint8)
    tag = ctypes.create_string_buffer(16)

    def seconds(nbytes: int) -> float:
        piece = _Piece(given.ctypes.data, nbytes)
        start = perf_counter()
        native.he_mac(_KEY, _NONCE, ctypes.byref(piece), 1, tag)
        return perf_counter() - start

    def copy() -> float:
        start = perf_counter()
        taken[:] = given
        return perf_counter() - start

    turns = [(seconds(LONG), copy(), seconds(SHORT)) for _ in range(rounds)]
    long, copied, short = (median(turn[i] for turn in turns) for i in range(3))
    note = f"{width} blocks at a time"
    claim = "1 MiB authenticated by ChaCha20-Poly1305"
    yield Row(claim, "GiB/s", LONG / long / GIB, LONG / copied / GIB, "a copy", None, True, note)
    yield Row(f"{SHORT} bytes authenticated", "us", 1e6 * short, None, note="called from Python")
