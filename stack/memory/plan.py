"""Static planning: blocks of known size and lifetime get offsets in one arena, or in memory that is
there for something else. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from hal.core.facts import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes [begin, end) of a block, in use at every step from `first` to `last`."""

    begin: int
    end: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Lifetime:
    """`nbytes` that are in use at every step from `first` to `last`, both included; where `parts`
    are given, which follow one another and make up all bytes, each of them for its own steps."""

    nbytes: int
    first: int
    last: int
    parts: tuple[Part, ...] = ()

    def pieces(self) -> tuple[Part, ...]:
        """Its parts; itself, where it has none."""
        return self.parts or (Part(0, self.nbytes, self.first, self.last),)


@dataclass(frozen=True, slots=True)
class Layout:
    """An offset for each block, the arena's size, and a lower bound of that for every layout;
    sizes are rounded up to the alignment in both. `rooms` tells in which room a block is (None: in
    the arena), if there are any.
    """

    offsets: tuple[int, ...]
    arena_nbytes: int
    live_nbytes: int
    rooms: tuple[int | None, ...] = ()

    def room(self, block: int) -> int | None:
        """The room that a block is in; None if it is in the arena."""
        return self.rooms[block] if self.rooms else None


def plan(
    blocks: Sequence[Lifetime],
    alignment: int,
    rooms: Sequence[Lifetime] = (),
    guests: Collection[int] = (),
) -> Layout:
    """A layout in which blocks that are in use at a common step do not overlap.

    Each of `rooms` is memory of its own that is there in any case, and in use as it says; at other
    steps blocks may lie in it that are among the `guests`. Every offset is a multiple of
    `alignment`. A block of 0 bytes gets offset 0. Deterministic.
    """
    sized = [_aligned(b, alignment) for b in blocks]
    inner = [replace(r, nbytes=r.nbytes // alignment * alignment) for r in rooms]
    live = max(live_nbytes([*sized, *rooms]) - sum(r.nbytes for r in rooms), 0)
    best: tuple[int, list[Spot]] | None = None
    for order in _orders(sized):
        found = _placed(sized, order, inner, guests, alignment, None if best is None else best[0])
        best = found or best
        if found is not None and found[0] == live:
            break
    assert best is not None, "there is at least one order"
    offsets = tuple(s.offset for s in best[1])
    return Layout(offsets, best[0], live, tuple(s.room for s in best[1]) if rooms else ())


def live_nbytes(blocks: Iterable[Lifetime]) -> int:
    """The largest sum of sizes of blocks that are in use at one step."""
    change: dict[int, int] = {}
    for b in blocks:
        for p in b.pieces():
            change[p.first] = change.get(p.first, 0) + p.end - p.begin
            change[p.last + 1] = change.get(p.last + 1, 0) - p.end + p.begin
    live = peak = 0
    for step in sorted(change):
        live += change[step]
        peak = max(peak, live)
    return peak


def _aligned(block: Lifetime, alignment: int) -> Lifetime:
    assert block.first <= block.last, f"a lifetime ends before it begins: {block}"
    nbytes = -(-block.nbytes // alignment) * alignment
    parts = block.parts and (*block.parts[:-1], replace(block.parts[-1], end=nbytes))
    return replace(block, nbytes=nbytes, parts=parts)


def _orders(blocks: Sequence[Lifetime]) -> Iterable[list[int]]:
    """Orders of placement, each the best for some programs; which, cannot be told before."""
    indices = range(len(blocks))
    yield sorted(indices, key=lambda i: (blocks[i].first, -blocks[i].last))
    yield sorted(indices, key=lambda i: (-blocks[i].nbytes, blocks[i].first))
    yield sorted(indices, key=lambda i: (blocks[i].first - blocks[i].last, -blocks[i].nbytes))
    areas = [b.nbytes * (b.last - b.first + 1) for b in blocks]
    yield sorted(indices, key=areas.__getitem__, reverse=True)
    yield sorted(indices, key=lambda i: (-blocks[i].last, blocks[i].first))
    # First the blocks of the step with the most in use, long-lived ones at the bottom.
    steps = sorted({b.first for b in blocks})
    spans = [(bisect_left(steps, b.first), bisect_right(steps, b.last)) for b in blocks]
    change = [0] * (len(steps) + 1)
    for b, (low, high) in zip(blocks, spans, strict=True):
        change[low] += b.nbytes
        change[high] -= b.nbytes
    pressure = list(accumulate(change))
    peak = [max(pressure[low:high], default=0) for low, high in spans]
    length = [b.last - b.first for b in blocks]
    yield sorted(range(len(blocks)), key=lambda i: (-peak[i], -length[i], -blocks[i].nbytes))


class Spot(NamedTuple):
    """Where a block begins: in a room, or in the arena."""

    room: int | None
    offset: int


class _Memory:
    """What has a place in the arena or in a room of so many bytes, each at whole granules."""

    def __init__(self, granule: int, nbytes: int | None = None) -> None:
        self.granule, self.nbytes = granule, nbytes
        self._placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), by offset

    def add(self, offset: int, block: Lifetime) -> None:
        step = self.granule
        for p in block.pieces():
            begin, end = p.begin // step * step, -(-p.end // step) * step
            insort(self._placed, (offset + begin, offset + end, p.first, p.last))

    def gap(self, b: Lifetime) -> tuple[int, int] | None:
        """(how many bytes it leaves, where it begins) of the smallest gap that fits a block, among
        what shares a step with it, or of the end of the arena (which leaves -1); None in a full
        room."""
        first, last, nbytes = b.first, b.last, b.nbytes
        top, best, slack = 0, -1, 0
        for offset, end, begin, until in self._placed:
            if begin > last or until < first:
                continue
            gap = offset - top
            if gap >= nbytes and (best < 0 or gap - nbytes < slack):
                best, slack = top, gap - nbytes
            if end > top:
                top = end
        if self.nbytes is not None and self.nbytes - top >= nbytes:
            rest = self.nbytes - top - nbytes
            if best < 0 or rest < slack:
                best, slack = top, rest
        if best >= 0:
            return slack, best
        return (-1, top) if self.nbytes is None else None


def _placed(
    blocks: Sequence[Lifetime],
    order: Sequence[int],
    rooms: Sequence[Lifetime],
    guests: Collection[int],
    granule: int,
    limit: int | None,
) -> tuple[int, list[Spot]] | None:
    """The arena's size, and each block in the smallest gap that fits it: of a room, if it may be
    there and one has any, else of the arena. Those with parts come first: what comes behind them
    lies where they are not in use. None where the arena would not be smaller than a limit."""
    arena, inner = _Memory(granule), [_Memory(granule, r.nbytes) for r in rooms]
    for memory, room in zip(inner, rooms, strict=True):
        memory.add(0, room)
    parted = _Memory(granule)
    spots = [Spot(None, 0)] * len(blocks)
    size = 0
    for i in sorted(order, key=lambda i: not blocks[i].parts):
        b = blocks[i]
        if b.nbytes == 0:
            continue
        found = [(gap, n) for n, m in enumerate(inner) if (gap := m.gap(b))] if i in guests else []
        if found:
            (_, offset), number = min(found)
            spots[i] = Spot(number, offset)
            inner[number].add(offset, b)
            continue
        # Those with parts keep clear of one another at all steps.
        end = (parted if b.parts else arena).gap(b)
        assert end is not None, "the arena has no end"
        size = max(size, end[1] + b.nbytes)
        if limit is not None and size >= limit:
            return None
        spots[i] = Spot(None, end[1])
        arena.add(end[1], b)
        if b.parts:
            parted.add(end[1], replace(b, parts=()))
    return size, spots
