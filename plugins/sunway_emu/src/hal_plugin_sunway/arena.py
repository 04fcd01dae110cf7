"""A core group's main memory: one mapping that the emulator's process shares."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from dataclasses import dataclass

from hal.core.errors import PluginError

PAGE = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Slab:
    """Bytes [offset, offset + nbytes) of the main memory; `held` are taken for them."""

    offset: int
    nbytes: int
    held: int


class Arena:
    """`nbytes` of memory, first fit. What nobody holds is zero, and the host has it back."""

    def __init__(self, nbytes: int) -> None:
        """Raises PluginError when the host gives no descriptor or address space."""
        self.nbytes = -(-nbytes // PAGE) * PAGE
        self.fd = -1
        try:
            self.fd = os.memfd_create("hal-sunway", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, self.nbytes)
            self.memory = mmap.mmap(self.fd, self.nbytes)
        except OSError as error:
            if self.fd >= 0:
                os.close(self.fd)
            raise PluginError(
                f"the host gives no main memory of {self.nbytes} bytes: {error}; set memory_nbytes "
                "or HAL_SUNWAY_MEMORY to less, or raise `ulimit -v`, `-n` or `-f`"
            ) from error
        self._free = [(0, self.nbytes)]

    def take(self, nbytes: int) -> Slab:
        """New memory, all zero. Raises MemoryError when no hole is large enough."""
        held = max(-(-nbytes // PAGE), 1) * PAGE
        for index, (offset, room) in enumerate(self._free):
            if room >= held:
                rest = (offset + held, room - held)
                self._free[index : index + 1] = [rest] if room > held else []
                return Slab(offset, nbytes, held)
        raise MemoryError(f"no hole of {held} bytes in {self.nbytes}")

    def give(self, slab: Slab) -> None:
        """Give memory back."""
        self.memory.madvise(mmap.MADV_REMOVE, slab.offset, slab.held)
        self._free.append((slab.offset, slab.held))
        self._free.sort()
        merged: list[tuple[int, int]] = []
        for offset, room in self._free:
            if merged and sum(merged[-1]) == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((offset, room))
        self._free = merged

    def close(self) -> None:
        """Let go: the memory goes with the last view of it and the process that shares it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        with suppress(BufferError):  # somebody still has a view
            self.memory.close()
