"""Small pieces of networks as graphs."""

from __future__ import annotations

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from hal.tile.numeric import NUMPY
from stack import ops as g

F = DType.F32


def source(slot: int, *shape: int, dtype: DType = F) -> Node:
    return g.input(slot, Type(shape, dtype))


def arrays(*nodes: Node) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=n.shape).astype(NUMPY[n.dtype]) for n in nodes]


def grown(x: Node, shape: tuple[int, ...]) -> Node:
    return g.expand(g.reshape(x, (1,) * (len(shape) - len(x.shape)) + x.shape), shape)


def softmax(x: Node) -> Node:
    last = len(x.shape) - 1
    e = g.exp(g.sub(x, g.expand(g.reduce("max", x, (last,)), x.shape)))
    return g.div(e, g.expand(g.reduce("sum", e, (last,)), x.shape))


def layer_norm(x: Node) -> tuple[Node, Node]:
    """(normalised, reciprocal deviation)"""
    rows, width = x.shape
    inverse = g.full((rows, 1), 1 / width, F)
    centred = g.sub(x, g.expand(g.mul(g.reduce("sum", x, (1,)), inverse), x.shape))
    variance = g.mul(g.reduce("sum", g.mul(centred, centred), (1,)), inverse)
    deviation = g.rsqrt(g.add(variance, g.full((rows, 1), 1e-5, F)))
    return g.mul(centred, g.expand(deviation, x.shape)), deviation


def attention(x: Node, w: Node, bias: Node, heads: int, batch: int) -> Node:
    rows, width = x.shape
    t, d = rows // batch, width // heads
    qkv = g.matmul(x, g.permute(w, (1, 0)))
    qkv = g.reshape(g.add(qkv, grown(bias, qkv.shape)), (batch, t, 3, heads, d))

    def part(i: int) -> Node:
        cut = g.slice(qkv, (0, 0, i, 0, 0), (batch, t, i + 1, heads, d), (1,) * 5)
        return g.permute(g.reshape(cut, (batch, t, heads, d)), (0, 2, 1, 3))

    q, k, v = map(part, range(3))
    scores = g.matmul(q, g.permute(k, (0, 1, 3, 2)))
    row = g.expand(g.reshape(g.arange(t), (1, 1, t, 1)), scores.shape)
    column = g.expand(g.reshape(g.arange(t), (1, 1, 1, t)), scores.shape)
    masked = g.where(g.lt(row, column), g.full(scores.shape, -1e30, F), scores)
    mixed = g.matmul(softmax(masked), v)
    return g.reshape(g.permute(mixed, (0, 2, 1, 3)), (rows, width))


def gelu_of_product(x: Node, w: Node, bias: Node) -> Node:
    """gelu(x @ w + bias), gelu by its tanh approximation."""
    h = g.matmul(x, w)
    h = g.add(h, grown(bias, h.shape))

    def of(value: float) -> Node:
        return g.full_like(h, value)

    cube = g.mul(h, g.mul(h, h))
    inner = g.mul(of(0.7978845608028654), g.add(h, g.mul(of(0.044715), cube)))
    return g.mul(g.mul(of(0.5), h), g.add(of(1), g.tanh(inner)))


def causal_scores(q: Node, k: Node) -> Node:
    """q @ k transposed, scaled, with what is ahead of a row masked."""
    *_, t, d = q.shape
    scores = g.matmul(q, g.transpose(k))
    scores = g.mul(scores, g.full_like(scores, d**-0.5))
    row = g.expand(g.reshape(g.arange(t), (1, 1, t, 1)), scores.shape)
    column = g.expand(g.reshape(g.arange(t), (1, 1, 1, t)), scores.shape)
    return g.where(g.lt(row, column), g.full_like(scores, -1e30), scores)


def adamw(p: Node, m: Node, v: Node, gradient: Node, rate: Node) -> tuple[Node, Node, Node]:
    """(parameter, first moment, second moment) after a step."""

    def of(value: float) -> Node:
        return g.full_like(p, value)

    first = g.add(g.mul(m, of(0.9)), g.mul(gradient, of(0.1)))
    second = g.add(g.mul(v, of(0.99)), g.mul(g.mul(gradient, gradient), of(0.01)))
    step = g.div(first, g.add(g.sqrt(second), of(1e-8)))
    decayed = g.add(step, g.mul(p, of(0.1)))
    return g.sub(p, g.mul(grown(rate, p.shape), decayed)), first, second
