"""What kernels share whose elements depend on their order: prefix scans and scatters.

Rows and blocks of neighbouring lanes run in parallel; the ordered axis is a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from hal.core.values import Grid
from hal.tile.build import mul, program_id, sub
from hal.tile.node import Node
from hal.tile.size import divides, hint
from stack.compiler.graph.access import Axis
from stack.compiler.graph.space import Group
from stack.compiler.templates.blocking import ceil_div
from stack.compiler.templates.emission import Emission, TileAxis, compute_dtype
from stack.compiler.templates.instances import decompose
from stack.compiler.templates.product import divided
from stack.compiler.templates.tiles import Tiles

UNROLL = 4
"""Vector registers in a block of lanes."""


def blocks(
    root: Node, before: Group, after: Group, emission: Emission, number: Node | None = None
) -> tuple[Tiles, Grid]:
    """The scope of one instance, which is a row and a block of the last of the axes after, and the
    grid of all of them. Its number is the program's, if no other is given."""
    number = program_id(0) if number is None else number
    if not after:
        return Tiles(emission, decompose(number, before)), (prod(a.size for a in before), 1, 1)
    rows, lane = [*before, *after[:-1]], after[-1]
    lanes = emission.lanes(compute_dtype(root.dtype))
    width = min(lanes if emission.loops.transfers else lanes * UNROLL, hint(lane.size))
    chunks = ceil_div(lane.size, width)
    row, chunk = divided(number, chunks)
    base = mul(chunk, width)
    limit = None if divides(width, lane.size) else sub(lane.size, base)
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
