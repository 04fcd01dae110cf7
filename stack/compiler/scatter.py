"""Scatter-add as a tile kernel: updates go in order, so that the result is always the same."""

from __future__ import annotations

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.values import Grid
from hal.tile.build import add, binary, broadcast, cast, const
from hal.tile.node import Node
from stack.compiler.access import Axis, axis_index
from stack.compiler.emission import Emission
from stack.compiler.ordered import Ordered, blocks, loop_over
from stack.compiler.tiles import Tiles

I64 = DType.I64


def emit_scatter_add(found: Ordered, emission: Emission, info: DeviceInfo) -> Grid:
    """Emit the base, then the updates at their positions; give the launch grid."""
    before, count, after, along = found.groups
    base, position, update = found.exprs
    home = emission.homes[found.root]
    scope, grid = blocks(found.root, before, after, emission, info)
    whole = found.at(home)
    loop_over(scope, along, lambda s: s.store(found.root, whole, s.tile(base)))

    slot = Axis(found.root.shape[found.root["axis"]])
    addressed = home.offset(axis_index([*before, slot, *after]))

    def one(s: Tiles) -> None:
        place = cast(s.tile(position), I64)
        with s.b.when(_inside(place, slot.size)):
            target = Tiles(emission, {slot: place}, s.tile_axes, s)
            old = target.stored(found.root, addressed)
            target.store(found.root, addressed, add(old, broadcast(s.tile(update), s.shape)))

    loop_over(scope, count, one)
    return grid


def _inside(place: Node, size: int) -> Node:
    return binary("and", binary("le", const(0, I64), place), binary("lt", place, size))
