"""Slabs: memory of the host as a device's memory, its own, the caller's, or shared by name."""

from __future__ import annotations

import mmap
import os

import numpy as np
from numpy.typing import NDArray

from hal.core.errors import InvalidCall, Unsupported
from hal.core.facts import dataclass
from hal.core.values import AllocOptions, SharedHandle

MEMFD = "memfd"


@dataclass(eq=False, slots=True)
class Slab:
    """Bytes; `fd` names them to other processes (-1: not shared). `own` bytes are nobody else's."""

    array: NDArray[np.uint8]
    fd: int = -1
    own: bool = True

    def view(self) -> memoryview:
        return self.array.data

    def release(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(frozen=True, slots=True)
class Slabs:
    """Makes the slabs of the plugin `name`, aligned to `granularity` bytes."""

    name: str
    granularity: int

    def allocated(self, nbytes: int, options: AllocOptions) -> Slab:
        """New memory. Raises MemoryError."""
        if options.shareable:
            fd = os.memfd_create(f"hal-{self.name}", os.MFD_CLOEXEC)
            os.ftruncate(fd, max(nbytes, 1))
            return Slab(_mapped(fd, nbytes), fd, own=False)
        make = np.zeros if options.zero else np.empty
        raw = make(nbytes + self.granularity, np.uint8)
        start = -raw.ctypes.data % self.granularity
        return Slab(raw[start : start + nbytes])

    def adopted(self, memory: memoryview) -> Slab:
        """The host's memory."""
        flat = memory.cast("B") if memory.nbytes else bytearray()
        return Slab(np.frombuffer(flat, np.uint8), own=False)

    def handle(self, slab: Slab, nbytes: int) -> SharedHandle:
        """How another process names the slab."""
        return SharedHandle(MEMFD, (os.getpid(), slab.fd), nbytes)

    def attached(self, shared: SharedHandle) -> Slab:
        """The slab that another process named. Raises Unsupported, InvalidCall."""
        if shared.kind != MEMFD:
            text = f"import_buffer: kind {shared.kind!r}; this device imports {MEMFD!r}"
            raise Unsupported(text)
        if len(shared.token) != 2:
            raise InvalidCall(f"import_buffer: {shared} is no handle of {MEMFD!r}")
        pid, number = shared.token
        path = f"/proc/{pid}/fd/{number}"
        try:
            if not os.readlink(path).startswith(f"/memfd:hal-{self.name}"):
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


def _mapped(fd: int, nbytes: int) -> NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(fd, max(nbytes, 1)), np.uint8)[:nbytes]
