"""Attention as one operator. The compiler finds it in graphs and has templates for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

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


def _saved_type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    q, _, v, exponent, factor = srcs
    m, n = _type(srcs[:4], attrs, None).shape[-2:]
    need(factor.shape in ((), exponent.shape), "factors are one number or of the shape of q @ k")
    return Type((*q.shape[:-2], m * n + 2 * m), v.dtype.computed_in)


def _gradients_type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    q, k, v, given, exponent, by_scores, weights = srcs
    out = _type((q, k, v, exponent), attrs, None)
    need(given.shape == out.shape, f"the derivative by the result is of its shape, {out.shape}")
    need(by_scores.shape == weights.shape == exponent.shape, "derivatives are of q @ k's shape")
    need(attrs["parts"] > 0, "there is one part at least")
    m, d, keys, n = *q.shape[-2:], *v.shape[-2:]
    size = m * d + attrs["parts"] * keys * (d + n)
    return Type((*q.shape[:-2], size), v.dtype.computed_in)


SEALED = frozenset({"attention", "attention_saved", "attention_gradients"})
"""Operators whose operands may be expressions over leaves of their own."""

LEAVES = frozenset({"scores", "score_gradients"})


def inside(exprs: Sequence[Node]) -> list[Node]:
    """The nodes of expressions over leaves, each after its sources, without what is inside of
    others."""
    return list(toposort(exprs, lambda n: () if n.op in SEALED else n.srcs))


def expressions(n: Node) -> tuple[Node, ...]:
    """Those of an attention's sources that are expressions over leaves: exponents first."""
    return n.srcs[4 if n.op == "attention_gradients" else 3 :]


def over_leaves(exprs: Sequence[Node]) -> dict[Node, None]:
    """What of an attention's expressions is computed from scores.

    Below the expressions of a gradient lies all that came before it, so what is known of a node is
    kept, and what reads no scores is not gone through again.
    """

    def below(n: Node) -> tuple[Node, ...]:
        return () if n.op in SEALED or _reads_scores.get(n) is False else n.srcs

    found: dict[Node, None] = {}
    for n in toposort(exprs, below):
        reads = n.op in LEAVES or any(s in found for s in below(n))
        _reads_scores[n] = reads
        if reads:
            found[n] = None
    return found


_reads_scores: WeakKeyDictionary[Node, bool] = WeakKeyDictionary()
"""Whether a node is computed from scores."""


def _filled(exprs: Sequence[Node], leaves: Mapping[str, Node]) -> list[Node]:
    """The expressions with values for leaves, in the type of each leaf."""
    done: dict[Node, Node] = {}
    for x in inside(exprs):
        if x.op in leaves:
            done[x] = g.cast(leaves[x.op], x.dtype)
        elif x.op in SEALED:
            done[x] = x
        else:
            done[x] = rebuild(x, tuple(done[s] for s in x.srcs))
    return [done[x] for x in exprs]


def _softmax(x: Node) -> tuple[Node, Node, Node]:
    """exp(x - its maximum) along the last axis, the maximum, and the sum."""
    axis = len(x.shape) - 1
    most = g.reduce("max", x, axis)
    power = g.exp(g.sub(x, g.expand(most, x.shape)))
    return power, most, g.reduce("sum", power, axis)


def _decomposed(n: Node) -> Node:
    q, k, v, exponent = n.srcs
    leaf = next(x for x in inside((exponent,)) if x.op == "scores")
    (x,) = _filled((exponent,), {"scores": g.matmul(q, k, leaf.dtype)})
    power, _, total = _softmax(x)
    weights = g.mul(power, g.expand(g.recip(total), x.shape))
    return g.matmul(g.cast(weights, v.dtype), v, n.dtype)


def _saved_decomposed(n: Node) -> Node:
    q, k, v, exponent, factor = n.srcs
    scores = g.matmul(q, k, exponent.dtype)
    x, by = _filled((exponent, factor), {"scores": scores})
    power, most, total = _softmax(x)
    weights = g.mul(g.mul(power, g.expand(g.recip(total), x.shape)), g.broadcast(by, x.shape))
    parts = (g.matmul(weights, g.cast(v, weights.dtype)), most, total)
    return _flat([g.cast(x, n.dtype) for x in parts])


def _gradients_decomposed(n: Node) -> Node:
    q, k, v, given, exponent, by_scores, weights = n.srcs
    leaves = {
        "scores": g.matmul(q, k, exponent.dtype),
        "score_gradients": g.matmul(given, g.transpose(v), exponent.dtype),
    }
    made, used = _filled((by_scores, weights), leaves)
    q, k, v, given, made, used = (g.cast(x, n.dtype) for x in (q, k, v, given, made, used))
    found = [
        g.matmul(made, g.transpose(k)),
        g.matmul(g.transpose(made), q),
        g.matmul(g.transpose(used), given),
    ]
    zeros = [g.full_like(x, 0) for x in found[1:]] * (n["parts"] - 1)
    return _flat([*found, *zeros])


def _flat(parts: Sequence[Node]) -> Node:
    """The last two axes of all parts as one, one part after the other."""
    flat = [g.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1])) for x in parts]
    return g.concat(flat, len(flat[0].shape) - 1)


_SCORES = define(
    "scores",
    OpKind.LEAF,
    FLOATS,
    "stands for q @ k in the exponents of an attention",
    0,
    lambda srcs, attrs, asked: need_asked(asked),
    None,
)
_SCORE_GRADIENTS = define(
    "score_gradients",
    OpKind.LEAF,
    FLOATS,
    "stands for the derivatives by an attention's weights in its gradients",
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
_SAVED = define(
    "attention_saved",
    OpKind.CONTRACT,
    FLOATS,
    "as attention, with the weights multiplied by factors over the same leaf; with the result, one "
    "after the other along the last axis, are the greatest exponent of each row and the sum of "
    "exp(exponent - greatest), of which gradients compute the weights again",
    5,
    _saved_type,
    None,
    data=(0, 1),
    decompose=_saved_decomposed,
)
_GRADIENTS = define(
    "attention_gradients",
    OpKind.CONTRACT,
    FLOATS,
    "of q[*B,M,D], k[*B,D,K], v[*B,K,N], the derivative given[*B,M,N], exponents, and expressions "
    "by_scores and weights over the leaves `scores` and `score_gradients` (given @ v turned), both "
    "0 where an exponent is minus infinity: by_scores @ k turned, then, in `parts` parts that are "
    "to be added, by_scores turned @ q and weights turned @ given, one after the other along the "
    "last axis",
    7,
    _gradients_type,
    None,
    data=(0, 1),
    decompose=_gradients_decomposed,
    attrs=frozenset({"parts"}),
)


def scores(type: Type) -> Node:
    """The leaf of an attention's exponents that stands for q @ k, of this type."""
    return _SCORES(asked=type)


def attention(q: Node, k: Node, v: Node, exponents: Node, dtype: DType) -> Node:
    """softmax(exponents) @ v as `dtype`; `exponents` are made of the one leaf `scores`."""
    return _ATTENTION(q, k, v, exponents, asked=Type((), dtype))


def score_gradients(type: Type) -> Node:
    """The leaf of an attention's gradients that stands for given @ v turned, of this type."""
    return _SCORE_GRADIENTS(asked=type)


def attention_saved(q: Node, k: Node, v: Node, exponents: Node, factors: Node) -> Node:
    """The attention, flat, and what its gradients need of each row; see the operator's meaning."""
    return _SAVED(q, k, v, exponents, factors)


def attention_gradients(
    q: Node,
    k: Node,
    v: Node,
    given: Node,
    exponents: Node,
    by_scores: Node,
    weights: Node,
    parts: int,
) -> Node:
    """The derivatives by q, k turned and v, flat; see the operator's meaning."""
    return _GRADIENTS(q, k, v, given, exponents, by_scores, weights, parts=parts)
