"""What is computed along an axis in order: prefix scans and scatters, as expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from hal.core.facts import dataclass
from hal.tile.node import Node
from hal.tile.size import equal
from stack.compiler.graph.access import Affine, Axis, Materialise, Want, axis_index
from stack.compiler.graph.cluster import Moved, moved_from
from stack.compiler.graph.expr import Expr, Walk
from stack.compiler.graph.roots import Home
from stack.compiler.graph.space import Group, Space, solved


@dataclass(frozen=True, slots=True)
class Ordered:
    """A root with its dimensions as loop axes, and what it is computed from over them.

    A scan has the groups before, along and after its axis and reads its operand; a scatter has
    before, positions, after and its axis and reads its base, the positions and the updates.
    """

    root: Node
    groups: tuple[Group, ...]
    exprs: tuple[Expr, ...]
    written: Mapping[Node, Affine]
    """Where the element of the root is, over the axes of a scan or the base's: in its home, and in
    those of the roots that are its elements in another order."""

    def addressed(self, root: Node, slot: Axis) -> Affine | None:
        """The same of a root of a scatter, along whose axis `slot` has the position; None where
        that is not even."""
        at, along = self.written[root], self.groups[3]
        factors = [at.coefficient(a) for a in along]
        pairs = zip(factors, factors[1:], along[1:], strict=False)
        if not all(equal(outer, inner * axis.size) for outer, inner, axis in pairs):
            return None
        rest = Affine(at.const, tuple((a, c) for a, c in at.terms if a not in along))
        return rest.plus(Affine(0, ((slot, factors[-1]),))) if factors else rest


def read_ordered(roots: Sequence[Node], homes: Mapping[Node, Home]) -> Ordered | Materialise:
    """The dimensions of the first root as loop axes, split as views need, or the view that needs a
    buffer. The other roots are its elements in another order."""
    root = roots[0]
    sizes, operands = _DIMENSIONS[root.op](root)

    def read(space: Space) -> Ordered | Want:
        walk = Walk(homes)
        exprs = tuple(
            walk.operand(n, axis_index(a for g in chosen for a in space.groups[g]))
            for n, chosen in operands
        )
        own = (0, 1, 2) if root.op == "scan" else (0, 3, 2)
        at = axis_index(a for g in own for a in space.groups[g])
        written = {}
        for n in roots:
            moved = Moved(*moved_from(n, (root,).__contains__, "scatter"))
            index, _ = moved.index(at, walk.regroup)
            written[n] = homes[n].offset(index, walk.regroup)
        return walk.first or Ordered(root, space.groups, exprs, written)

    return solved(Space.over((Axis(s),) if s > 1 else () for s in sizes), read)


Dimensions = tuple[tuple[int, ...], tuple[tuple[Node, tuple[int, ...]], ...]]
"""The sizes of the groups, and each operand with the groups that it has."""


def _scan(root: Node) -> Dimensions:
    shape, axis = root.shape, root["axis"]
    sizes = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
    return sizes, ((root.srcs[0], (0, 1, 2)),)


def _scatter(root: Node) -> Dimensions:
    shape, axis = root.shape, root["axis"]
    base, positions, updates = root.srcs
    before = prod(shape[:axis])
    count = positions.type.size // (before if root["batch"] else 1)
    sizes = (before, count, prod(shape[axis + 1 :]), shape[axis])
    places = (0, 1) if root["batch"] else (1,)
    return sizes, ((base, (0, 3, 2)), (positions, places), (updates, (0, 1, 2)))


_DIMENSIONS: Mapping[str, Callable[[Node], Dimensions]] = {
    "scan": _scan,
    "scatter": _scatter,
}
