"""What each kind of collective does with the members' bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall, Unsupported
from hal.core.facts import dataclass
from hal.core.values import Collective, CollectiveKind, ReduceKind, Region
from hal.hosted.machine import Part
from hal.hosted.work import pieces

Array = NDArray[Any]
Kind = CollectiveKind

_NUMPY: Mapping[DType, np.dtype[Any]] = {
    d: np.dtype(getattr(ml_dtypes, d.numpy, d.numpy)) for d in DType
}
_WIDE = {d: _NUMPY[d.computed_in] for d in DType}
_FOLD: Mapping[ReduceKind, Callable[[Array, Array], Array]] = {
    ReduceKind.SUM: np.add,
    ReduceKind.AVG: np.add,
    ReduceKind.PROD: np.multiply,
    ReduceKind.MIN: np.minimum,
    ReduceKind.MAX: np.maximum,
}


@dataclass(frozen=True, slots=True)
class Ends:
    """A member's destination and source."""

    dst: Region
    src: Region

    @property
    def parts(self) -> tuple[Part, Part]:
        """Both in their machine's memory."""
        dst, src = self.dst, self.src
        return (
            dst.buffer.native.part(dst.offset, dst.nbytes),
            src.buffer.native.part(src.offset, src.nbytes),
        )

    def read(self, nbytes: int, goes_on: Callable[[], None]) -> bytes:
        """The first bytes of the source, in pieces; `goes_on` is called before each."""
        allocation, parts = self.src.buffer.native, []
        for at, size in pieces(nbytes):
            goes_on()
            read = allocation.session.machine.read
            parts.append(read(allocation.memory, self.src.offset + at, size))
        return b"".join(parts) if parts[1:] else bytes(parts[0])

    def write(self, data: Bytes, goes_on: Callable[[], None]) -> None:
        """Overwrite the destination, in pieces; `goes_on` is called before each."""
        allocation, whole = self.dst.buffer.native, memoryview(data)
        for at, size in pieces(len(data)):
            goes_on()
            write = allocation.session.machine.write
            write(allocation.memory, self.dst.offset + at, whole[at : at + size])


def check_fits(where: str, call: Collective, ends: Ends, rank: int, size: int) -> None:
    """Raise InvalidCall for a call whose parts do not fit together."""
    if call.kind is Kind.ALL_TO_ALL_V and [len(row) for row in call.counts] != [size] * size:
        raise InvalidCall(f"{where}: counts has {size} rows of {size} numbers, is {call.counts}")
    if call.dtype is DType.BOOL and call.reduce is ReduceKind.AVG:
        raise InvalidCall(f"{where}: bool has no average")
    if call.parts:
        raise Unsupported(f"{where}: {call} in unequal parts {call.parts}; it has equal ones alone")
    wanted = call.elements(rank, size)
    for side, region, count in zip(("dst", "src"), (ends.dst, ends.src), wanted, strict=True):
        if count is not None and region.nbytes != count * call.dtype.nbytes:
            raise InvalidCall(
                f"{where}: {call} among {size} needs {count * call.dtype.nbytes} bytes of {side} "
                f"on rank {rank}, got {region.nbytes}"
            )


Bytes = bytes | memoryview
Exchange = Callable[[Mapping[int, bytes]], Sequence[Bytes]]
"""What ranks of this process have becomes what all ranks have; all processes of a group call it
equally often."""


def combine(
    call: Collective,
    ends: Mapping[int, Ends],
    size: int,
    goes_on: Callable[[int], None],
    exchange: Exchange,
) -> None:
    """Do the call among `size` ranks, of which this process has those of `ends`: everything is read
    before anything is written, so that it works in place. `goes_on` is called, with a rank, before
    each piece that its machine reads or writes."""
    one = call.dtype.nbytes
    wanted = {rank: call.elements(rank, size) for rank in ends}
    sources = {
        rank: end.read(src * one, partial(goes_on, rank)) if (src := wanted[rank][1]) else b""
        for rank, end in ends.items()
    }
    results = _results(call, exchange(sources), list(ends), exchange)
    for rank, end in ends.items():
        if wanted[rank][0]:
            end.write(results[rank], partial(goes_on, rank))


def _results(
    call: Collective, sources: Sequence[Bytes], ranks: Sequence[int], exchange: Exchange
) -> Mapping[int, Bytes]:
    """What the destination of each of these ranks becomes."""
    size, one = len(sources), call.dtype.nbytes_of(call.count)
    match call.kind:
        case Kind.ALL_REDUCE | Kind.REDUCE:
            return dict.fromkeys(ranks, _reduced(call, sources, ranks, exchange))
        case Kind.REDUCE_SCATTER:
            parts = [_split(source, [one] * size) for source in sources]
            return {rank: _reduce(call, [row[rank] for row in parts]) for rank in ranks}
        case Kind.BROADCAST:
            return dict.fromkeys(ranks, sources[call.root])
        case Kind.ALL_GATHER | Kind.GATHER:
            return dict.fromkeys(ranks, b"".join(sources))
        case Kind.SCATTER:
            return dict(enumerate(_split(sources[call.root], [one] * size)))
        case Kind.ALL_TO_ALL:
            return _swapped([_split(source, [one] * size) for source in sources], ranks)
        case Kind.ALL_TO_ALL_V:
            nbytes = [[n * call.dtype.nbytes for n in row] for row in call.counts]
            return _swapped(list(map(_split, sources, nbytes)), ranks)
    return dict.fromkeys(ranks, b"")


def _reduced(
    call: Collective, sources: Sequence[Bytes], ranks: Sequence[int], exchange: Exchange
) -> bytes:
    """The reduction of all elements: of a share for each rank where others reduce theirs."""
    size, one = len(sources), call.dtype.nbytes
    if len(ranks) == size:
        return _reduce(call, sources)
    cuts = [one * (call.count * rank // size) for rank in range(size + 1)]
    return b"".join(
        exchange({r: _reduce(call, [s[cuts[r] : cuts[r + 1]] for s in sources]) for r in ranks})
    )


def _split(data: Bytes, sizes: Sequence[int]) -> list[Bytes]:
    ends = np.cumsum(sizes).tolist()
    return [data[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _swapped(parts: Sequence[Sequence[Bytes]], ranks: Sequence[int]) -> Mapping[int, Bytes]:
    """Part j of rank i becomes part i of rank j."""
    return {rank: b"".join(row[rank] for row in parts) for rank in ranks}


def _reduce(call: Collective, sources: Sequence[Bytes]) -> bytes:
    """The reduction, neighbouring ranks first; narrow floats are accumulated in the type in which
    they are computed and rounded once."""
    dtype = _NUMPY[call.dtype]
    arrays = [np.frombuffer(source, dtype) for source in sources]
    arrays = [array.astype(_WIDE[call.dtype]) for array in arrays]
    with np.errstate(all="ignore"):
        total = _in_pairs(arrays, _FOLD[call.reduce])
        if call.reduce is ReduceKind.AVG:
            total = _divide(total, len(arrays))
    return total.astype(dtype).tobytes()


def _in_pairs(arrays: Sequence[Array], fold: Callable[[Array, Array], Array]) -> Array:
    """Pairs first, then pairs of pairs: ranks with equal parts of a batch make the sum that one
    process makes of all of it."""
    if len(arrays) == 1:
        return arrays[0]
    half = 1 << (len(arrays) - 1).bit_length() - 1
    return fold(_in_pairs(arrays[:half], fold), _in_pairs(arrays[half:], fold))


def _divide(total: Array, count: int) -> Array:
    """The average; that of integers is cut off towards zero."""
    number = total.dtype.type(count)
    if total.dtype.kind == "f":
        return np.asarray(total / number)
    floor = total // number
    return np.asarray(floor + ((total < 0) & (total % number != 0)).astype(total.dtype))
