"""What a product multiplies, as expressions."""

from __future__ import annotations

from dataclasses import dataclass

from hal.tile.node import Node
from stack.compiler.graph.access import Axis, NeedSplit, NotAffineError, axis_index
from stack.compiler.graph.cluster import Cluster, Homes
from stack.compiler.graph.expr import Expr, Walk
from stack.compiler.graph.space import Space


@dataclass(frozen=True, slots=True)
class Operands:
    """A product's operands as expressions over (batch axes, m, k) and (batch axes, k, n)."""

    product: Node
    batch: list[Axis]
    m: Axis
    n: Axis
    k: Axis
    a: Expr
    b: Expr


def read_operands(cluster: Cluster, homes: Homes) -> Operands:
    """The operands of a product's cluster, whose batch axes are split as they need.

    Raises NotAffineError, with the operand to store, when an operand cannot be read in place.
    """
    while True:
        try:
            return _operands(cluster.roots[0], cluster.nest.space, homes)
        except NeedSplit as need:
            cluster.split(need, homes)


def _operands(product: Node, space: Space, homes: Homes) -> Operands:
    *batch, m, n = space.axes
    k = Axis(product.srcs[0].shape[-1])
    walk = Walk(homes, lambda n, index: homes[n].offset(index))
    left = _operand(walk, product.srcs[0], batch, (m, k))
    return Operands(product, batch, m, n, k, left, _operand(walk, product.srcs[1], batch, (k, n)))


def _operand(walk: Walk, operand: Node, batch: list[Axis], last: tuple[Axis, Axis]) -> Expr:
    try:
        return walk.operand(operand, axis_index([*batch, *last]))
    except NeedSplit as need:
        if need.axis in batch:
            raise
        raise NotAffineError(operand) from need
    except NotAffineError as error:
        raise NotAffineError(error.view or operand) from error
