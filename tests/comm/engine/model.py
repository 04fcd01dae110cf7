"""What a collective gives, in numpy: lists of arrays by rank to lists of arrays by rank."""

from itertools import pairwise

import ml_dtypes
import numpy as np

from hal.core.values import ReduceKind

DTYPES = [
    np.dtype(t)
    for t in (
        np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.int32, np.int16,
        np.int8, np.uint64, np.uint32, np.uint16, np.uint8, np.bool_,
    )
]  # fmt: skip
SHORT = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def reduced(arrays, how):
    """The arrays combined in rank order; short floats in float32."""
    dtype = arrays[0].dtype
    parts = [a.astype(np.float32) if dtype in SHORT else a for a in arrays]
    total = parts[0]
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            total = _combined(total, part, how)
        if how is ReduceKind.AVG:
            total = _divided(total, len(arrays))
        return total.astype(dtype)


def _combined(a, b, how):
    if a.dtype == np.bool_:
        return a | b if how in (ReduceKind.SUM, ReduceKind.MAX) else a & b
    match how:
        case ReduceKind.PROD:
            return a * b
        case ReduceKind.MIN:
            return np.minimum(a, b)
        case ReduceKind.MAX:
            return np.maximum(a, b)
    return a + b


def _divided(total, n):
    if total.dtype.kind == "f":
        return total / total.dtype.type(n)
    cut = [abs(int(x)) // n * (1 if x >= 0 else -1) for x in total.ravel()]
    return np.array(cut, total.dtype).reshape(total.shape)


def parts_of(array, counts):
    """An array cut into parts of these sizes."""
    ends = np.cumsum([0, *counts])
    return [array[a:b] for a, b in pairwise(ends)]
