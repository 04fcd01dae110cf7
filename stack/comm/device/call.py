"""A collective call of the contract as an operation of a group on arrays of the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.values import Collective, CollectiveKind, ReduceKind, Region
from stack.comm.group import Group

Array = NDArray[Any]
Kind = CollectiveKind

ELEMENTWISE = (Kind.ALL_REDUCE, Kind.REDUCE, Kind.BROADCAST)
"""Kinds in which element i of every destination follows from the elements i of the sources alone: a
call may be cut into calls of its pieces."""
UNEVEN = (Kind.ALL_GATHER, Kind.GATHER, Kind.REDUCE_SCATTER, Kind.SCATTER)
"""Kinds whose parts may differ in size."""


@dataclass(frozen=True, slots=True)
class Call:
    """A collective, with the elements of each rank's part where they differ (`parts`, equal on all
    ranks, for kinds of `UNEVEN`; `collective.count` does not count then), and what all ranks call
    it, "" for an all-reduce without a name and for other kinds."""

    collective: Collective
    parts: tuple[int, ...] | None = None
    name: str = ""

    def __str__(self) -> str:
        call = self.collective
        name = f" ({self.name})" if self.name else ""
        return f"{call.kind.value} of {call.count} {call.dtype.short}{name}"

    def needs(self, rank: int, size: int) -> tuple[int | None, int | None]:
        """The elements of a rank's destination and source; None for one that it does not use."""
        call, root = self.collective, rank == self.collective.root
        own = call.count if self.parts is None else self.parts[rank]
        whole = call.count * size if self.parts is None else sum(self.parts)
        match call.kind:
            case Kind.ALL_REDUCE:
                return own, own
            case Kind.REDUCE:
                return own if root else None, own
            case Kind.BROADCAST:
                return own, own if root else None
            case Kind.ALL_GATHER:
                return whole, own
            case Kind.GATHER:
                return whole if root else None, own
            case Kind.REDUCE_SCATTER:
                return own, whole
            case Kind.SCATTER:
                return own, whole if root else None
            case Kind.ALL_TO_ALL:
                return whole, whole
            case Kind.ALL_TO_ALL_V:
                return sum(row[rank] for row in call.counts), sum(call.counts[rank])
        return None, None

    def nbytes(self, size: int) -> int:
        """The longest vector that a rank gives or takes; equal on all ranks."""
        counts = [n or 0 for rank in range(size) for n in self.needs(rank, size)]
        return max(counts) * self.collective.dtype.nbytes

    def check(self, where: str, rank: int, size: int, dst: Region, src: Region) -> None:
        """Raise InvalidCall for regions and counts that do not fit together."""
        self._check_counts(where, size)
        call = self.collective
        if not 0 <= call.root < size:
            raise InvalidCall(f"{where}: root {call.root} is no rank of a group of {size}")
        if call.dtype is DType.BOOL and call.reduce is ReduceKind.AVG:
            raise InvalidCall(f"{where}: there is no average of bools")
        sides = zip(("dst", "src"), (dst, src), self.needs(rank, size), strict=True)
        for side, region, count in sides:
            if count is not None and region.nbytes != count * call.dtype.nbytes:
                raise InvalidCall(
                    f"{where}: {self} needs {count * call.dtype.nbytes} bytes of {side} on rank "
                    f"{rank} of {size}, not {region.nbytes}"
                )

    def _check_counts(self, where: str, size: int) -> None:
        call, parts = self.collective, self.parts
        if call.kind is Kind.ALL_TO_ALL_V and [len(row) for row in call.counts] != [size] * size:
            raise InvalidCall(f"{where}: counts is not {size} rows of {size}: {call.counts}")
        if parts is not None and (call.kind not in UNEVEN or len(parts) != size or min(parts) < 0):
            raise InvalidCall(
                f"{where}: {self} among {size} has no parts of {list(parts)} elements"
            )


def perform(group: Group, call: Call, dst: Array, src: Array) -> None:
    """Run a call to its end; `dst` and `src` are one array where it runs in place.

    Raises as the operations of `Group`.
    """
    of, parts = call.collective, call.parts
    match of.kind:
        case Kind.ALL_REDUCE:
            group.all_reduce(src, of.reduce, dst, call.name)
        case Kind.REDUCE:
            group.reduce(src, of.root, of.reduce, dst if group.rank == of.root else src)
        case Kind.BROADCAST:
            if group.rank == of.root and dst is not src:
                dst[...] = src
            group.broadcast(dst, of.root)
        case Kind.ALL_GATHER:
            group.all_gather(src, dst, parts)
        case Kind.GATHER:
            group.gather(src, of.root, dst, parts)
        case Kind.SCATTER:
            group.scatter(src, of.root, dst, parts)
        case _:
            _exchange(group, of, dst, src, parts)


def _exchange(
    group: Group, of: Collective, dst: Array, src: Array, parts: Sequence[int] | None
) -> None:
    match of.kind:
        case Kind.REDUCE_SCATTER:
            group.reduce_scatter(src, of.reduce, dst, parts)
        case Kind.ALL_TO_ALL:
            group.all_to_all(src, dst)
        case Kind.ALL_TO_ALL_V:
            group.all_to_all_v(src, of.counts, dst)
        case Kind.BARRIER:
            group.barrier()
