"""Attention as one operator. The compiler finds it in graphs and has templates for it."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.dtypes import DType
from hal.tile.node import Node, Type, rebuild, toposort
from stack import ops as g
from stack.ops.operator import Attrs, OpKind
from stack.ops.rules import need, need_asked
from stack.ops.table import FLOATS, define


def _type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    q, k, v, exponent = srcs
    batch, rank = q.shape[:-2], len(q.shape)
    need(rank >= 2 and all(len(s.shape) == rank for s in srcs), "operands need one rank of 2 on")
    need(all(s.shape[:-2] == batch for s in srcs), "batch axes differ; expand them first")
    fits = (q.shape[-1], k.shape[-1]) == (k.shape[-2], v.shape[-2])
    need(fits, "inner sizes of q and k, or of the weights and v, differ")
    need(exponent.shape == (*q.shape[:-1], k.shape[-1]), "exponents are of the shape of q @ k")
    need(v.dtype in FLOATS and exponent.dtype in FLOATS, "v and the exponents are floats")
    dtype = v.dtype if asked is None else asked.dtype
    need(dtype in (v.dtype, DType.F32), f"the result cannot be {dtype.short}; cast it afterwards")
    return Type((*q.shape[:-1], v.shape[-1]), dtype)


def _decomposed(n: Node) -> Node:
    q, k, v, exponent = n.srcs
    done: dict[Node, Node] = {}
    for x in toposort((exponent,)):
        is_leaf = x.op == "scores"
        done[x] = g.matmul(q, k, x.dtype) if is_leaf else rebuild(x, tuple(done[s] for s in x.srcs))
    x = done[exponent]
    axis = len(x.shape) - 1
    power = g.exp(g.sub(x, g.expand(g.reduce("max", x, axis), x.shape)))
    weights = g.mul(power, g.expand(g.recip(g.reduce("sum", power, axis)), x.shape))
    return g.matmul(g.cast(weights, v.dtype), v, n.dtype)


_SCORES = define(
    "scores",
    OpKind.LEAF,
    FLOATS,
    "stands for q @ k in the exponents of an attention",
    0,
    lambda srcs, attrs, asked: need_asked(asked),
    None,
)
_ATTENTION = define(
    "attention",
    OpKind.CONTRACT,
    FLOATS,
    "softmax(exponents) @ v along the last axis, for q[*B,M,D], k[*B,D,K], v[*B,K,N] and exponents "
    "[*B,M,K] that are an expression over the leaf `scores`, which stands for q @ k",
    4,
    _type,
    None,
    data=(0, 1),
    decompose=_decomposed,
)


def scores(type: Type) -> Node:
    """The leaf of an attention's exponents that stands for q @ k, of this type."""
    return _SCORES(asked=type)


def attention(q: Node, k: Node, v: Node, exponents: Node, dtype: DType) -> Node:
    """softmax(exponents) @ v as `dtype`; `exponents` are made of the one leaf `scores`."""
    return _ATTENTION(q, k, v, exponents, asked=Type((), dtype))
