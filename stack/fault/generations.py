"""Copies of a rank's state in memory of its own, which outlives it where another process has it
open: of the two newest the newer one is whole, or the older one is; one more is of the last step
after which all ranks compared what they held, and it was the same."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence

import numpy as np

from hal.core.errors import OutOfMemory
from hal.core.facts import dataclass
from stack.fault.state import Array
from stack.launch.keeping import HEADER, MAGIC, PAGE, Head, pages

_SPARE_NBYTES = 1 << 16
"""Plain values may grow by this much, and to twice what they were, before memory is made anew."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The whole state after `step` steps, with tensors of a `layout`, computed on a `kind` of
    device: what others compute may have other roundings."""

    step: int
    layout: int
    kind: int
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
        room = PAGE + pages(2 * plain_nbytes + _SPARE_NBYTES) + pages(tensor_nbytes)
        descriptor = os.memfd_create("hal-state")
        try:
            os.posix_fallocate(descriptor, 0, room)
        except OSError as error:
            os.close(descriptor)
            raise OutOfMemory(f"no memory for a copy of the state: {error}", room, 0) from error
        return cls(descriptor)

    def fits(self, plain_nbytes: int, tensor_nbytes: int) -> bool:
        return PAGE + pages(plain_nbytes) + pages(tensor_nbytes) <= self.nbytes

    def begin(self, layout: int, plain: bytes, tensor_nbytes: int, kind: int) -> Array:
        """Where the tensors of the next generation go. Until `end` there is none here."""
        self._say(Head(MAGIC, 0, 0, layout, len(plain), tensor_nbytes, kind=kind))
        self._bytes[PAGE : PAGE + len(plain)] = np.frombuffer(plain, np.uint8)
        return self._tensors(len(plain), tensor_nbytes)

    def end(self, step: int, epoch: int, agreed: bool = False) -> None:
        """All is there: it is the state after so many steps, of this epoch, and all ranks have
        `agreed` that they hold the same or not."""
        for whole in (0, 1):
            self._say(self._head._replace(whole=whole, step=step, epoch=epoch, agreed=agreed))

    def forget(self) -> None:
        """There is no generation here."""
        self.begin(0, b"", 0, 0)

    @property
    def order(self) -> tuple[int, int]:
        """The epoch and the step of the generation that is here; (-1, -1) without a whole one."""
        return self._head.order

    @property
    def step(self) -> int:
        """Of the generation that is here; -1 without a whole one."""
        return self.order[1]

    @property
    def is_agreed(self) -> bool:
        """Whether all ranks held the same as what is here, when they compared."""
        return self.step >= 0 and bool(self._head.agreed)

    def whole(self) -> Generation | None:
        """What is here, if it is whole; its tensors stay in this memory."""
        if self.step < 0:
            return None
        head = self._head
        plain = self._bytes[PAGE : PAGE + head.plain_nbytes].tobytes()
        tensors = self._tensors(head.plain_nbytes, head.tensor_nbytes)
        return Generation(head.step, head.layout, head.kind, plain, tensors)

    @property
    def _head(self) -> Head:
        return Head._make(HEADER.unpack_from(self._map))

    def _say(self, head: Head) -> None:
        HEADER.pack_into(self._map, 0, *head)

    def _tensors(self, plain_nbytes: int, nbytes: int) -> Array:
        start = PAGE + pages(plain_nbytes)
        return self._bytes[start : start + nbytes]


def last_of(held: Iterable[Sequence[Memory]]) -> tuple[int, int]:
    """The last epoch in which processes that hold so much were ranks, and the newest step that all
    of those have; before the first epoch the newest step. (-1, -1) where nothing is whole."""
    orders = [max((memory.order for memory in own), default=(-1, -1)) for own in held]
    last = max((epoch for epoch, _ in orders), default=-1)
    steps = [step for epoch, step in orders if epoch == last]
    return last, (min(steps) if last > 0 else max(steps, default=-1))


class Generations:
    """The two newest generations of a rank, and the agreed one. `descriptors` changes when memory
    is made anew. What is kept is of the epoch that was entered last."""

    def __init__(self) -> None:
        self._memories: list[Memory] = []
        self._epoch = 0
        self._next: Memory

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple(memory.descriptor for memory in self._memories)

    def adopt(self, held: Sequence[Sequence[Memory]]) -> bool:
        """Begin with what processes that have ended have left, `held` by each of them, where they
        were ranks after this one was; whether it is so. It becomes this process's own."""
        last = last_of(held)
        known = self.order if last[0] <= 0 else (self.order[0], last[1])
        if last > known:
            self._copy(next(m for own in held for m in own if m.order == last), last[0])
        return last > known

    def adopt_agreed(self, held: Iterable[Memory]) -> None:
        """Have the newest one on which ranks agreed that is among these, where there is none
        here."""
        found = [memory for memory in held if memory.is_agreed]
        if found and self.agreed() is None:
            newest = max(found, key=lambda memory: memory.order)
            if (own := self._at(newest.step)) is not None:
                own.end(own.step, own.order[0], agreed=True)
            else:
                self._copy(newest, newest.order[0], agreed=True)

    @property
    def order(self) -> tuple[int, int]:
        """Epoch and step of the newest whole one; (-1, -1) without one."""
        return max((memory.order for memory in self._memories), default=(-1, -1))

    @property
    def step(self) -> int:
        """Of the newest whole one; -1 without one."""
        return self.order[1]

    def newest(self) -> Generation | None:
        return self.at(self.step)

    def at(self, step: int) -> Generation | None:
        """The one after so many steps."""
        memory = self._at(step)
        return None if memory is None else memory.whole()

    def enter(self, epoch: int, step: int) -> None:
        """All ranks of this epoch begin with the generation after so many steps: what was done
        later is forgotten."""
        self._epoch = epoch
        for memory in self._memories:
            if memory.step > step:
                memory.forget()
            elif memory.step == step:
                memory.end(step, epoch, memory.is_agreed)

    def agree(self) -> None:
        """All ranks hold the newest one: it stays until the next one that they agree on."""
        newest = self._at(self.step)
        for memory in self._memories:
            if memory is newest or memory.is_agreed:
                memory.end(memory.step, memory.order[0], agreed=memory is newest)

    def agreed(self) -> Generation | None:
        """The one that all ranks held, if it is here."""
        return next((m.whole() for m in self._memories if m.is_agreed), None)

    def begin(self, layout: int, plain: bytes, tensor_nbytes: int, kind: int = 0) -> Array:
        """Where the tensors of the next generation go, in place of the oldest one."""
        free = [memory for memory in self._memories if not memory.is_agreed]
        if len(free) < 2:
            free.append(Memory.made(len(plain), tensor_nbytes))
            self._memories.append(free[-1])
        self._next = min(free, key=lambda memory: memory.order)
        if not self._next.fits(len(plain), tensor_nbytes):
            os.close(self._next.descriptor)
            made = Memory.made(len(plain), tensor_nbytes)
            self._memories[self._memories.index(self._next)] = self._next = made
        return self._next.begin(layout, plain, tensor_nbytes, kind)

    def end(self, step: int) -> None:
        """What was begun is whole, and the newest: later steps of a past that was given up are
        forgotten."""
        for memory in self._memories:
            if memory is not self._next and memory.step >= step:
                memory.forget()
        self._next.end(step, self._epoch)

    def _at(self, step: int) -> Memory | None:
        return next((m for m in self._memories if m.step == step >= 0), None)

    def _copy(self, memory: Memory, epoch: int, agreed: bool = False) -> None:
        found = memory.whole()
        assert found is not None, "only whole generations are copied"
        room = self.begin(found.layout, found.plain, found.tensors.size, found.kind)
        room[:] = found.tensors
        if not agreed:
            self.end(found.step)
        self._next.end(found.step, epoch, agreed)
