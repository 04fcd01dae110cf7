"""What a product multiplies, as expressions.

Rows, columns and depth of a product may each be several loop axes: an operand that is looked at
through windows, edges, crops or another order of axes is read where it lies.
"""

from __future__ import annotations

from hal.core.facts import dataclass
from hal.tile.node import Node
from stack.compiler.graph.access import Axis, Materialise, Split, Want, axis_index
from stack.compiler.graph.cluster import Cluster, Homes, Nest
from stack.compiler.graph.expr import MOVEMENT, Expr, Read, Walk
from stack.compiler.graph.roots import base
from stack.compiler.graph.space import Group, Space, solved

ORDER = frozenset({"reshape", "permute", "contiguous", "cast"})
"""Operations that only bring all elements into another order."""


@dataclass(frozen=True, slots=True)
class Operands:
    """A product's operands as expressions over (batch, m, k) and (batch, k, n), each some axes."""

    product: Node
    batch: Group
    m: Group
    n: Group
    k: Group
    a: Expr
    b: Expr
    longer: tuple[Axis, Read] | None = None
    """A over an axis in the place of the last of its rows' that is longer: what is behind these may
    be read, too, and lies in the same buffer."""


def read_operands(cluster: Cluster, homes: Homes) -> Operands | Materialise:
    """The operands of a product's cluster, whose axes are split as they need, or the operand that
    needs a buffer to be read."""
    if cluster.read is not None and cluster.read[0] is cluster.nest:
        known: Operands = cluster.read[1]
        return known
    product = cluster.roots[0]
    left, right = product.srcs
    nest = cluster.nest.space
    free = [not is_reordered(x, homes) for x in (left, right)]

    def read(space: Space) -> tuple[Nest, Operands] | Want:
        batch, m, n, k = space.groups
        over = cluster.over(space.of_groups(3), homes)
        if not isinstance(over, Nest):
            return over
        walk = Walk(homes)
        every = batch + m + n + k
        a = operand(walk, left, (*batch, *m, *k), every if free[0] else batch)
        b = operand(walk, right, (*batch, *k, *n), every if free[1] else batch)
        return walk.first or (over, Operands(product, batch, m, n, k, a, b))

    found = solved(Space.over((*nest.groups, (Axis(left.shape[-1]),))), read)
    if isinstance(found, Materialise):
        is_operand = any(found.node is x for x in product.srcs)
        return Materialise(_below_turn(found.node, homes)) if is_operand else found
    cluster.nest, operands = cluster.read = found
    return operands


def _below_turn(x: Node, homes: Homes) -> Node:
    """Of a turned matrix what it is turned of, if that is stored nowhere yet: products read both
    ways, and one over the rows of a batch is known for that, so that its sums are those of halves
    (pairs.py)."""
    *batch, m, k = range(len(x.shape))
    if x.op == "permute" and x["perm"] == (*batch, k, m):
        below = base(x.srcs[0])
        if below not in homes:
            return below
    return x


def operand(walk: Walk, x: Node, axes: Group, loops: Group) -> Expr:
    """An operand's element over some axes, of which `loops` can be split; it is the operand that is
    stored where it cannot be read."""
    before = walk.first
    found = walk.operand(x, axis_index(axes))
    want = walk.first
    if before is None and want is not None:
        fixed = isinstance(want, Split) and want.axis not in loops
        if fixed or want == Materialise():
            walk.first = Materialise(x)
    return found


def is_reordered(x: Node, homes: Homes) -> bool:
    """Whether an operand is a computed value in another order: stored in that order by the kernel
    that computes it, it is cheaper to read."""
    while x not in homes and (x.op in MOVEMENT or x.op == "cast"):
        if x.op not in ORDER:
            return False
        x = x.srcs[0]
    return x.op != "input"
