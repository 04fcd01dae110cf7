"""Matrix products. The compiler's templates lower them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.ops.error import GraphError
from stack.ops.operator import Attrs, NDArray, OpKind
from stack.ops.rules import need
from stack.ops.sharding import Link, Sharding, linear_in
from stack.ops.table import FLOATS, INDEX, define, doubled, rounded


def _matmul(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    a, b = xs
    with np.errstate(all="ignore"):
        return rounded(np.matmul(doubled(a), doubled(b)), n.dtype)


def _gradient(n: Node, d: Node) -> tuple[Node, Node]:
    """Both products run in the operands' element type, as the forward one did. That by a matrix
    which was turned, as a layer's weights are, has its rows and columns in the order of the matrix
    itself: a kernel can then add it to what is there."""
    a, b = n.srcs
    narrow = g.cast(d, a.dtype)
    left = g.matmul(narrow, g.transpose(b))
    if b.op == "permute" and g.transpose(b.srcs[0]) is b:
        return left, g.transpose(g.matmul(g.transpose(narrow), a))
    return left, g.matmul(g.transpose(a), narrow)


def _type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    a, b = srcs
    need(
        len(a.shape) == len(b.shape) >= 2,
        "operands need one rank, at least 2; reshape or expand them",
    )
    need(a.shape[:-2] == b.shape[:-2], "batch axes differ; expand them first")
    if a.shape[-1] != b.shape[-2]:
        raise GraphError(f"inner sizes {a.shape[-1]} and {b.shape[-2]} differ")
    dtype = a.dtype if asked is None else asked.dtype
    wider = dtype is a.dtype.computed_in
    need(dtype is a.dtype or wider, f"the result cannot be {dtype.short}; cast it afterwards")
    return Type((*a.shape[:-1], b.shape[-1]), dtype)


def _links(n: Node) -> list[Link]:
    """Batch axes, rows of a, columns of b, and the axis of the sums."""
    rank = len(n.shape)
    batch = [Link((axis, axis), axis) for axis in range(rank - 2)]
    rows, columns = Link((rank - 2, None), rank - 2), Link((None, rank - 1), rank - 1)
    return [*batch, rows, columns, Link((rank - 1, rank - 2), None, "sum")]


_MATMUL = define(
    "matmul",
    OpKind.CONTRACT,
    FLOATS | INDEX,
    "a[*B,M,K] @ b[*B,K,N]; f16 and bf16 accumulate in f32, rounded once to the result's type",
    2,
    _type,
    _matmul,
    _gradient,
    sharding=Sharding(_links, linear_in((0,), (1,))),
)


def matmul(a: Node, b: Node, dtype: DType | None = None) -> Node:
    """a[*B,M,K] @ b[*B,K,N]; f16 and bf16 accumulate in f32 and may give f32 with `dtype`.

    Other integers than i32 and i64 are multiplied and added in the one that holds them, and may
    give that: the low bits of a sum are those of a sum in the operands' type.
    """
    if a.dtype.is_int and a.dtype is b.dtype and a.dtype not in INDEX:
        wide = DType.I64 if a.dtype.bits > DType.I32.bits else DType.I32
        total = _MATMUL(g.cast(a, wide), g.cast(b, wide))
        return total if dtype is wide else g.cast(total, dtype or a.dtype)
    return _MATMUL(a, b, asked=None if dtype is None else Type((), dtype))
