"""A value that is there when another one is: so a graph of interned nodes computes one again."""

from __future__ import annotations

from hal.tile.node import Node, rebuild
from stack import ops as g
from stack.ops import OPS
from stack.ops.operator import OpKind


def behind(x: Node, d: Node) -> Node:
    """The value x, which is there when d is, too: another node, so that nothing that follows from
    it is what follows from x. Where d is not a number, nor is this. A view is one of what it shows,
    behind d: laid out in another order, that would be summed in another one, too."""
    if OPS[x.op].kind is OpKind.MOVEMENT and x.srcs[0].type.size <= x.type.size:
        return rebuild(x, (behind(x.srcs[0], d), *x.srcs[1:]))
    if x.dtype.is_float and x.dtype is d.dtype and x.shape == d.shape:
        return g.where(g.eq(d, d), x, d)
    total = g.reshape(g.reduce("sum", d), ()) if d.shape else d
    is_number = g.broadcast(g.eq(total, total), x.shape)
    if x.dtype.is_float:
        return g.where(is_number, x, g.broadcast(g.cast(total, x.dtype), x.shape))
    return g.where(is_number, x, g.full_like(x, 0))
