"""Reductions to one value along axes. The compiler's loop nest lowers them."""

from __future__ import annotations

import math

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack.ir import build as g
from stack.ir.claims import HALVES
from stack.ir.numeric import identity
from stack.ir.record import NDArray, OpKind, OpRecord
from stack.ops.table import doubled, record, rounded, widened

_NUMPY = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def _reduce(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    """Floats are combined in f64; integers in their own type, so that they wrap."""
    x, kind = doubled(xs[0]), n["kind"]
    start = x.dtype.type(identity(kind, n.dtype))
    with np.errstate(all="ignore"):
        y = _NUMPY[kind].reduce(x, axis=n["axes"], dtype=x.dtype, keepdims=True, initial=start)
    return rounded(y, n.dtype)


def _gradient(n: Node, d: Node) -> tuple[Node]:
    if n["kind"] == "sum":
        return (g.expand(d, n.srcs[0].shape),)
    return (_prod(n, d) if n["kind"] == "prod" else _extreme(n, d),)


def _extreme(n: Node, d: Node) -> Node:
    """Equal extremes share alike. They are counted in f32 because f16 counts only to 2048."""
    (x,) = n.srcs
    wide = DType.F32 if x.dtype in HALVES else x.dtype
    chosen = g.cast(g.eq(x, g.expand(n, x.shape)), wide)
    share = g.div(g.cast(d, wide), g.reduce("sum", chosen, n["axes"]))
    return g.cast(g.mul(chosen, g.expand(share, x.shape)), x.dtype)


def _prod(n: Node, d: Node) -> Node:
    """The product of all others is the product of those before and of those after; x may hold
    zeros."""
    (x,), axes = n.srcs, n["axes"]
    kept = [i for i in range(len(x.shape)) if i not in axes]
    order = [*kept, *axes]
    size = math.prod(x.shape[a] for a in axes)
    flat = g.reshape(g.permute(x, order), (*(x.shape[i] for i in kept), size))
    others = g.mul(_before(flat), g.flip(_before(g.flip(flat, -1)), -1))
    moved = g.reshape(others, [x.shape[i] for i in order])
    return g.mul(g.expand(d, x.shape), g.permute(moved, np.argsort(order).tolist()))


def _before(x: Node) -> Node:
    """For each element the product of those before it on the last axis."""
    rank, size = len(x.shape), x.shape[-1]
    if size == 0:
        return x
    first = tuple(int(i == rank - 1) for i in range(rank))
    shifted = g.pad(g.slice_axis(x, -1, 0, size - 1), first, (0,) * rank, 1)
    return g.scan("prod", shifted, -1)


def _argmax(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    return np.asarray(np.argmax(widened(xs[0]), axis=n["axis"], keepdims=True))


def _argmin(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    return np.asarray(np.argmin(widened(xs[0]), axis=n["axis"], keepdims=True))


REDUCE: tuple[OpRecord, ...] = (
    record(
        "reduce",
        OpKind.REDUCE,
        "x combined over axes by sum, prod, min or max (bool: min or max); they stay as size 1; no "
        "elements give the kind's identity; f16 and bf16 accumulate in f32, integers wrap, min and "
        "max keep NaN",
        _reduce,
        _gradient,
    ),
    record(
        "argmax",
        OpKind.REDUCE,
        "i64 position of the first greatest element, NaN counting as greatest",
        _argmax,
    ),
    record(
        "argmin",
        OpKind.REDUCE,
        "i64 position of the first least element, NaN counting as least",
        _argmin,
    ),
)
