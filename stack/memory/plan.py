"""Static planning: blocks of known size and lifetime get offsets in one arena. Pure."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lifetime:
    """`nbytes` that are in use at every step from `first` to `last`, both included."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Layout:
    """An offset for each block, the arena's size, and the largest sum of sizes in use at one step.

    `live_nbytes` is the lower bound of every layout; sizes are rounded up to the alignment in both.
    """

    offsets: tuple[int, ...]
    arena_nbytes: int
    live_nbytes: int


def plan(blocks: Sequence[Lifetime], alignment: int) -> Layout:
    """A layout in which blocks that are in use at a common step do not overlap.

    Every offset is a multiple of `alignment`. A block of 0 bytes gets offset 0. Deterministic.
    """
    sized = [_aligned(b, alignment) for b in blocks]
    live = live_nbytes(sized)
    best: tuple[int, list[int]] | None = None
    for order in _orders(sized):
        offsets = _placed(sized, order)
        arena = max((o + b.nbytes for o, b in zip(offsets, sized, strict=True)), default=0)
        if best is None or arena < best[0]:
            best = arena, offsets
        if arena == live:
            break
    assert best is not None, "there is at least one order"
    return Layout(tuple(best[1]), best[0], live)


def live_nbytes(blocks: Iterable[Lifetime]) -> int:
    """The largest sum of sizes of blocks that are in use at one step."""
    change: dict[int, int] = {}
    for b in blocks:
        change[b.first] = change.get(b.first, 0) + b.nbytes
        change[b.last + 1] = change.get(b.last + 1, 0) - b.nbytes
    live = peak = 0
    for step in sorted(change):
        live += change[step]
        peak = max(peak, live)
    return peak


def _aligned(block: Lifetime, alignment: int) -> Lifetime:
    assert block.first <= block.last, f"a lifetime ends before it begins: {block}"
    return Lifetime(-(-block.nbytes // alignment) * alignment, block.first, block.last)


def _orders(blocks: Sequence[Lifetime]) -> Iterable[list[int]]:
    """Orders of placement, each the best for some programs; which, cannot be told before."""
    indices = range(len(blocks))
    yield sorted(indices, key=lambda i: (blocks[i].first, -blocks[i].last))
    yield sorted(indices, key=lambda i: (-blocks[i].nbytes, blocks[i].first))
    yield sorted(indices, key=lambda i: (blocks[i].first - blocks[i].last, -blocks[i].nbytes))
    yield sorted(indices, key=lambda i: _area(blocks[i]), reverse=True)
    yield sorted(indices, key=lambda i: (-blocks[i].last, blocks[i].first))
    # First the blocks of the step with the most in use, long-lived ones at the bottom.
    steps = sorted({b.first for b in blocks})
    pressure = {s: sum(b.nbytes for b in blocks if b.first <= s <= b.last) for s in steps}
    peak = [max((pressure[s] for s in steps if b.first <= s <= b.last), default=0) for b in blocks]
    length = [b.last - b.first for b in blocks]
    yield sorted(range(len(blocks)), key=lambda i: (-peak[i], -length[i], -blocks[i].nbytes))


def _area(block: Lifetime) -> int:
    return block.nbytes * (block.last - block.first + 1)


def _placed(blocks: Sequence[Lifetime], order: Sequence[int]) -> list[int]:
    """Each block in the smallest gap that fits it, among the placed blocks that share a step with
    it.
    """
    offsets = [0] * len(blocks)
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), by offset
    for i in order:
        b = blocks[i]
        if b.nbytes == 0:
            continue
        first, last, nbytes = b.first, b.last, b.nbytes
        top, best, slack = 0, -1, 0
        for offset, end, begin, until in placed:
            if begin > last or until < first:
                continue
            gap = offset - top
            if gap >= nbytes and (best < 0 or gap - nbytes < slack):
                best, slack = top, gap - nbytes
            top = max(top, end)
        offsets[i] = top if best < 0 else best
        insort(placed, (offsets[i], offsets[i] + b.nbytes, b.first, b.last))
    return offsets
