"""Samples of a folder of shards, batch after batch: each once an epoch, whatever the ranks, and on
from any step."""

from __future__ import annotations

import io
import tarfile
from bisect import bisect_right
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from hal.core.facts import dataclass
from stack.comm.group import Group
from stack.storage.data.order import permuted
from stack.storage.data.shards import OpenShard, shards_in
from stack.storage.errors import Mismatch, StorageError
from stack.storage.ranks import StorageRanks


@dataclass(frozen=True, slots=True)
class DataPosition:
    """Where a job stands, a part of its checkpoint: the next sample is at `position` of `epoch`, in
    which the first `shards` of the index take part."""

    seed: int
    length: int
    epoch: int
    position: int
    shards: int

    def as_json(self) -> dict[str, int]:
        """Plain data, which `Samples.go_to` takes."""
        return asdict(self)


class Samples:
    """The samples of a folder: windows of `length` + 1 tokens that share no step with others (each
    begins with the token that ends the one before), or with length 0 those of tar shards.

    The order of an epoch follows from `seed` and the epoch alone. Of each batch rank r of the group
    takes part r. Shards that are added meanwhile join at the next epoch; rank 0 sees which, so all
    ranks make the same calls. Raises StorageError where a folder has no sample.
    """

    def __init__(
        self, folder: str | Path, length: int = 0, seed: int = 0, group: Group | None = None
    ) -> None:
        if length < 0:
            raise StorageError(f"a window of {length} tokens is none; give a length from 1 on")
        self.folder, self._length, self._seed = Path(folder), length, seed
        self._ranks = StorageRanks(group)
        self._open: list[OpenShard] = []
        self._epoch = self._position = 0
        self._use(self._there())

    @property
    def count(self) -> int:
        """The number of samples of this epoch."""
        return self._ends[-1]

    @property
    def position(self) -> DataPosition:
        """Where the next batch begins."""
        shards = len(self._open)
        return DataPosition(self._seed, self._length, self._epoch, self._position, shards)

    def go_to(self, position: dict[str, int]) -> None:
        """Go on where `position.as_json()` was taken, on any number of ranks. Raises Mismatch for a
        position in other data."""
        at = DataPosition(**position)
        if (at.seed, at.length) != (self._seed, self._length):
            raise Mismatch(
                f"the position is of seed {at.seed} and windows of {at.length}; these samples have "
                f"seed {self._seed} and windows of {self._length}"
            )
        if at.shards > self._there():
            raise Mismatch(
                f"the position is in an epoch of {at.shards} shards; {self.folder} has only "
                f"{self._there()}: the index was changed, not only appended to"
            )
        self._epoch, self._position = at.epoch, at.position
        self._use(at.shards)
        if not 0 <= at.position < self.count:
            raise Mismatch(
                f"the position is {at.position} in an epoch of {self.count} samples: it was taken "
                "in other data"
            )

    def batch(self, size: int) -> list[Any]:
        """This rank's samples of the next `size` ones, which move the position. Raises Damaged."""
        rank, ranks = self._ranks.rank, self._ranks.size
        first, last = size * rank // ranks, size * (rank + 1) // ranks
        found: list[Any] = []
        at = 0
        while at < size:
            n = min(size - at, self.count - self._position)
            mine = np.arange(max(first, at), min(last, at + n)) - at + self._position
            if len(mine):
                chosen = permuted(mine, self.count, self._seed, self._epoch)
                found += [self.sample(int(i)) for i in chosen]
            at += n
            self._position += n
            if self._position == self.count:
                self._epoch, self._position = self._epoch + 1, 0
                self._use(self._there())
        return found

    def sample(self, index: int) -> Any:
        """A sample by its number in the index: tokens, or a tar sample's bytes by their endings."""
        which = bisect_right(self._ends, index)
        shard = self._open[which]
        inside = index - (self._ends[which - 1] if which else 0)
        if shard.places is None:
            return shard.tokens(inside * self._length, self._length + 1)
        start, stop = shard.places[inside].tolist()
        with tarfile.open(fileobj=io.BytesIO(shard.bytes(start, stop)), mode="r:") as tar:
            return {
                member.name.partition(".")[2]: stream.read()
                for member in tar
                if (stream := tar.extractfile(member)) is not None
            }

    def _there(self) -> int:
        """How many shards rank 0 sees."""
        return int(self._ranks.tell(len(shards_in(self.folder)))[0])

    def _use(self, shards: int) -> None:
        lines = shards_in(self.folder)[:shards]
        kind = "tokens" if self._length else "tar"
        other = [shard.file for shard in lines if shard.kind != kind]
        if other:
            raise StorageError(f"{self.folder} has {other[0]} among shards of {kind}")
        kept = {shard.shard: shard for shard in self._open}
        self._open = [kept.get(line) or OpenShard(self.folder, line) for line in lines]
        counts = [
            max(0, line.count - 1) // self._length if self._length else line.count for line in lines
        ]
        self._ends = list(accumulate(counts))
        if not sum(counts):
            raise StorageError(f"{self.folder} has no sample; add shards to it first")
