"""The books of a pool: slabs cut into blocks, best fit, neighbours joined when freed. Pure: it
calls no device.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator
from typing import Generic, TypeVar

from hal.core.values import Region

S = TypeVar("S")

ASIDE_NBYTES = 1 << 16
"""Blocks of so many bytes and less may be set aside when they come back."""

ASIDE = 64
"""How many blocks of one size are set aside at most: a step gives back its gradients together."""


class SlabBlock(Generic[S]):
    """Bytes [offset, offset + nbytes) of a slab; `label` names the owner while it is in use.

    A block that is set `aside` is neither in use nor free: it waits for the next request of its
    size. `region` is what its owner had of it last: the next one most often has the same.
    """

    __slots__ = (
        *("after", "aside", "before", "free", "label", "nbytes", "offset", "region", "serial"),
        "slab",
    )

    def __init__(self, slab: S, offset: int, nbytes: int, serial: int) -> None:
        self.slab = slab
        self.offset = offset
        self.nbytes = nbytes
        self.serial = serial
        self.label = ""
        self.free, self.aside = True, False
        self.before: SlabBlock[S] | None = None
        self.after: SlabBlock[S] | None = None
        self.region: Region | None = None


class Slabs(Generic[S]):
    """Slabs of one size class. Sizes are multiples of `alignment`; the caller rounds them.

    A few small blocks of each size are set aside as they come back, neither joined nor searched
    for: a program that asks for the same again and again gets them at once.
    """

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self._free: list[tuple[int, int, SlabBlock[S]]] = []  # by size, then age
        self._first: dict[int, SlabBlock[S]] = {}  # the first block of each slab, by its serial
        self._aside: defaultdict[int, list[SlabBlock[S]]] = defaultdict(list)
        self._serial = 0

    def add(self, slab: S, nbytes: int) -> None:
        """Add a slab as one free block."""
        block = self._block(slab, 0, nbytes)
        self._first[block.serial] = block
        self._put(block)

    def take(self, nbytes: int, label: str) -> SlabBlock[S] | None:
        """A block of `nbytes` that was set aside, or else the smallest free block that holds as
        many, cut to that size; None if there is none."""
        if self._aside.get(nbytes):
            block = self._aside[nbytes].pop()
            block.aside, block.label = False, label
            return block
        at = bisect_left(self._free, (nbytes,))
        if at == len(self._free) and self._aside:
            self._join_aside()
            at = bisect_left(self._free, (nbytes,))
        if at == len(self._free):
            return None
        block = self._free.pop(at)[2]
        if block.nbytes > nbytes:
            rest = self._block(block.slab, block.offset + nbytes, block.nbytes - nbytes)
            rest.before, rest.after = block, block.after
            if block.after is not None:
                block.after.before = rest
            block.after, block.nbytes = rest, nbytes
            self._put(rest)
        block.free, block.label = False, label
        return block

    def give(self, block: SlabBlock[S]) -> None:
        """Take a block back: set it aside, or join it with its free neighbours."""
        assert not block.free, "a block that is free is given back"
        assert not block.aside, "a block that was set aside is given back"
        if block.nbytes <= ASIDE_NBYTES and len(self._aside[block.nbytes]) < ASIDE:
            block.aside = True
            self._aside[block.nbytes].append(block)
        else:
            self._free_joined(block)

    def _join_aside(self) -> None:
        for blocks in self._aside.values():
            for block in blocks:
                block.aside = False
                self._free_joined(block)
        self._aside.clear()

    def _free_joined(self, block: SlabBlock[S]) -> None:
        if block.after is not None and block.after.free:
            self._join(block, self._pop(block.after))
        if block.before is not None and block.before.free:
            before = self._pop(block.before)
            self._join(before, block)
            block = before
        self._put(block)

    def drop_unused(self) -> list[S]:
        """Remove every slab that is one free block; give the slabs."""
        self._join_aside()
        unused = [b for b in self._first.values() if b.free and b.after is None]
        for block in unused:
            self._pop(block)
            del self._first[block.serial]
        return [block.slab for block in unused]

    def used(self) -> Iterator[SlabBlock[S]]:
        """Every block that is in use."""
        for block in self.blocks():
            if not (block.free or block.aside):
                yield block

    def blocks(self) -> Iterator[SlabBlock[S]]:
        """Every block, slab by slab, by offset."""
        for first in self._first.values():
            block: SlabBlock[S] | None = first
            while block is not None:
                yield block
                block = block.after

    def _block(self, slab: S, offset: int, nbytes: int) -> SlabBlock[S]:
        self._serial += 1
        return SlabBlock(slab, offset, nbytes, self._serial)

    def _join(self, block: SlabBlock[S], after: SlabBlock[S]) -> None:
        block.nbytes += after.nbytes
        block.after = after.after
        if after.after is not None:
            after.after.before = block

    def _put(self, block: SlabBlock[S]) -> None:
        block.free, block.label = True, ""
        insort(self._free, (block.nbytes, block.serial, block))

    def _pop(self, block: SlabBlock[S]) -> SlabBlock[S]:
        del self._free[bisect_left(self._free, (block.nbytes, block.serial))]
        return block
