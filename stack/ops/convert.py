"""Operations that change the element type."""

from __future__ import annotations

import numpy as np

from hal.core.dtypes import DType
from hal.tile import build as tile
from hal.tile.node import Node
from hal.tile.numeric import NUMPY, bounds
from stack.ir import build as g
from stack.ir.claims import HALVES
from stack.ir.record import NDArray, OpRecord
from stack.ops.table import doubled, elementwise, rounded, widened


def _cast(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    (x,) = xs
    if n.dtype is DType.BOOL:
        return np.asarray(widened(x) != 0)
    if n.dtype.is_int and n.srcs[0].dtype.is_float:
        return _saturated(doubled(x), n.dtype)
    return rounded(x, n.dtype)


def _saturated(x: NDArray, dtype: DType) -> NDArray:
    """Truncated toward zero, held within the type's range; NaN gives 0."""
    low, high = bounds(dtype)
    whole, above = np.trunc(x), x >= float(high + 1)
    inside = ~(above | (whole < low) | np.isnan(x))
    result = np.where(inside, whole, 0).astype(NUMPY[dtype])
    result[above] = high
    result[whole < low] = low
    return result


def _cast_gradient(n: Node, d: Node) -> tuple[Node | None]:
    (x,) = n.srcs
    return (g.cast(d, x.dtype) if x.dtype.is_float and n.dtype.is_float else None,)


def _lower_cast(n: Node, xs: tuple[Node, ...]) -> Node:
    """A cast to f16 or bf16 rounds even where the value stays in f32."""
    narrow = tile.cast(xs[0], n.dtype)
    return tile.cast(narrow, DType.F32) if n.dtype in HALVES else narrow


def _bitcast(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    return np.ascontiguousarray(xs[0]).view(NUMPY[n.dtype]).reshape(n.shape)


def _lower_bitcast(n: Node, xs: tuple[Node, ...]) -> Node:
    bits = tile.bitcast(tile.cast(xs[0], n.srcs[0].dtype), n.dtype)
    return tile.cast(bits, DType.F32) if n.dtype in HALVES else bits


CONVERT: tuple[OpRecord, ...] = (
    elementwise(
        "cast",
        "x in another element type: floats to integers truncate and saturate, NaN gives 0; "
        "integers wrap; to bool is x != 0; to a narrower float rounds to nearest even",
        _cast,
        _cast_gradient,
        _lower_cast,
    ),
    elementwise(
        "bitcast", "x's bits as another type of the same width", _bitcast, None, _lower_bitcast
    ),
)
