"""What collectives take and must give, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.dtypes import DType
from hal.core.values import Collective, CollectiveKind, ReduceKind
from hal.tile.numeric import NUMPY, quiet
from hal_conformance.rig import Rig

Array = NDArray[Any]


def source_count(call: Collective, rank: int, size: int) -> int:
    """The elements of a rank's `src`."""
    match call.kind:
        case CollectiveKind.BARRIER:
            return 0
        case CollectiveKind.REDUCE_SCATTER | CollectiveKind.ALL_TO_ALL:
            return call.count * size
        case CollectiveKind.ALL_TO_ALL_V:
            return sum(call.counts[rank])
        case CollectiveKind.SCATTER:
            return call.count * size if rank == call.root else 0
        case CollectiveKind.BROADCAST:
            return call.count if rank == call.root else 0
    return call.count


def wanted_count(call: Collective, rank: int, size: int) -> int:
    """The elements of a rank's `dst`."""
    match call.kind:
        case CollectiveKind.BARRIER:
            return 0
        case CollectiveKind.ALL_GATHER | CollectiveKind.ALL_TO_ALL:
            return call.count * size
        case CollectiveKind.ALL_TO_ALL_V:
            return sum(row[rank] for row in call.counts)
        case CollectiveKind.GATHER:
            return call.count * size if rank == call.root else 0
        case CollectiveKind.REDUCE:
            return call.count if rank == call.root else 0
    return call.count


def values(rig: Rig, dtype: DType, count: int) -> Array:
    """Random elements: integers over the whole range, floats small enough not to overflow."""
    if dtype is DType.BOOL:
        return rig.random.integers(0, 2, count).astype(bool)
    if dtype.is_int:
        info = np.iinfo(NUMPY[dtype])
        return rig.random.integers(info.min, info.max, count, NUMPY[dtype], endpoint=True)
    return rig.random.uniform(-2, 2, count).astype(NUMPY[dtype])


def expected(call: Collective, sources: Sequence[Array]) -> list[Array]:
    """What each rank's destination must hold, in numpy; empty where a rank gets nothing."""
    size, n, root = len(sources), call.count, call.root
    ranks = range(size)
    none = np.empty(0, NUMPY[call.dtype])
    match call.kind:
        case CollectiveKind.ALL_REDUCE:
            return [combined(call, sources)] * size
        case CollectiveKind.REDUCE:
            return [combined(call, sources) if r == root else none for r in ranks]
        case CollectiveKind.REDUCE_SCATTER:
            whole = combined(call, sources)
            return [whole[r * n : (r + 1) * n] for r in ranks]
        case CollectiveKind.BROADCAST:
            return [sources[root]] * size
        case CollectiveKind.ALL_GATHER:
            return [np.concatenate(sources)] * size
        case CollectiveKind.GATHER:
            return [np.concatenate(sources) if r == root else none for r in ranks]
        case CollectiveKind.SCATTER:
            return [sources[root][r * n : (r + 1) * n] for r in ranks]
        case CollectiveKind.ALL_TO_ALL:
            return [np.concatenate([s[r * n : (r + 1) * n] for s in sources]) for r in ranks]
        case CollectiveKind.ALL_TO_ALL_V:
            parts = [
                np.split(s, np.cumsum(c)[:-1]) for s, c in zip(sources, call.counts, strict=True)
            ]
            return [np.concatenate([part[r] for part in parts]) for r in ranks]
        case CollectiveKind.BARRIER:
            return [none] * size


def combined(call: Collective, sources: Sequence[Array]) -> Array:
    """The reduction in rank order, in the type in which theirs is computed and rounded once."""
    dtype = call.dtype
    wide = NUMPY[dtype.computed_in]
    stack = [s.astype(wide) for s in sources]
    with quiet():
        total = stack[0]
        for other in stack[1:]:
            total = _FOLD[call.reduce](total, other).astype(wide)
        if call.reduce is ReduceKind.AVG:
            total = _mean(total, len(sources), dtype)
        return total.astype(NUMPY[dtype])


def tolerance(call: Collective, sources: Sequence[Array]) -> Array:
    """How far a float reduction may be from `expected`: the order of the sum is the device's own,
    so one rounding of the accumulator per rank, and one of the result."""
    dtype = call.dtype
    narrow = 2.0 ** -(dtype.mantissa + 1) if dtype.is_narrow else 0.0
    step = 2.0**-52 if dtype is DType.F64 else 2.0**-23
    magnitudes = [np.abs(s.astype(np.float64)) for s in sources]
    if call.reduce is ReduceKind.PROD:
        bound = np.prod(magnitudes, axis=0)
    else:
        bound = np.sum(magnitudes, axis=0)
    result = np.abs(combined(call, sources).astype(np.float64))
    return np.asarray(bound * step * len(sources) + 2 * narrow * result)


_FOLD: dict[ReduceKind, Callable[[Array, Array], Array]] = {
    ReduceKind.SUM: np.add,
    ReduceKind.AVG: np.add,
    ReduceKind.PROD: np.multiply,
    ReduceKind.MIN: np.minimum,
    ReduceKind.MAX: np.maximum,
}


def _mean(total: Array, size: int, dtype: DType) -> Array:
    if dtype.is_float:
        return np.asarray(total / total.dtype.type(size))
    exact = [abs(int(x)) // size * (1 if x >= 0 else -1) for x in total]
    return np.array(exact, total.dtype)
