"""What each kind of collective takes and gives, in bytes, and which regions a rank may leave
empty."""

from __future__ import annotations

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall, Unsupported
from hal.core.values import Collective, CollectiveKind, ReduceKind, Region
from hal_plugin_cpu.arguments import check_bounds

_K = CollectiveKind
_TAKES_ALL = frozenset({_K.REDUCE_SCATTER, _K.ALL_TO_ALL, _K.SCATTER})
_GIVES_ALL = frozenset({_K.ALL_GATHER, _K.ALL_TO_ALL, _K.GATHER})
_ROOT_TAKES = frozenset({_K.BROADCAST, _K.SCATTER})
_ROOT_GETS = frozenset({_K.REDUCE, _K.GATHER})
_REDUCES = frozenset({_K.ALL_REDUCE, _K.REDUCE, _K.REDUCE_SCATTER})


def check(call: Collective, dst: Region, src: Region, rank: int, size: int) -> None:
    """Raises InvalidCall for regions, counts, a root or a type that do not fit the call."""
    check_bounds(dst, "collective")
    check_bounds(src, "collective")
    if not 0 <= call.root < size or call.count < 0:
        raise InvalidCall(f"collective: count {call.count}, root {call.root} of {size} members")
    if call.kind in _REDUCES and call.reduce is ReduceKind.AVG and call.dtype is DType.BOOL:
        raise InvalidCall("collective: bool has no average")
    _check_counts(call, size)
    if call.kind is not _K.BARRIER:
        gives, takes = (n * call.dtype.nbytes for n in _elements(call, rank, size))
        may_lack_dst = call.kind in _ROOT_GETS and rank != call.root
        may_lack_src = call.kind in _ROOT_TAKES and rank != call.root
        fits_dst = dst.nbytes == gives or (may_lack_dst and not dst.nbytes)
        fits_src = src.nbytes == takes or (may_lack_src and not src.nbytes)
        if not fits_dst or not fits_src:
            raise InvalidCall(
                f"collective: {call.kind.value} of {call.count} {call.dtype.short} among {size} "
                f"needs (dst, src) of {(gives, takes)} bytes on rank {rank}, "
                f"got {(dst.nbytes, src.nbytes)}"
            )


def _check_counts(call: Collective, size: int) -> None:
    if call.parts:
        raise Unsupported(
            f"collective: {call} in unequal parts {call.parts}; it has equal ones alone"
        )
    if call.kind is not _K.ALL_TO_ALL_V:
        if call.counts:
            raise InvalidCall(f"collective: counts are for all-to-all-v, not {call.kind.value}")
        return
    square = len(call.counts) == size and all(len(row) == size for row in call.counts)
    if call.count or not square or any(n < 0 for row in call.counts for n in row):
        raise InvalidCall(
            f"collective: all-to-all-v among {size} needs count 0 and {size} rows of {size} counts "
            f"of at least 0, got count {call.count} and {call.counts}"
        )


def _elements(call: Collective, rank: int, size: int) -> tuple[int, int]:
    """The elements that a rank gets and brings, were all ranks alike in a call with a root."""
    if call.kind is _K.ALL_TO_ALL_V:
        return sum(row[rank] for row in call.counts), sum(call.counts[rank])
    gives = call.count * (size if call.kind in _GIVES_ALL else 1)
    return gives, call.count * (size if call.kind in _TAKES_ALL else 1)
