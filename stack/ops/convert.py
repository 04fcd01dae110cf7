"""Operators that change the element type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hal.core.dtypes import DType
from hal.tile import build as tile
from hal.tile.node import Node, Type
from hal.tile.numeric import NUMPY, bounds
from stack.ops.error import GraphError
from stack.ops.operator import Attrs, NDArray, OpKind
from stack.ops.rules import need_asked
from stack.ops.sharding import Sharding, elementwise, every_axis, is_wider
from stack.ops.table import ALL, NUMBERS, define, doubled, rounded, widened


def _cast(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    (x,) = xs
    if n.dtype is DType.BOOL:
        return np.asarray(widened(x) != 0)
    if n.dtype.is_int and n.srcs[0].dtype.is_float:
        # Truncated toward zero, held within the type's range; NaN gives 0.
        x = doubled(x)
        low, high = bounds(n.dtype)
        whole, above = np.trunc(x), x >= float(high + 1)
        inside = ~(above | (whole < low) | np.isnan(x))
        result = np.where(inside, whole, 0).astype(NUMPY[n.dtype])
        result[above] = high
        result[whole < low] = low
        return result
    return rounded(x, n.dtype)


def _as_bits(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    dtype = need_asked(asked).dtype
    if dtype.bits != srcs[0].dtype.bits or dtype not in NUMBERS:
        raise GraphError(f"cannot read {srcs[0].dtype.bits} bits as {dtype.short}")
    return srcs[0].with_dtype(dtype)


_CAST = define(
    "cast",
    OpKind.ELEMENTWISE,
    ALL,
    "x in another element type: floats to integers truncate and saturate, NaN gives 0; integers "
    "wrap; to bool is x != 0; to a narrower float rounds to nearest even",
    1,
    lambda srcs, attrs, asked: srcs[0].with_dtype(need_asked(asked).dtype),
    _cast,
    lambda n, d: (
        cast(d, n.srcs[0].dtype) if n.srcs[0].dtype.is_float and n.dtype.is_float else None,
    ),
    # a cast to a narrow float rounds even where the value stays wide
    lower=lambda n, xs: tile.cast(tile.cast(xs[0], n.dtype), n.dtype.computed_in),
    sharding=Sharding(every_axis, lambda n: ((0,),) if is_wider(n) else (), pointwise=True),
)
_BITCAST = define(
    "bitcast",
    OpKind.ELEMENTWISE,
    NUMBERS,
    "x's bits as another type of the same width",
    1,
    _as_bits,
    lambda n, xs: np.ascontiguousarray(xs[0]).view(NUMPY[n.dtype]).reshape(n.shape),
    lower=lambda n, xs: tile.cast(
        tile.bitcast(tile.cast(xs[0], n.srcs[0].dtype), n.dtype), n.dtype.computed_in
    ),
    sharding=elementwise(),
)


def cast(x: Node, dtype: DType) -> Node:
    """x converted to another element type."""
    return x if x.dtype is dtype else _CAST(x, asked=x.type.with_dtype(dtype))


def bitcast(x: Node, dtype: DType) -> Node:
    """x's bits read as another element type of the same width."""
    return x if x.dtype is dtype else _BITCAST(x, asked=x.type.with_dtype(dtype))
