"""Copies of a rank's state in memory of its own, which outlives it where another process has it
open: of the two newest the newer one is whole, or the older one is; one more is of the last step
after which all ranks held the same."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

import numpy as np

from hal.core.errors import OutOfMemory
from stack.fault.state import Array
from stack.launch.keeping import HEADER, MAGIC, PAGE

_SPARE_NBYTES = 1 << 16
"""Plain values may grow by this much, and to twice what they were, before memory is made anew."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The whole state after `step` steps, with tensors of a `layout`."""

    step: int
    layout: int
    plain: bytes
    tensors: Array


class Memory:
    """Room for one generation, at a descriptor that other processes can be given."""

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor over."""
        self.descriptor = descriptor
        self.nbytes = os.fstat(descriptor).st_size
        self._map = mmap.mmap(descriptor, self.nbytes)
        self._bytes = np.frombuffer(self._map, np.uint8)

    @classmethod
    def made(cls, plain_nbytes: int, tensor_nbytes: int) -> Memory:
        """Raises OutOfMemory."""
        room = PAGE + _pages(2 * plain_nbytes + _SPARE_NBYTES) + _pages(tensor_nbytes)
        descriptor = os.memfd_create("hal-state")
        try:
            os.posix_fallocate(descriptor, 0, room)
        except OSError as error:
            os.close(descriptor)
            raise OutOfMemory(f"no memory for a copy of the state: {error}", room, 0) from error
        return cls(descriptor)

    def fits(self, plain_nbytes: int, tensor_nbytes: int) -> bool:
        return PAGE + _pages(plain_nbytes) + _pages(tensor_nbytes) <= self.nbytes

    def begin(self, layout: int, plain: bytes, tensor_nbytes: int) -> Array:
        """Where the tensors of the next generation go. Until `end` there is none here."""
        self._put(0, 0, layout, len(plain), tensor_nbytes)
        self._bytes[PAGE : PAGE + len(plain)] = np.frombuffer(plain, np.uint8)
        return self._tensors(len(plain), tensor_nbytes)

    def end(self, step: int) -> None:
        """All is there: it is the state after so many steps."""
        _, _, _, *rest = HEADER.unpack_from(self._map)
        self._put(0, step, *rest)
        self._put(1, step, *rest)

    @property
    def step(self) -> int:
        """Of the generation that is here; -1 without a whole one."""
        magic, whole, step, *_ = HEADER.unpack_from(self._map)
        return step if (magic, whole) == (MAGIC, 1) else -1

    def whole(self) -> Generation | None:
        """What is here, if it is whole; its tensors stay in this memory."""
        if self.step < 0:
            return None
        _, _, step, layout, plain_nbytes, nbytes = HEADER.unpack_from(self._map)
        plain = self._bytes[PAGE : PAGE + plain_nbytes].tobytes()
        return Generation(step, layout, plain, self._tensors(plain_nbytes, nbytes))

    def _tensors(self, plain_nbytes: int, nbytes: int) -> Array:
        start = PAGE + _pages(plain_nbytes)
        return self._bytes[start : start + nbytes]

    def _put(self, whole: int, *rest: int) -> None:
        HEADER.pack_into(self._map, 0, MAGIC, whole, *rest)


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


class Generations:
    """The two newest generations of a rank, and the agreed one. `descriptors` changes when memory
    is made anew."""

    def __init__(self) -> None:
        self._memories: list[Memory] = []
        self._agreed: Memory | None = None
        self._next: Memory

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple(memory.descriptor for memory in self._memories)

    def adopt(self, memories: list[Memory]) -> None:
        """Begin with what others have left: of these the newest whole one is kept, as the newest
        one here, in memory of this process's own."""
        newest = max(memories, key=lambda memory: memory.step, default=None)
        found = None if newest is None else newest.whole()
        if found is not None and found.step > self.step:
            room = self.begin(found.layout, found.plain, found.tensors.size)
            room[:] = found.tensors
            self.end(found.step)

    @property
    def step(self) -> int:
        """Of the newest whole one; -1 without one."""
        return max((memory.step for memory in self._memories), default=-1)

    def newest(self) -> Generation | None:
        whole = [memory for memory in self._memories if memory.step >= 0]
        return max(whole, key=lambda memory: memory.step).whole() if whole else None

    def agree(self) -> None:
        """All ranks hold the newest one: it stays until the next one that they agree on."""
        self._agreed = max(self._memories, key=lambda memory: memory.step, default=None)

    def agreed(self) -> Generation | None:
        """The one that all ranks held, if it is still here."""
        return None if self._agreed is None else self._agreed.whole()

    def go_back(self) -> None:
        """Forget what is newer than the agreed one."""
        for memory in self._memories:
            if memory is not self._agreed:
                memory.begin(0, b"", 0)

    def begin(self, layout: int, plain: bytes, tensor_nbytes: int) -> Array:
        """Where the tensors of the next generation go, in place of the oldest one."""
        free = [memory for memory in self._memories if memory is not self._agreed]
        if len(free) < 2:
            free.append(Memory.made(len(plain), tensor_nbytes))
            self._memories.append(free[-1])
        self._next = min(free, key=lambda memory: memory.step)
        if not self._next.fits(len(plain), tensor_nbytes):
            os.close(self._next.descriptor)
            made = Memory.made(len(plain), tensor_nbytes)
            self._memories[self._memories.index(self._next)] = self._next = made
        return self._next.begin(layout, plain, tensor_nbytes)

    def end(self, step: int) -> None:
        """What was begun is whole, and the newest: later steps of a past that was given up are
        forgotten."""
        for memory in self._memories:
            if memory is not self._next and memory.step >= step:
                memory.begin(0, b"", 0)
        self._next.end(step)
