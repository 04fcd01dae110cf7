"""Collectives as the requests of MPI that they are made of.

Each function is a generator of requests: the next one is asked for once the last one is complete.
Every call first compares its description on all ranks, since MPI compares nothing: one short
all-reduce more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hal.core.facts import dataclass
from hal.core.values import CollectiveKind, ReduceKind
from stack.comm.engine.base import Array
from stack.comm.engine.call import NativeCall
from stack.comm.engine.codes import KIND_OF, NUMPY, REDUCE_OF, BitReduce, Reduce
from stack.comm.engine.failures import EQUAL_CALLS, CallMismatch
from stack.comm.mpi.library import mpi

Kind = CollectiveKind
Requests = Iterator[Any]

SHORT = tuple(numpy for numpy, dtype in NUMPY.items() if dtype.is_narrow)
"""MPI has no arithmetic for them: ranks get all vectors, and add them up in float32."""
_TEXT_NBYTES, _DIGEST_NBYTES = 256, 7
_SUMS = (ReduceKind.SUM, ReduceKind.AVG)


@dataclass(frozen=True, slots=True)
class Said:
    """What a rank says of a call: its number in the group, and the element type in words."""

    sequence: int
    call: NativeCall
    dtype: str

    @property
    def kind(self) -> CollectiveKind:
        return KIND_OF[self.call.kind]

    @property
    def reduce(self) -> Reduce:
        return REDUCE_OF[self.call.reduce]

    def __str__(self) -> str:
        call = self.call
        of = f" of {call.count} {self.dtype}" if call.counts is None else f" of parts {call.counts}"
        root = f", root {call.root}" if call.root >= 0 else ""
        name = f" ({call.name})" if call.name else ""
        return f"call {self.sequence}: {self.kind.value} ({self.reduce.value}){of}{root}{name}"


def collective(key: str, comm: Any, said: Said, dst: Array, src: Array) -> Requests:
    """The requests of a call. Raises CallMismatch on all ranks when they differ."""
    yield from _compare(key, comm, said)
    if said.kind is Kind.BARRIER:
        yield comm.Ibarrier()
        return
    if np.may_share_memory(src, dst) and said.kind is not Kind.BROADCAST:
        src = src.copy()
    yield from _MOVES[said.kind](comm, said, dst.reshape(-1), src.reshape(-1))


def _compare(key: str, comm: Any, said: Said) -> Requests:
    text = str(said).encode()
    digest = hashlib.blake2b(text, digest_size=_DIGEST_NBYTES).digest()
    number = int.from_bytes(digest)
    ends = np.array([number, -number], np.int64)
    yield comm.Iallreduce(mpi().IN_PLACE, ends, mpi().MAX)
    if ends[0] == -ends[1]:
        return
    mine = np.frombuffer((digest + text)[:_TEXT_NBYTES].ljust(_TEXT_NBYTES), np.uint8)
    every = np.empty((comm.size, _TEXT_NBYTES), np.uint8)
    yield comm.Iallgather(mine, every)
    other = next(rank for rank, row in enumerate(every) if (row != every[0]).any())
    texts = [row[_DIGEST_NBYTES:].tobytes().decode(errors="replace").rstrip() for row in every]
    says = f"rank 0 makes {texts[0]}, rank {other} makes {texts[other]}"
    raise CallMismatch(f"group {key!r}: {says}; {EQUAL_CALLS}", (0, other))


def _all_reduce(comm: Any, said: Said, dst: Array, src: Array) -> Requests:
    if src.dtype in SHORT:
        yield from _sum_here(comm, said, dst, src, slice(None))
        return
    yield comm.Iallreduce(_typed(src), _typed(dst), _op(said, src))
    _divide(said, dst, comm.size)


def _reduce(comm: Any, said: Said, dst: Array, src: Array) -> Requests:
    here = comm.rank == said.call.root
    if src.dtype in SHORT:
        whole = np.empty((comm.size, src.size), src.dtype)
        yield comm.Igather(bytes_of(src), bytes_of(whole) if here else None, said.call.root)
        if here:
            dst[:] = _folded(whole, said.reduce)
        return
    yield comm.Ireduce(_typed(src), _typed(dst) if here else None, _op(said, src), said.call.root)
    if here:
        _divide(said, dst, comm.size)


def _reduce_scatter(comm: Any, said: Said, dst: Array, src: Array) -> Requests:
    counts = said.call.counts or (dst.size,) * comm.size
    if src.dtype in SHORT:
        start = sum(counts[: comm.rank])
        yield from _sum_here(comm, said, dst, src, slice(start, start + dst.size))
        return
    yield comm.Ireduce_scatter(_typed(src), _typed(dst), list(counts), _op(said, src))
    _divide(said, dst, comm.size)


def _sum_here(comm: Any, said: Said, dst: Array, src: Array, part: slice) -> Requests:
    whole = np.empty((comm.size, src.size), src.dtype)
    yield comm.Iallgather(bytes_of(src), bytes_of(whole))
    dst[:] = _folded(whole[:, part], said.reduce)


def _broadcast(comm: Any, said: Said, dst: Array, src: Array) -> Requests:
    if src is not dst:
        dst[:] = src
    yield comm.Ibcast(bytes_of(dst), said.call.root)


def _all_gather(comm: Any, said: Said, dst: Array, src: Array) -> Requests:
    yield comm.Iallgatherv(bytes_of(src), _parts(dst, _counts(said, comm, src.size)))


def _gather(comm: Any, said: Said, dst: Array, src: Array) -> Requests:
    into = _parts(dst, _counts(said, comm, src.size)) if comm.rank == said.call.root else None
    yield comm.Igatherv(bytes_of(src), into, said.call.root)


def _scatter(comm: Any, said: Said, dst: Array, src: Array) -> Requests:
    of = _parts(src, _counts(said, comm, dst.size)) if comm.rank == said.call.root else None
    yield comm.Iscatterv(of, bytes_of(dst), said.call.root)


def _all_to_all(comm: Any, said: Said, dst: Array, src: Array) -> Requests:
    yield comm.Ialltoall(bytes_of(src), bytes_of(dst))


def _all_to_all_v(comm: Any, said: Said, dst: Array, src: Array) -> Requests:
    n, rank = comm.size, comm.rank
    counts = said.call.counts or ()
    sent, got = counts[rank * n : (rank + 1) * n], counts[rank::n]
    yield comm.Ialltoallv(_parts(src, sent), _parts(dst, got))


_MOVES: dict[CollectiveKind, Callable[[Any, Said, Array, Array], Requests]] = {
    Kind.ALL_REDUCE: _all_reduce,
    Kind.REDUCE: _reduce,
    Kind.REDUCE_SCATTER: _reduce_scatter,
    Kind.BROADCAST: _broadcast,
    Kind.ALL_GATHER: _all_gather,
    Kind.GATHER: _gather,
    Kind.SCATTER: _scatter,
    Kind.ALL_TO_ALL: _all_to_all,
    Kind.ALL_TO_ALL_V: _all_to_all_v,
}


def bytes_of(array: Array) -> list[Any]:
    return [array.reshape(-1).view(np.uint8), mpi().BYTE]


def _parts(array: Array, counts: Sequence[int]) -> list[Any]:
    nbytes = [count * array.dtype.itemsize for count in counts]
    return [array.reshape(-1).view(np.uint8), nbytes, mpi().BYTE]


def _counts(said: Said, comm: Any, own: int) -> Sequence[int]:
    return said.call.counts or (own,) * comm.size


def _typed(array: Array) -> Array:
    return array.view(np.uint8) if array.dtype == np.bool_ else array


def _op(said: Said, array: Array) -> Any:
    """Of bools the sum is "any" and the product "all"."""
    if isinstance(said.reduce, BitReduce):
        return getattr(mpi(), said.reduce.name)
    if array.dtype == np.bool_:
        return mpi().MAX if said.reduce in (ReduceKind.SUM, ReduceKind.MAX) else mpi().MIN
    others: dict[Reduce, Any] = {
        ReduceKind.PROD: mpi().PROD,
        ReduceKind.MIN: mpi().MIN,
        ReduceKind.MAX: mpi().MAX,
    }
    return mpi().SUM if said.reduce in _SUMS else others[said.reduce]


def _divide(said: Said, total: Array, size: int) -> None:
    """For the average; whole numbers are cut towards zero."""
    if said.reduce is not ReduceKind.AVG:
        return
    if total.dtype.kind == "f":
        total /= total.dtype.type(size)
        return
    down = total // total.dtype.type(size)
    total[:] = down + ((total < 0) & (down * total.dtype.type(size) != total))


def _folded(parts: Array, how: Reduce) -> Array:
    """Rows combined in their order, in float32."""
    combine: dict[Reduce, Callable[[Array, Array], Array]] = {
        ReduceKind.PROD: np.multiply,
        ReduceKind.MIN: np.minimum,
        ReduceKind.MAX: np.maximum,
    }
    total: Array = parts[0].astype(np.float32)
    for part in parts[1:]:
        total = combine.get(how, np.add)(total, part.astype(np.float32))
    if how is ReduceKind.AVG:
        total /= np.float32(len(parts))
    return total
