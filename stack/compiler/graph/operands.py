"""What a product multiplies, as expressions."""

from __future__ import annotations

from dataclasses import dataclass

from hal.tile.node import Node
from stack.compiler.graph.access import Axis, Split, Store, Want, axis_index
from stack.compiler.graph.cluster import Cluster, Homes, Nest
from stack.compiler.graph.expr import Expr, Walk
from stack.compiler.graph.space import Group, Space, solved


@dataclass(frozen=True, slots=True)
class Operands:
    """A product's operands as expressions over (batch axes, m, k) and (batch axes, k, n)."""

    product: Node
    batch: Group
    m: Axis
    n: Axis
    k: Axis
    a: Expr
    b: Expr


def read_operands(cluster: Cluster, homes: Homes) -> Operands | Store:
    """The operands of a product's cluster, whose batch axes are split as they need, or the operand
    that needs a buffer to be read."""
    product = cluster.roots[0]

    def read(space: Space) -> tuple[Nest, Operands] | Want:
        nest = cluster.over(space, homes)
        if not isinstance(nest, Nest):
            return nest
        batch, (m,), (n,) = space.groups
        k = Axis(product.srcs[0].shape[-1])
        walk = Walk(homes)
        a = operand(walk, product.srcs[0], batch, (m, k))
        b = operand(walk, product.srcs[1], batch, (k, n))
        return walk.first or (nest, Operands(product, batch, m, n, k, a, b))

    found = solved(cluster.nest.space, read)
    if isinstance(found, Store):
        return found
    cluster.nest = found[0]
    return found[1]


def operand(walk: Walk, x: Node, batch: Group, last: Group) -> Expr:
    """An operand's element; it is the operand that is stored where it cannot be read."""
    before = walk.first
    found = walk.operand(x, axis_index([*batch, *last]))
    want = walk.first
    if before is None and want is not None:
        inexpressible = isinstance(want, Split) and want.axis not in batch
        if inexpressible or want == Store():
            walk.first = Store(x)
    return found
