"""What is computed along an axis in order: prefix scans and scatters, as expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from hal.core.facts import dataclass
from hal.tile.node import Node
from stack.compiler.graph.access import Affine, Axis, Materialise, Want, axis_index
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

    def at(self, home: Home) -> Affine:
        """Where the root's elements are in its home, over the axes of a scan or the base's."""
        chosen = (0, 1, 2) if self.root.op == "scan" else (0, 3, 2)
        return home.offset(axis_index(a for g in chosen for a in self.groups[g]))


def read_ordered(root: Node, homes: Mapping[Node, Home]) -> Ordered | Materialise:
    """The dimensions as loop axes, split as views need, or the view that needs a buffer."""
    sizes, operands = _DIMENSIONS[root.op](root)

    def read(space: Space) -> Ordered | Want:
        walk = Walk(homes)
        exprs = tuple(
            walk.operand(n, axis_index(a for g in chosen for a in space.groups[g]))
            for n, chosen in operands
        )
        return walk.first or Ordered(root, space.groups, exprs)

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
