"""The caching pool over a device's raw slabs.

Freed memory may be handed out again while operations that use it are still to run. That is safe
because everything that touches the pool's memory is submitted to one timeline, which runs it in
order: whatever the new owner submits comes after.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from operator import itemgetter

from hal.core.device import Device
from hal.core.errors import OutOfMemory
from hal.core.facts import dataclass
from hal.core.values import AllocOptions, Buffer, Region
from stack.memory.slabs import SlabBlock, Slabs

SMALL_NBYTES = 1 << 20
"""Blocks below this come from slabs of their own, so that they do not pin large ones."""

SLAB_NBYTES = 1 << 21
"""Slab sizes are multiples of this, the size of a huge page."""

LARGEST_GROWTH_NBYTES = 1 << 26
SHOWN_HOLDERS = 5

PoolBlock = SlabBlock[Buffer]
Source = Callable[[int, str], Buffer]
"""Gives a buffer of so many bytes, labelled."""


@dataclass(frozen=True, slots=True)
class PoolStats:
    """`reserved` bytes are raw slabs, `allocated` bytes of them are in use, `peak` is the most that
    were since the last `reset_peak`, `peak_reserved` the most raw slabs; `raw_allocations` counts
    the device's allocations, `cache_hits` the requests without one."""

    reserved_nbytes: int
    allocated_nbytes: int
    peak_nbytes: int
    raw_allocations: int
    cache_hits: int
    peak_reserved_nbytes: int


class Pool:
    """Memory of the device's first global space. May be used from any thread.

    `reclaim` is called once when the device is out of memory, before the second try; it should end
    the lives of arrays that nobody can reach and wait until the device is idle.
    """

    def __init__(self, device: Device, alignment: int, reclaim: Callable[[], None]) -> None:
        self.device = device
        self._reclaim = reclaim
        self._sources: list[tuple[int, Source]] = []
        self._lock = threading.Lock()
        self._small: Slabs[Buffer] = Slabs(alignment)
        self._large: Slabs[Buffer] = Slabs(alignment)
        # A finalizer may run inside any of our calls, so it only appends here; we drain at the next
        # call.
        self._returned: deque[PoolBlock] = deque()
        self._reserved = self._allocated = self._peak = self._peak_reserved = 0
        self._raw_allocations = self._requests = self._misses = 0
        self._again = 0
        """Requests that the recorder met itself, by what came back first."""

    def allocate(self, nbytes: int, label: str) -> PoolBlock:
        """A block of at least `nbytes` (at least one granule), aligned to the device's granularity.

        Raises OutOfMemory saying how much was asked for, what is free and who holds the rest.
        """
        wanted = self.rounded(nbytes)
        with self._lock:
            self._requests += 1
            block = self._drain(wanted)
            if block is None:
                block = self._taken(wanted, label)
            else:
                block.label = label
        if block is not None:
            return block
        size = SLAB_NBYTES
        if wanted >= SMALL_NBYTES:
            # An eighth of what there is keeps both the number of slabs and the unused rest small.
            growth = min(self._reserved // 8, LARGEST_GROWTH_NBYTES)
            size = -(-max(wanted, growth) // SLAB_NBYTES) * SLAB_NBYTES
        try:
            return self._grow(size, wanted, label)
        except OutOfMemory:
            self._reclaim()
        with self._lock:
            self._drain()
            block = self._taken(wanted, label)
        if block is not None:
            return block
        self.trim()
        try:  # a slab for this block alone, where a larger one failed
            return self._grow(wanted, wanted, label)
        except OutOfMemory as error:
            stats, held = self.stats(), self.holders()
            shown = [f"{size:,} {name}" for name, size in list(held.items())[:SHOWN_HOLDERS]]
            text = (
                f"{self.device.name} cannot give {nbytes:,} bytes for {label}: "
                f"{error.available:,} are free on the device, the pool uses "
                f"{stats.allocated_nbytes:,} of {stats.reserved_nbytes:,} bytes"
            )
            if shown:
                text += "; the largest holders: " + ", ".join(shown)
            raise OutOfMemory(text, nbytes, error.available, held) from error

    def rounded(self, nbytes: int) -> int:
        """The bytes of a block for so many."""
        step = self._small.alignment
        return max(-(-nbytes // step), 1) * step

    def draw_from(self, source: Source, processes: int) -> None:
        """Take the slabs to come from there: memory that so many processes map. Of several sources
        that of the most processes counts, of equal ones the first, whoever comes last; without one
        slabs are the device's. It raises OutOfMemory like the device."""
        self._sources.append((processes, source))

    def draw_no_more(self, source: Source) -> None:
        """Take slabs to come from there no more. What is drawn stays."""
        self._sources = [(n, other) for n, other in self._sources if other != source]

    def release(self, block: PoolBlock) -> None:
        """Give a block back. Never blocks, so it may be called from a finalizer."""
        self._returned.append(block)

    def region(self, block: PoolBlock, nbytes: int) -> Region:
        """The first `nbytes` of a block."""
        found = block.region
        if found is None or found.nbytes != nbytes:
            found = block.region = Region(block.slab, block.offset, nbytes)
        return found

    def trim(self) -> int:
        """Give every slab without a block in use back to the device; how many bytes that were."""
        with self._lock:
            self._drain()
            unused = self._small.drop_unused() + self._large.drop_unused()
            freed = sum(buffer.nbytes for buffer in unused)
            self._reserved -= freed
        for buffer in unused:
            self.device.free(buffer)
        return freed

    def stats(self) -> PoolStats:
        with self._lock:
            self._drain()
            hits = self._requests + self._again - self._misses
            return PoolStats(
                self._reserved,
                self._allocated,
                self._peak,
                self._raw_allocations,
                hits,
                self._peak_reserved,
            )

    def reset_peak(self) -> None:
        """Count the peaks from what is in use now."""
        with self._lock:
            self._drain()
            self._peak, self._peak_reserved = self._allocated, self._reserved

    def holders(self) -> Mapping[str, int]:
        """Bytes in use by label, most first."""
        with self._lock:
            self._drain()
            held: Counter[str] = Counter()
            for slabs in (self._small, self._large):
                for block in slabs.used():
                    held[block.label] += block.nbytes
        return dict(held.most_common())

    def _slabs(self, wanted: int) -> Slabs[Buffer]:
        return self._small if wanted < SMALL_NBYTES else self._large

    def _taken(self, wanted: int, label: str) -> PoolBlock | None:
        """A block that is free, counted as in use."""
        block = self._slabs(wanted).take(wanted, label)
        if block is not None:
            self._allocated += block.nbytes
            self._peak = max(self._peak, self._allocated)
        return block

    def _drain(self, wanted: int = 0) -> PoolBlock | None:
        """Take back what was released, but for one block of just the bytes that are wanted, if
        there is one: it stays in use, neither joined nor searched for, and its bytes may still be
        in caches."""
        kept: PoolBlock | None = None
        while True:
            try:
                block = self._returned.popleft()
            except IndexError:
                return kept
            if kept is None and block.nbytes == wanted:
                kept = block
                continue
            self._allocated -= block.nbytes
            # The size of a block is fixed while it is in use, so it still tells the class.
            self._slabs(block.nbytes).give(block)

    def _grow(self, size: int, wanted: int, label: str) -> PoolBlock:
        if self._sources:
            buffer = max(self._sources, key=itemgetter(0))[1](size, label)
        else:
            buffer = self.device.alloc(size, AllocOptions(label=label))
        with self._lock:
            self._reserved += size
            self._peak_reserved = max(self._peak_reserved, self._reserved)
            self._raw_allocations += 1
            self._misses += 1
            self._slabs(wanted).add(buffer, size)
            block = self._taken(wanted, label)
        assert block is not None, "the new slab holds what it was made for"
        return block
