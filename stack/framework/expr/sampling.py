"""Samples of distributions from numbers that were drawn before: the same for every source of
them."""

from __future__ import annotations

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.expr import elementwise as e
from stack.framework.expr import index, movement
from stack.framework.expr import reduce as r


def gamma(concentration: Node, normal: Node, level: Node, power: Node) -> Node:
    """Samples of rate 1 by rejection: Marsaglia and Tsang, A simple method for generating gamma
    variables, 2000; below a concentration of 1 from that of one more, as they say.

    `normal` and `level` have a first axis of tries, of which each is refused in at most 5 of 100
    cases: normal numbers, and logarithms of numbers in (0, 1]. `power` are numbers in (0, 1].
    """
    least = concentration
    d = e.sub(e.where(e.lt(least, 1), e.add(least, 1), least), 1 / 3)
    v = e.pow(e.add(1, e.div(normal, g.sqrt(e.mul(9, d)))), 3)
    safe = e.where(e.gt(v, 0), v, 1.0)
    bound = e.add(e.mul(0.5, e.square(normal)), e.mul(d, e.add(e.sub(1, safe), g.log(safe))))
    taken = g.and_(e.gt(v, 0), e.lt(level, bound))
    found = e.mul(d, first_of(safe, taken))
    return e.where(e.lt(least, 1), e.mul(found, e.pow(power, e.div(1, least))), found)


def first_of(values: Node, taken: Node) -> Node:
    """Of each element the first of its tries, along axis 0, that is taken."""
    at = r.argmax(g.cast(taken, DType.I32), 0, keepdim=True)
    return movement.squeeze(index.gather(values, 0, at), 0)
