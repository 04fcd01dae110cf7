"""What ranks tell each other for a save or a load; a job of one rank talks to itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stack.storage.errors import (
    Damaged,
    Mismatch,
    NoCheckpoint,
    Occupied,
    Refused,
    StorageError,
)

if TYPE_CHECKING:  # the engine's library is loaded by who has a group
    from stack.comm.group import Group

Array = NDArray[Any]
KINDS = {k.__name__: k for k in (Damaged, Mismatch, NoCheckpoint, Occupied, Refused)}
"""What callers tell apart, by the names that other ranks hear."""
SHORT = 1024
"""Bytes that ranks tell in one round: a length of 8 bytes, and what is short enough."""


class StorageRanks:
    """The ranks that save and load together. The group is theirs alone: where saves run in the
    background, nothing else may use it."""

    def __init__(self, group: Group | None) -> None:
        self.group = group
        self.rank = 0 if group is None else group.rank
        self.size = 1 if group is None else group.size

    def gather(self, array: Array) -> list[Array]:
        """Each rank's array of one dimension and one element type, on all ranks."""
        if self.group is None:
            return [array]
        sizes = self.group.all_gather(np.array([array.size], np.int64)).ravel().tolist()
        whole = self.group.all_gather(np.ascontiguousarray(array), counts=sizes)
        return np.split(whole, np.cumsum(sizes)[:-1])

    def swap(self, arrays: Sequence[Array]) -> list[Array]:
        """Array j of rank i becomes array i of rank j."""
        if self.group is None:
            return list(arrays)
        sizes = np.array([a.size for a in arrays], np.int64)
        counts = self.group.all_gather(sizes).tolist()
        got = self.group.all_to_all_v(np.concatenate([a.ravel() for a in arrays]), counts)
        return np.split(got, np.cumsum([row[self.rank] for row in counts])[:-1])

    def move(self, sent: Array, counts: list[list[int]], out: Array) -> None:
        """Move bytes as `Group.all_to_all_v` does."""
        if self.group is not None:
            self.group.all_to_all_v(sent, counts, out)

    def tell(self, value: Any) -> list[Any]:
        """Each rank's plain value, on all ranks; in one round where all are short."""
        data = np.frombuffer(json.dumps(value).encode(), np.uint8)
        if self.group is None:
            return [json.loads(data.tobytes())]
        short = np.zeros(SHORT, np.uint8)
        short[:8] = np.array([data.size], np.int64).view(np.uint8)
        short[8 : 8 + data.size] = data[: SHORT - 8]
        rows = self.group.all_gather(short).reshape(self.size, SHORT)
        sizes = np.ascontiguousarray(rows[:, :8]).view(np.int64).ravel().tolist()
        if max(sizes) <= SHORT - 8:
            parts = [row[8 : 8 + n] for row, n in zip(rows, sizes, strict=True)]
        else:
            whole = self.group.all_gather(data, counts=sizes)
            parts = np.split(whole, np.cumsum(sizes)[:-1])
        return [json.loads(part.tobytes()) for part in parts]

    def agree(self, error: Exception | None, what: str) -> None:
        """All ranks come here. If one brings an error, all raise, that one its own."""
        raise_of(error, self.tell(text_of(error)), what)


def text_of(error: Exception | None) -> str:
    """What other ranks are told of an error; "" for none."""
    return "" if error is None else f"{type(error).__name__}: {error}"


def raise_of(error: Exception | None, texts: Sequence[str], what: str) -> None:
    """Raise this rank's error, else what the first other rank has told, of the same kind."""
    if error is not None:
        raise error
    for rank, text in enumerate(texts):
        if text:
            kind = KINDS.get(text.partition(":")[0], StorageError)
            raise kind(f"{what} has failed on rank {rank}: {text}")
