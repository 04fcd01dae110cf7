"""Who owns which block, and what ranks send each other before a write or after a read: pure
functions of the parts that ranks have.

A rank's pieces are its parts cut at the boundaries of blocks. Each block has one owner, which alone
writes or reads it; pieces in blocks of others travel. Both ends of a transfer order the pieces
alike, so bytes alone travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.facts import dataclass
from stack.storage.boxes import Rows
from stack.storage.errors import StorageError
from stack.storage.layout import FileLayout

Ints = NDArray[np.int64]
"""Pieces are rows of these columns."""
BLOCK_, ADDRESS, RUN, COUNT, STRIDE, SHARD, LOCAL = range(7)
"""A piece lies in a block, from byte `address` of the block on, as `count` runs of `run` bytes that
begin `stride` bytes apart; in shard number `shard` they are the bytes from `local` on."""
TOLD = SHARD
"""How many columns an owner is told: those that say where a piece lies."""


def split(rows: Sequence[Rows], addresses: Sequence[int], size: int) -> Ints:
    """Cut the runs of shards, whose tensors begin at these addresses, into pieces of blocks of
    `size` bytes."""
    n_rows = [len(r) for r in rows]
    table = np.array([*chain.from_iterable(rows)], np.int64).reshape(-1, 5)
    shard = np.repeat(np.arange(len(rows)), n_rows)
    start = table[:, 0] + np.repeat(np.asarray(addresses, np.int64), n_rows)
    first = start // size
    extent = (table[:, 2] - 1) * table[:, 3] + table[:, 1]
    spans = (start + extent - 1) // size - first + 1
    index = np.repeat(np.arange(len(table)), spans)
    block = first[index] + np.arange(len(index)) - np.repeat(np.cumsum(spans) - spans, spans)
    _, run, count, stride, local = table[index].T
    start, shard = start[index], shard[index]
    low = block * size
    whole = np.clip(-((start - low) // stride), 0, count)  # the first run that begins in the block
    ends = np.clip((low + size - run - start) // stride + 1, 0, count)  # the first that ends after
    comb = (start + whole * stride - low, run, ends - whole, stride, local + whole * run)
    before = whole - 1
    head_end = np.minimum(start + before * stride + run, low + size) - low
    head_skip = low - (start + before * stride)
    head = (0 * low, np.where(whole > 0, head_end, 0), 1, size, local + before * run + head_skip)
    after = np.maximum(ends, whole)
    tail_at = start + after * stride - low
    tail_run = np.where(after < count, size - tail_at, 0)
    tail = (tail_at, tail_run, 1, size, local + after * run)
    kinds = [
        np.stack(np.broadcast_arrays(block, a, r, c, s, shard, at), 1)
        for a, r, c, s, at in (head, comb, tail)
    ]
    pieces = np.concatenate(kinds)
    return pieces[(pieces[:, RUN] > 0) & (pieces[:, COUNT] > 0)]


def nbytes_of(pieces: Ints) -> Ints:
    """Bytes of each piece."""
    return pieces[:, RUN] * pieces[:, COUNT]


def held(pieces: Ints, blocks: int) -> Ints:
    """How many bytes of each block these pieces are."""
    weights = nbytes_of(pieces)
    return np.bincount(pieces[:, BLOCK_], weights, blocks).astype(np.int64)


def owners(held_by: Ints, wanted: NDArray[np.bool_]) -> Ints:
    """The owner of each block, from what each rank has of each (rank, block): the one that has
    most, as far as all get equally many of the wanted blocks (or one less). Others have -1."""
    ranks, blocks = held_by.shape
    chosen = np.flatnonzero(wanted)
    owner = np.full(blocks, -1, np.int64)
    near = np.arange(len(chosen)) * ranks // max(1, len(chosen))
    score = held_by[:, chosen].copy()
    score[near, np.arange(len(chosen))] += 1  # equals get neighbouring blocks
    best = np.argmax(score, 0)
    order = np.lexsort((-score[best, np.arange(len(chosen))], best))
    sizes = np.bincount(best, minlength=ranks)
    place = np.arange(len(chosen)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    quota = np.full(ranks, len(chosen) // ranks)
    quota[np.argsort(-sizes, kind="stable")[: len(chosen) % ranks]] += 1
    over = np.sort(order[place >= quota[best[order]]])
    best[over] = np.repeat(np.arange(ranks), quota - np.minimum(sizes, quota))
    owner[chosen] = best
    return owner


@dataclass(frozen=True)
class Turns:
    """The order in which blocks are dealt with: each owner's first ones, then the second ones."""

    owner: Ints
    order: Ints
    position: Ints

    @classmethod
    def of(cls, owner: Ints) -> Turns:
        """The order that follows from who owns what."""
        mine = np.argsort(owner, kind="stable")
        mine = mine[owner[mine] >= 0]
        sizes = np.bincount(owner[mine])
        turn = np.arange(len(mine)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        order = mine[np.lexsort((owner[mine], turn))]
        position = np.full(len(owner), -1, np.int64)
        position[order] = np.arange(len(order))
        return cls(owner, order, position)

    def sorted(self, pieces: Ints) -> Ints:
        """A rank's pieces by owner, and for each in the order in which they travel."""
        block = pieces[:, BLOCK_]
        return pieces[np.lexsort((pieces[:, ADDRESS], self.position[block], self.owner[block]))]


def chosen(told: Sequence[Ints], me: int) -> list[NDArray[np.bool_]]:
    """Which of the pieces that each rank offers the owner `me` takes: of equal ones its own, or one
    of the others', by turns."""
    ranks = len(told)
    rank = np.repeat(np.arange(ranks), [len(t) for t in told])
    rows = np.concatenate([t[:, :TOLD] for t in told])
    rank_order = np.where(rank == me, -1, (rank + rows[:, BLOCK_]) % ranks)
    keys = rows.T[::-1]
    order = np.lexsort((rank_order, *keys))
    first = np.ones(len(rows), bool)
    first[1:] = (rows[order][1:] != rows[order][:-1]).any(1)
    taken = np.zeros(len(rows), bool)
    taken[order] = first
    return np.split(taken, np.cumsum([len(t) for t in told])[:-1])


def check_covered(taken: Ints, layout: FileLayout, mine: NDArray[np.bool_]) -> None:
    """Every byte of a tensor in the blocks that are mine comes from somebody. Raises StorageError
    that names the tensors of the first hole."""
    times = taken[:, COUNT]
    at = np.repeat(taken[:, BLOCK_] * layout.block + taken[:, ADDRESS], times)
    turn = np.arange(len(at)) - np.repeat(np.cumsum(times) - times, times)
    at += turn * np.repeat(taken[:, STRIDE], times)
    ends = at + np.repeat(taken[:, RUN], times)
    order = np.argsort(at, kind="stable")
    at, reach = at[order], np.maximum.accumulate(ends[order])
    # Bytes that no run before has reached; their sum is the length of the union of all runs.
    new = reach - np.maximum(at, np.concatenate([at[:1], reach[:-1]]))
    union = np.bincount(at // layout.block, new, layout.blocks).astype(np.int64)
    lacking = np.flatnonzero(mine & (union < layout.tensor_bytes()))
    if len(lacking):
        block = int(lacking[0])
        names = ", ".join(layout.tensors_in(block)[:8])
        file, offset = layout.place(block)
        raise StorageError(
            f"no rank has all of {file.name} at bytes {offset:,} to {offset + layout.block:,} "
            f"({names}): together the ranks must have every element"
        )


def windows(traffic: Ints, turns: Turns, budget: int) -> list[tuple[int, int]]:
    """Cut the order of blocks so that in each part no rank sends or takes more than `budget` bytes,
    or it is one block. `traffic` has for (rank, block) what travels between the two."""
    moved = traffic[:, turns.order]
    ranks = len(traffic)
    owner = turns.owner[turns.order]
    at_owner = np.zeros_like(moved)
    at_owner[owner, np.arange(len(owner))] = moved.sum(0)
    total = np.zeros((2 * ranks, len(owner) + 1), np.int64)
    np.cumsum(np.concatenate([moved, at_owner]), 1, out=total[:, 1:])
    cuts, start = [], 0
    while start < len(owner):
        low, high = start + 1, len(owner)
        while low < high:
            middle = (low + high + 1) // 2
            if (total[:, middle] - total[:, start]).max() <= budget:
                low = middle
            else:
                high = middle - 1
        cuts.append((start, low))
        start = low
    return cuts


Piece = tuple[int, ...]
"""block, address, run, count, stride, shard, local, offset in the buffer that travels."""


@dataclass(frozen=True)
class TransferWindow:
    """What a rank does in one part of the order of blocks. `counts[i][j]` bytes travel from the
    parts of rank i to blocks of rank j (a save) or back (a load)."""

    blocks: list[int]
    away: list[Piece]
    home: dict[int, list[Piece]]
    own: dict[int, list[Piece]]
    counts: list[list[int]]

    @property
    def travels(self) -> bool:
        """Whether any rank sends anything."""
        return any(any(row) for row in self.counts)

    def back(self) -> list[list[int]]:
        """The counts of a load."""
        return [list(row) for row in zip(*self.counts, strict=True)]


@dataclass(frozen=True)
class TransferPlan:
    """A rank's part of a save or a load: its windows hold for as long as layouts stay."""

    layout: FileLayout
    owner: Ints
    windows: list[TransferWindow]


def planned(
    layout: FileLayout,
    turns: Turns,
    me: int,
    mine: Ints,
    told: Sequence[Ints],
    traffic: Ints,
    budget: int,
) -> TransferPlan:
    """The windows of rank `me`, from its own pieces that travel or stay, in order, and those that
    each rank has in its blocks, in that rank's order."""
    here = turns.owner[mine[:, BLOCK_]] == me
    guests = np.concatenate([t[:, :TOLD] for t in told])
    peer = np.repeat(np.arange(len(told)), [len(t) for t in told])
    guests, peer = guests[peer != me], peer[peer != me]
    away = mine[~here]
    cuts = windows(traffic, turns, budget)
    ends = np.array([end for _, end in cuts], np.int64)
    away_w = np.searchsorted(ends, turns.position[away[:, BLOCK_]], "right")
    order = np.argsort(away_w, kind="stable")
    away, away_w = away[order], away_w[order]
    guest_w = np.searchsorted(ends, turns.position[guests[:, BLOCK_]], "right")
    order = np.lexsort((peer, guest_w))
    guests, guest_w = guests[order], guest_w[order]
    own = mine[here]
    own_w = np.searchsorted(ends, turns.position[own[:, BLOCK_]], "right")
    own, own_w = own[(o := np.argsort(own_w, kind="stable"))], own_w[o]
    made = []
    for w, (start, end) in enumerate(cuts):
        blocks = turns.order[start:end]
        owner = turns.owner[blocks]
        counts = np.zeros((len(traffic), len(traffic)), np.int64)
        np.add.at(counts.T, owner, traffic[:, blocks].T)
        made.append(
            TransferWindow(
                blocks[owner == me].tolist(),
                _with_offsets(away[slice(*np.searchsorted(away_w, [w, w + 1]))]),
                _by_block(_with_offsets(guests[slice(*np.searchsorted(guest_w, [w, w + 1]))])),
                _by_block(_tuples(own[slice(*np.searchsorted(own_w, [w, w + 1]))])),
                counts.tolist(),
            )
        )
    return TransferPlan(layout, turns.owner, made)


def _with_offsets(pieces: Ints) -> list[Piece]:
    """Pieces, with their places in the buffer; those of others say nothing of shards."""
    sizes = nbytes_of(pieces)
    unsaid = np.zeros((len(pieces), LOCAL + 1 - pieces.shape[1]), np.int64)
    offsets = (np.cumsum(sizes) - sizes)[:, None]
    return _tuples(np.concatenate([pieces, unsaid, offsets], 1))


def _tuples(rows: Ints) -> list[Piece]:
    """Rows as tuples, which the garbage collector does not look at for ever as it does at lists."""
    return [*map(tuple, rows.tolist())]


def _by_block(pieces: Sequence[Any]) -> dict[int, list[Piece]]:
    found: dict[int, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece[BLOCK_], []).append(piece)
    return found
