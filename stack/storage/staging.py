"""How a rank's bytes lie in the arena into which a save copies them: in the order of the files.

A block of which this rank has every byte has a slot there, from which it is written as it lies. Of
other blocks, and of those that other ranks own, the pieces lie one after the other behind the
slots. What other ranks write of a replica is not copied, so that the arena is no larger than the
rank's state, but for less than a page a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hal.core.facts import dataclass
from stack.storage.boxes import ReadPieces
from stack.storage.layout import ALIGN, rounded
from stack.storage.memory import Bytes, copy_past_cache
from stack.storage.plan import Piece, TransferPlan, TransferWindow

Copy = tuple[int, int, int, int, int]
"""start, run, count, stride, local: `count` runs of `run` bytes that lie `stride` bytes apart from
byte `start` of the arena on; in the shard they lie one after the other from byte `local` on."""
LARGE = 256 << 10
"""Bytes of a run from which a copy goes past the cache: what is smaller may lie there already."""
ARENA = 0
"""The arena is the only source of a staged plan."""


@dataclass(frozen=True)
class SaveStaging:
    """What a save by `source` copies: `copies` of each shard to an arena of `nbytes`, from which
    `plan` takes all bytes. A shard without copies is none of this rank's business."""

    source: TransferPlan
    nbytes: int
    copies: list[list[Copy]]
    plan: TransferPlan

    def fill(self, arena: Bytes, shard: int, source: Bytes) -> None:
        """Copy what is taken of a shard, whose bytes are `source`."""
        for start, run, count, stride, local in self.copies[shard]:
            if count == 1 and run >= LARGE:
                copy_past_cache(arena[start : start + run], source[local : local + run])
                continue
            out = np.ndarray((count, run), np.uint8, arena, start, (stride, 1))
            out[...] = source[local : local + run * count].reshape(count, run)

    def fetch(self, arena: Bytes, shard: int, read: ReadPieces) -> None:
        """Copy what is taken of a shard whose bytes a function reads."""
        pieces, combs = [], []
        for start, run, count, stride, local in self.copies[shard]:
            out = np.ndarray((count, run), np.uint8, arena, start, (stride, 1))
            if out.flags.c_contiguous:
                pieces.append((local, out.reshape(-1)))
            else:
                pieces.append((local, np.empty(run * count, np.uint8)))
                combs.append((out, pieces[-1][1]))
        read(pieces)
        for out, data in combs:
            out[...] = data.reshape(out.shape)


def staging_of(plan: TransferPlan, shards: int) -> SaveStaging:
    """The arena of a plan by which this many shards are saved."""
    arena = _Arena([[] for _ in range(shards)])
    slots = [
        {
            block: arena.slot(pieces, plan.layout.nbytes(block))
            for block, pieces in window.own.items()
            if block not in window.home
        }
        for window in plan.windows
    ]
    windows = [
        replace(window, own=own | arena.rest(window, own), away=arena.behind(window.away))
        for window, own in zip(plan.windows, slots, strict=True)
    ]
    return SaveStaging(plan, arena.end, arena.copies, replace(plan, windows=windows))


@dataclass
class _Arena:
    copies: list[list[Copy]]
    end: int = 0

    def slot(self, pieces: list[Piece], nbytes: int) -> list[Piece]:
        """The place of a whole block, as the one piece that it then is."""
        for _, address, run, count, stride, shard, local in pieces:
            self.copies[shard].append((self.end + address, run, count, stride, local))
        size, at = rounded(nbytes), self.end
        self.end += size
        return [(pieces[0][0], 0, size, 1, size, ARENA, at)]

    def behind(self, pieces: list[Piece]) -> list[Piece]:
        """Pieces, one after the other."""
        made: list[Piece] = []
        for block, address, run, count, stride, shard, local, *offset in pieces:
            self.copies[shard].append((self.end, run * count, 1, run * count, local))
            made.append((block, address, run, count, stride, ARENA, self.end, *offset))
            self.end += run * count
        return made

    def rest(self, window: TransferWindow, slots: dict[int, list[Piece]]) -> dict[int, list[Piece]]:
        return {
            block: self.behind(pieces) for block, pieces in window.own.items() if block not in slots
        }


def as_it_lies(pieces: Sequence[Piece], nbytes: int, shards: Sequence[Bytes]) -> Bytes | None:
    """The memory of a block of `nbytes` bytes, up to a whole page, where it lies in one piece that
    direct I/O takes; None where it does not."""
    if len(pieces) != 1:
        return None
    _, address, run, count, _, shard, local = pieces[0]
    if address or count != 1 or run != rounded(nbytes):
        return None
    whole = shards[shard][local : local + run]
    return None if whole.ctypes.data % ALIGN else whole
