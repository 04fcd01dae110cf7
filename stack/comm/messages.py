"""Messages between the ranks of a group as one value."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from hal.core.dtypes import DType
from hal.core.values import Collective


@dataclass(frozen=True, slots=True)
class Messages:
    """`count` elements of `dtype` from one rank to another, for each pair (from, to) of `pairs`.

    A rank sends at most one message and receives at most one; ranks that are in no pair have no
    part in it, and those of a pair name it at the same place among their messages. `name` is what
    both sides call it.
    """

    dtype: DType
    count: int
    pairs: tuple[tuple[int, int], ...]
    name: str = ""

    def __str__(self) -> str:
        name = f" ({self.name})" if self.name else ""
        return f"messages {self.pairs} of {self.count} {self.dtype.short}{name}"

    @property
    def tag(self) -> int:
        """What tells messages of two names apart: 31 bits."""
        return zlib.crc32(self.name.encode()) >> 1 if self.name else 0

    def to(self, rank: int) -> int | None:
        """The rank that this one sends to."""
        return next((to for of, to in self.pairs if of == rank), None)

    def source(self, rank: int) -> int | None:
        """The rank that this one receives from."""
        return next((of for of, to in self.pairs if to == rank), None)

    def elements(self, rank: int, size: int) -> tuple[int | None, int | None]:
        """The elements of destination and source; None for one that the rank does not use."""
        receives, sends = self.source(rank) is not None, self.to(rank) is not None
        return self.count if receives else None, self.count if sends else None


RankCall = Collective | Messages
"""What ranks do together, as one value from the compiler to the engine."""
