"""Reading and adding slices at positions that are data. The compiler's loop nest lowers them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hal.tile.node import Node
from stack.ir import build as g
from stack.ir.record import NDArray, OpKind, OpRecord
from stack.ops.table import doubled, record, rounded


def _gather(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    (x, index), axis = xs, n["axis"]
    result = np.zeros((*x.shape[:axis], index.size, *x.shape[axis + 1 :]), x.dtype)
    place = (slice(None),) * axis
    inside = _inside(index.ravel(), x.shape[axis])
    result[(*place, inside)] = np.take(x, index.ravel()[inside], axis)
    return result.reshape(n.shape)


def _inside(index: NDArray, size: int) -> NDArray:
    return np.asarray((index >= 0) & (index < size))


def _scatter_add(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    (base, index, updates), axis = xs, n["axis"]
    before, after = math.prod(base.shape[:axis]), math.prod(base.shape[axis + 1 :])
    total = doubled(base).copy().reshape(before, base.shape[axis], after)
    inside = _inside(index.ravel(), base.shape[axis])
    added = doubled(updates).reshape(before, index.size, after)[:, inside]
    where: Any = (slice(None), index.ravel()[inside])
    with np.errstate(all="ignore"):
        np.add.at(total, where, added)
    return rounded(total.reshape(n.shape), n.dtype)


def _gather_gradient(n: Node, d: Node) -> tuple[Node, None]:
    x, index = n.srcs
    return g.scatter_add(g.full_like(x, 0), index, d, n["axis"]), None


def _scatter_gradient(n: Node, d: Node) -> tuple[Node, None, Node]:
    return d, None, g.gather(d, n.srcs[1], n["axis"])


INDEX: tuple[OpRecord, ...] = (
    record(
        "gather",
        OpKind.INDEX,
        "x's slices at `index` along an axis; out of range, negative included, gives 0",
        _gather,
        _gather_gradient,
    ),
    record(
        "scatter_add",
        OpKind.INDEX,
        "base with updates added at `index` along an axis; out of range is ignored; f16 and bf16 "
        "accumulate in f32",
        _scatter_add,
        _scatter_gradient,
    ),
)
