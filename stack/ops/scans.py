"""Inclusive prefix combinations along an axis. The compiler's loop nest lowers them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.ops.operator import Attrs, NDArray, OpKind
from stack.ops.rules import axis_of, need_axis, need_kind
from stack.ops.sharding import Link, Sharding
from stack.ops.table import NUMBERS, define, doubled, rounded

_NUMPY = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def _scan(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    x = doubled(xs[0])
    with np.errstate(all="ignore"):
        y = _NUMPY[n["kind"]].accumulate(x, axis=n["axis"], dtype=x.dtype)
    return rounded(y, n.dtype)


def _gradient(n: Node, d: Node) -> tuple[Node]:
    kind, axis = n["kind"], n["axis"]
    if kind == "sum":
        return (g.flip(scan("sum", g.flip(d, axis), axis), axis),)
    if kind == "prod":
        return (_prod(n, d),)
    # Each result came from the last element up to it that equals its own prefix's extreme.
    (x,) = n.srcs
    here = _position(x.shape, axis)
    source = scan("max", g.where(g.eq(x, n), here, g.full_like(here, 0)), axis)
    stride = g.full_like(here, int(np.prod(x.shape[axis + 1 :], dtype=np.int64)))
    flat = g.reshape(g.arange(x.type.size), x.shape)
    target = g.sub(flat, g.mul(g.sub(here, source), stride))
    zeros, every = g.full((x.type.size,), 0, x.dtype), (x.type.size,)
    came = g.scatter("sum", zeros, g.reshape(target, every), g.reshape(d, every), 0)
    return (g.reshape(came, x.shape),)


def _prod(n: Node, d: Node) -> Node:
    """d out[j] / d x[i] is the product of x[:j+1] without x[i], for j >= i; n by n products so that
    x may hold zeros."""
    (x,), axis = n.srcs, n["axis"]
    size = x.shape[axis]
    square = (*x.shape[:axis], size, size, *x.shape[axis + 1 :])
    along = g.expand(g.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])), square)
    i, j = _position(square, axis), _position(square, axis + 1)
    products = scan("prod", g.where(g.eq(i, j), g.full_like(along, 1), along), axis + 1)
    weight = g.expand(g.reshape(d, (*x.shape[:axis], 1, *x.shape[axis:])), square)
    parts = g.where(g.le(i, j), g.mul(products, weight), g.full_like(along, 0))
    return g.reshape(g.reduce("sum", parts, axis + 1), x.shape)


def _position(shape: tuple[int, ...], axis: int) -> Node:
    """i64 coordinates along the axis."""
    line = tuple(n if i == axis else 1 for i, n in enumerate(shape))
    return g.expand(g.reshape(g.arange(shape[axis], DType.I64), line), shape)


def _type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    need_kind(attrs["kind"])
    need_axis(attrs["axis"], len(srcs[0].shape))
    return srcs[0]


_SCAN = define(
    "scan",
    OpKind.SCAN,
    NUMBERS,
    "inclusive prefix sum, prod, min or max; f16 and bf16 accumulate in f32, integers wrap",
    1,
    _type,
    _scan,
    _gradient,
    attrs=frozenset({"kind", "axis"}),
    sharding=Sharding(
        lambda n: [Link((axis,), axis) for axis in range(len(n.shape)) if axis != n["axis"]]
    ),
)


def scan(kind: str, x: Node, axis: int) -> Node:
    """Inclusive prefix sum, prod, min or max along an axis."""
    return _SCAN(x, kind=kind, axis=axis_of(axis, len(x.shape)))
