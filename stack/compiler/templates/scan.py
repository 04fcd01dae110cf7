"""Prefix scans as tile kernels."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.dtypes import DType
from hal.core.values import Grid
from hal.tile.build import binary, broadcast, const, reduce, scan, where
from hal.tile.node import Node
from hal.tile.size import divides, is_fixed
from stack.compiler.graph.access import Affine, Axis
from stack.compiler.graph.ordered import Ordered
from stack.compiler.templates.emission import Emission, TileAxis, compute_dtype
from stack.compiler.templates.lanes import blocks, carry_over
from stack.compiler.templates.loops import COMBINE
from stack.compiler.templates.tiles import Tiles
from stack.ops.numeric import identity

I64 = DType.I64


def emit_scan(found: Ordered, emission: Emission) -> Grid:
    """Emit an inclusive scan; give its launch grid."""
    before, _, after = found.groups
    target = found.written[found.root]
    scope, grid = blocks(found.root, before, after, emission)
    if after:
        _across(found, target, scope)
    else:
        _along(found, target, scope)
    return grid


def _across(found: Ordered, target: Affine, block: Tiles) -> None:
    """Every lane has its own total."""
    root, (value,) = found.root, found.exprs

    def step(scope: Tiles, carry: Sequence[Node]) -> Sequence[Node]:
        total = _combine(root, carry[0], broadcast(scope.tile(value), scope.shape))
        scope.store(root, target, total)
        return (total,)

    carry_over(block, found.groups[1], step, (_neutral(root, block.shape),))


def _along(found: Ordered, target: Affine, top: Tiles) -> None:
    """The scanned axis is the vector axis itself: tile by tile, carrying the total."""
    if not found.groups[1]:
        top.store(found.root, target, top.tile(found.exprs[0]))
        return
    *outer, last = found.groups[1]
    lanes = top.emission.lanes(compute_dtype(found.root.dtype))
    width = min(lanes, last.size) if is_fixed(last.size) else lanes

    def row(scope: Tiles, carry: Sequence[Node]) -> Sequence[Node]:
        return _row(found, target, scope, last, width, carry)

    carry_over(top, outer, row, (_neutral(found.root, ()),))


def _row(
    found: Ordered, target: Affine, scope: Tiles, last: Axis, width: int, carry: Sequence[Node]
) -> Sequence[Node]:
    full = last.size - last.size % width

    def whole(i: Node, *carried: Node) -> Sequence[Node]:
        return _tile(found, target, scope, TileAxis(last, i, width), carried)

    done = scope.b.loop(0, full, width, whole, carry)
    if divides(width, last.size):
        return done
    tail = TileAxis(last, const(full, I64), width, const(last.size - full, I64))
    return _tile(found, target, scope, tail, done)


def _tile(
    found: Ordered, target: Affine, scope: Tiles, axis: TileAxis, carry: Sequence[Node]
) -> Sequence[Node]:
    root, (value,) = found.root, found.exprs
    inner = Tiles(scope.emission, {}, (axis,), scope)
    part = broadcast(inner.tile(value), inner.shape)
    if axis.limit is not None:
        part = where(inner.valid(axis), part, _neutral(root, ()))
    inner.store(root, target, _combine(root, carry[0], scan(root["kind"], part, 0)))
    return (_combine(root, carry[0], reduce(root["kind"], part, 0)),)


def _combine(root: Node, a: Node, b: Node) -> Node:
    return binary(COMBINE[root["kind"]], a, b)


def _neutral(root: Node, shape: tuple[int, ...]) -> Node:
    dtype = compute_dtype(root.dtype)
    return const(identity(root["kind"], dtype), dtype, shape)
