"""How ranks agree on a plan: each tells what it has, owners are told what lies in their blocks."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from hal.core.facts import dataclass
from stack.storage.boxes import Box, FlatRange, TensorShard, rows_of
from stack.storage.errors import Mismatch
from stack.storage.layout import BLOCK, FILE_NBYTES, FileLayout, TensorInfo, code_of, layout_of
from stack.storage.plan import (
    BLOCK_,
    TOLD,
    TransferPlan,
    Turns,
    check_covered,
    chosen,
    held,
    owners,
    planned,
    split,
)
from stack.storage.ranks import StorageRanks

Key = tuple[str, str]
Shards = dict[Key, TensorShard]
"""What a rank has, by group and name."""


@dataclass(frozen=True)
class CheckpointLimits:
    """How files and blocks are cut, and how many bytes a rank holds beyond its state."""

    block: int = BLOCK
    file_nbytes: int = FILE_NBYTES
    window: int = 192 << 20


def infos_of(shards: Shards) -> list[TensorInfo]:
    """The whole tensors of which these are parts."""
    return [TensorInfo(g, n, code_of(s.dtype), s.shape) for (g, n), s in shards.items()]


def parts_of(shards: Shards) -> list[Box | FlatRange]:
    """Which part of each."""
    return [shard.part for shard in shards.values()]


class Plans:
    """Agrees on plans, and keeps the last save's and the last load's while layouts stay."""

    def __init__(self, ranks: StorageRanks, limits: CheckpointLimits) -> None:
        self._ranks, self._limits = ranks, limits
        self._kept: dict[str, tuple[Any, TransferPlan]] = {}

    def for_save(self, shards: Shards) -> TransferPlan:
        """The plan by which each byte is written once. All ranks call it. Raises Mismatch where
        ranks disagree on a tensor, StorageError where together they lack a part of one."""
        infos, parts = infos_of(shards), parts_of(shards)
        key = (infos, parts)
        return self._kept_or("save", key, lambda: self._save(infos, parts))

    def for_load(self, shards: Shards, layout: FileLayout) -> TransferPlan:
        """The plan by which each byte that any rank wants is read once. All ranks call it."""
        infos, parts = infos_of(shards), parts_of(shards)
        key = (infos, parts, layout)
        return self._kept_or("load", key, lambda: self._plan(infos, parts, layout, False))

    def _kept_or(self, kind: str, key: Any, make: Any) -> TransferPlan:
        kept = self._kept.get(kind)
        stays = kept is not None and kept[0] == key
        if kept is not None and all(self._ranks.tell(stays)):
            return kept[1]
        if kept is None:
            self._ranks.tell(False)
        plan: TransferPlan = make()
        self._kept[kind] = (key, plan)
        return plan

    def _save(self, infos: list[TensorInfo], parts: list[Box | FlatRange]) -> TransferPlan:
        # The tensors of all ranks, in the order of the first rank that has each
        plain = [[t.group, t.name, t.dtype, t.shape] for t in infos]
        digests = self._ranks.tell(blake2b(repr(plain).encode(), digest_size=16).hexdigest())
        first = digests.index(digests[self._ranks.rank])
        lists = self._ranks.tell(plain if first == self._ranks.rank else [])
        found: dict[Key, TensorInfo] = {}
        for rank, rows in enumerate(lists):
            for group, name, dtype, shape in rows:
                info = TensorInfo(group, name, dtype, tuple(shape))
                before = found.setdefault(info.key, info)
                if before != info:
                    raise Mismatch(
                        f"rank {rank} has {info} as {dtype}{list(shape)}, a rank before it as "
                        f"{before.dtype}{list(before.shape)}"
                    )
        layout = layout_of(list(found.values()), self._limits.file_nbytes, self._limits.block)
        return self._plan(infos, parts, layout, True)

    def _plan(
        self,
        infos: Sequence[TensorInfo],
        parts: Sequence[Box | FlatRange],
        layout: FileLayout,
        once: bool,
    ) -> TransferPlan:
        ranks = self._ranks
        rows = [
            rows_of(t.shape, t.itemsize, part, str(t)) for t, part in zip(infos, parts, strict=True)
        ]
        mine = split(rows, [layout.addresses[t.key][1] for t in infos], layout.block)
        have = np.array(ranks.gather(held(mine, layout.blocks)))
        wanted = np.full(layout.blocks, True) if once else have.sum(0) > 0
        turns = Turns.of(owners(have, wanted))
        mine = turns.sorted(mine)
        to = np.searchsorted(turns.owner[mine[:, BLOCK_]], np.arange(1, ranks.size))
        told = [t.reshape(-1, TOLD) for t in ranks.swap(np.split(mine[:, :TOLD], to))]
        if once:
            takes = chosen(told, ranks.rank)
            told = [t[taken] for t, taken in zip(told, takes, strict=True)]
            error = None
            try:
                check_covered(np.concatenate(told), layout, turns.owner == self._ranks.rank)
            except Exception as raised:  # noqa: BLE001  (all ranks raise it)
                error = raised
            self._ranks.agree(error, "planning")
            mine = mine[np.concatenate(ranks.swap(takes))]
        traffic = np.array(
            ranks.gather(held(mine[turns.owner[mine[:, BLOCK_]] != ranks.rank], layout.blocks))
        )
        # A rank sends one window while the next is made ready, and takes as much.
        budget = max(layout.block, self._limits.window // 6)
        return planned(layout, turns, ranks.rank, mine, told, traffic, budget)
