"""Slabs of memory: aligned arrays of bytes, the host's own memory, or memory shared by name."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hal.core.errors import InvalidCall, Unsupported
from hal.core.values import SharedHandle
from hal.reference.describe import GRANULARITY

MEMFD = "memfd"
_LINK = "/memfd:hal-reference"
_POISON = 0xA5
_POISONED_NBYTES = 1 << 20


@dataclass(eq=False, slots=True)
class Slab:
    """Bytes; `fd` names them to other processes (-1: not shared). `own` bytes are spoiled when
    they are given back, so that a use after that shows."""

    array: NDArray[np.uint8]
    fd: int = -1
    own: bool = True

    def view(self) -> memoryview:
        return self.array.data

    def release(self) -> None:
        if self.own:
            _spoil(self.array)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def allocated(nbytes: int, zero: bool, shareable: bool) -> Slab:
    """New memory, spoiled unless it is to be zero."""
    slab = _shared(nbytes) if shareable else _private(nbytes)
    if zero:
        slab.array[:] = 0
    else:
        _spoil(slab.array)
    return slab


def adopted(memory: memoryview) -> Slab:
    """The host's memory."""
    flat = memory.cast("B") if memory.nbytes else bytearray()
    return Slab(np.frombuffer(flat, np.uint8), own=False)


def shared_handle(slab: Slab, nbytes: int) -> SharedHandle:
    """How another process names the slab."""
    return SharedHandle(MEMFD, (os.getpid(), slab.fd), nbytes)


def attached(shared: SharedHandle) -> Slab:
    """The slab that another process named."""
    if shared.kind != MEMFD:
        raise Unsupported(f"import_buffer: kind {shared.kind!r}; this device imports {MEMFD!r}")
    pid, number = shared.token
    path = f"/proc/{pid}/fd/{number}"
    try:
        if not os.readlink(path).startswith(_LINK):
            raise InvalidCall(f"import_buffer: {path} is no exported buffer any more")
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidCall(f"import_buffer: {path} cannot be opened: {error}") from error
    try:
        return Slab(_mapped(fd, shared.nbytes), own=False)
    except ValueError as error:
        raise InvalidCall(f"import_buffer: {path} is too small: {error}") from error
    finally:
        os.close(fd)


def _private(nbytes: int) -> Slab:
    raw = np.empty(nbytes + GRANULARITY, np.uint8)
    start = -raw.ctypes.data % GRANULARITY
    return Slab(raw[start : start + nbytes])


def _shared(nbytes: int) -> Slab:
    fd = os.memfd_create("hal-reference", os.MFD_CLOEXEC)
    os.ftruncate(fd, max(nbytes, 1))
    return Slab(_mapped(fd, nbytes), fd, own=False)


def _mapped(fd: int, nbytes: int) -> NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(fd, max(nbytes, 1)), np.uint8)[:nbytes]


def _spoil(array: NDArray[np.uint8]) -> None:
    array[:_POISONED_NBYTES] = _POISON
