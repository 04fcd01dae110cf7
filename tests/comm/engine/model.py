"""What a collective gives, in numpy: lists of arrays by rank to lists of arrays by rank."""

import functools
from itertools import pairwise

import numpy as np

from hal.core.dtypes import DType
from hal.core.values import ReduceKind
from hal.tile.numeric import NUMPY
from stack.comm.engine.codes import BitReduce

DTYPES = list(NUMPY.values())
SHORT = tuple(NUMPY[d] for d in DType if d.is_narrow)
HOWS = (*ReduceKind, *BitReduce)
_BITS = {
    BitReduce.BAND: np.bitwise_and,
    BitReduce.BOR: np.bitwise_or,
    BitReduce.BXOR: np.bitwise_xor,
}


def is_reduction(dtype, how):
    """Whether there is one of the element type."""
    if isinstance(how, BitReduce):
        return dtype.kind in "iub"
    return not (dtype == np.bool_ and how is ReduceKind.AVG)


def in_order(parts, combine):
    """((a + b) + c) + d, ..."""
    return functools.reduce(combine, parts)


def in_pairs(parts, combine):
    """(a + b) + (c + d), ...; what makes no whole pair is added last."""
    whole = 1 << len(parts).bit_length() - 1
    first, rest = list(parts[:whole]), parts[whole:]
    while len(first) > 1:
        first = [combine(a, b) for a, b in zip(first[::2], first[1::2], strict=True)]
    return combine(first[0], in_pairs(rest, combine)) if len(rest) else first[0]


def reduced(arrays, how, order=in_order):
    """The arrays combined, of ranks in that order; short floats in float32."""
    dtype = arrays[0].dtype
    parts = [a.astype(np.float32) if dtype in SHORT else a for a in arrays]
    with np.errstate(all="ignore"):
        total = order(parts, functools.partial(_combined, how=how))
        if how is ReduceKind.AVG:
            total = _divided(total, len(arrays))
        return total.astype(dtype)


def _combined(a, b, how):
    if how in _BITS:
        return _BITS[how](a, b)
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
