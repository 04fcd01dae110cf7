"""Messages between the ranks of a group as one value, and what calls of ranks send."""

from __future__ import annotations

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.core.values import Collective, CollectiveKind
from stack.comm.engine.names import tag_of


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
        return tag_of(self.name)

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


def kind_of(call: RankCall, is_counted: bool = False) -> str:
    """What a call is: the name of the group's operation, "message" for messages. An all-to-all of
    which counts say how much travels, which are read when it begins, is an "all_to_all_v"."""
    if is_counted:
        return "all_to_all_v"
    return "message" if isinstance(call, Messages) else call.kind.value.replace("-", "_")


def sent_bytes(call: RankCall, rank: int, size: int) -> int:
    """The bytes that a rank sends in a call, by the algorithms that send least: of S bytes among n
    ranks (n - 1) / n * S for a gather, a scatter, a broadcast or an all-to-all, twice that for an
    all-reduce, nothing for itself; rounded down."""
    nbytes = call.dtype.nbytes
    if isinstance(call, Messages):
        return call.count * nbytes if call.to(rank) not in (None, rank) else 0
    one = call.parts[rank] if call.parts else call.count
    others = (sum(call.parts) if call.parts else size * call.count) - one
    match call.kind:
        case CollectiveKind.ALL_REDUCE:
            return 2 * (one * nbytes * (size - 1) // size)
        case CollectiveKind.REDUCE | CollectiveKind.BROADCAST:
            return one * nbytes * (size - 1) // size
        case CollectiveKind.ALL_GATHER:
            return one * nbytes * (size - 1)
        case CollectiveKind.GATHER:
            return one * nbytes * (rank != call.root)
        case CollectiveKind.SCATTER:
            return others * nbytes * (rank == call.root)
        case CollectiveKind.REDUCE_SCATTER | CollectiveKind.ALL_TO_ALL:
            return others * nbytes
        case CollectiveKind.ALL_TO_ALL_V:
            row = call.counts[rank]
            return (sum(row) - row[rank]) * nbytes
        case CollectiveKind.BARRIER:
            return 0
