"""What kernels share whose elements depend on their order: prefix scans and scatter-add.

Rows and blocks of neighbouring lanes run in parallel; the ordered axis is a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from hal.core.description import DeviceInfo
from hal.core.values import Grid
from hal.tile.build import mul, sub
from hal.tile.node import Node
from stack.compiler.access import Affine, Axis, NeedSplit, axis_index
from stack.compiler.emission import Emission, TileAxis, compute_dtype
from stack.compiler.expr import Expr, Walk
from stack.compiler.instances import decompose, instance
from stack.compiler.lanes import by_transfers, lanes_for
from stack.compiler.roots import Home
from stack.compiler.tiles import Tiles

UNROLL = 4
"""Vector registers in a block of lanes."""

Group = list[Axis]
"""The loop axes of one dimension, outer first; none for a dimension of size 1."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """A root with its dimensions as loop axes, and what it is computed from over them.

    A scan has the groups before, along and after its axis and reads its operand; a scatter-add has
    before, positions, after and its axis and reads its base, the positions and the updates.
    """

    root: Node
    groups: tuple[Group, ...]
    exprs: tuple[Expr, ...]

    def at(self, home: Home) -> Affine:
        """Where the root's elements are in its home, over the axes of a scan or the base's."""
        chosen = (0, 1, 2) if self.root.op == "scan" else (0, 3, 2)
        return home.offset(axis_index(a for g in chosen for a in self.groups[g]))


def read_ordered(root: Node, homes: Mapping[Node, Home]) -> Ordered:
    """Raises NotAffineError, with the view to store, when a view cannot be read in place."""
    sizes, operands = _DIMENSIONS[root.op](root)
    groups = tuple([Axis(s)] if s > 1 else [] for s in sizes)
    walk = Walk(homes, lambda n, index: homes[n].offset(index))
    while True:
        try:
            return Ordered(root, groups, tuple(_operand(walk, groups, *o) for o in operands))
        except NeedSplit as need:
            group = next(g for g in groups if need.axis in g)
            at = group.index(need.axis)
            group[at : at + 1] = [Axis(need.axis.size // need.inner), Axis(need.inner)]


def _operand(walk: Walk, groups: Sequence[Group], n: Node, chosen: tuple[int, ...]) -> Expr:
    return walk.operand(n, axis_index(a for g in chosen for a in groups[g]))


Dimensions = tuple[tuple[int, ...], tuple[tuple[Node, tuple[int, ...]], ...]]
"""The sizes of the groups, and each operand with the groups that it has."""


def _scan(root: Node) -> Dimensions:
    shape, axis = root.shape, root["axis"]
    sizes = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
    return sizes, ((root.srcs[0], (0, 1, 2)),)


def _scatter_add(root: Node) -> Dimensions:
    shape, axis = root.shape, root["axis"]
    base, positions, updates = root.srcs
    count = positions.type.size
    sizes = (prod(shape[:axis]), count, prod(shape[axis + 1 :]), shape[axis])
    return sizes, ((base, (0, 3, 2)), (positions, (1,)), (updates, (0, 1, 2)))


_DIMENSIONS: Mapping[str, Callable[[Node], Dimensions]] = {
    "scan": _scan,
    "scatter_add": _scatter_add,
}


def blocks(
    root: Node, before: Group, after: Group, emission: Emission, info: DeviceInfo
) -> tuple[Tiles, Grid]:
    """The scope of one instance, which is a row and a block of the last of the axes after, and the
    grid of all of them."""
    if not after:
        row, _ = instance(1)
        return Tiles(emission, decompose(row, before)), (prod(a.size for a in before), 1, 1)
    rows, lane = [*before, *after[:-1]], after[-1]
    lanes = lanes_for(info, compute_dtype(root.dtype).nbytes)
    width = min(lanes if by_transfers(info) else lanes * UNROLL, lane.size)
    chunks = -(-lane.size // width)
    row, chunk = instance(chunks)
    base = mul(chunk, width)
    limit = None if lane.size % width == 0 else sub(lane.size, base)
    top = Tiles(emission, decompose(row, rows))
    block = Tiles(emission, {}, (TileAxis(lane, base, width, limit),), top)
    return block, (chunks * prod(a.size for a in rows), 1, 1)


def loop_over(scope: Tiles, axes: Sequence[Axis], body: Callable[[Tiles], None]) -> None:
    """body(scope) for every step of the axes, in order."""

    def step(inner: Tiles, carried: Sequence[Node]) -> Sequence[Node]:
        body(inner)
        return carried

    carry_over(scope, axes, step, ())


def carry_over(
    scope: Tiles,
    axes: Sequence[Axis],
    body: Callable[[Tiles, Sequence[Node]], Sequence[Node]],
    carry: Sequence[Node],
) -> Sequence[Node]:
    """carry = body(scope, carry) for every step of the axes, in order; gives the last one."""
    if not axes:
        return body(scope, carry)

    def step(i: Node, *carried: Node) -> Sequence[Node]:
        inner = Tiles(scope.emission, {axes[0]: i}, scope.tile_axes, scope)
        return carry_over(inner, axes[1:], body, carried)

    return scope.b.loop(0, axes[0].size, 1, step, carry)
