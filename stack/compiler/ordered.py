"""Kernels whose elements depend on their order: prefix scans and scatter-add."""

from __future__ import annotations

from math import prod

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.values import Grid
from hal.tile.build import add, binary, broadcast, cast, const, mul, reduce, scan, where
from hal.tile.node import Node
from stack.compiler.access import Affine, Axis, Index, NeedSplit, axis_index
from stack.compiler.expr import Expr, Walk
from stack.compiler.loops import COMBINE, decompose, instance
from stack.compiler.prepare import identity
from stack.compiler.tiles import Emission, TileAxis, Tiles, compute_dtype

I64 = DType.I64


def _walked(
    groups: list[list[Axis]], walk: Walk, targets: list[tuple[Node, list[int]]]
) -> list[Expr]:
    """Each target's expression over its groups of axes, splitting axes in place as views need."""
    while True:
        try:
            return [
                walk.operand(n, axis_index(a for g in chosen for a in groups[g]))
                for n, chosen in targets
            ]
        except NeedSplit as need:
            group = next(g for g in groups if need.axis in g)
            at = group.index(need.axis)
            group[at : at + 1] = [Axis(need.axis.size // need.inner), Axis(need.inner)]


def _at(groups: list[list[Axis]], shape: tuple[int, ...]) -> Affine:
    """The flat element of a root whose dimensions are the groups."""
    axes = [a for g in groups for a in g]
    return Index(tuple(a.size for a in axes), tuple(Affine(0, ((a, 1),)) for a in axes)).flat()


def _nest(scope: Tiles, emission: Emission, axes: list[Axis], body: object) -> None:
    def step(i: Node) -> None:
        _nest(Tiles(emission, {axes[0]: i}, scope.tile_axes, scope), emission, axes[1:], body)

    if axes:
        emission.b.loop(0, axes[0].size, 1, step)
    else:
        body(scope)  # type: ignore[operator]


def _lane_tiles(
    post: list[Axis], info: DeviceInfo, dtype: DType
) -> tuple[list[Axis], Axis | None, int]:
    """(axes outside the vector axis, the vector axis, its tile's width)."""
    if not post or post[-1].size == 1:
        return post, None, 1
    lanes = max(1, info.limits.vector_nbytes // max(dtype.nbytes, 1)) * 4
    return post[:-1], post[-1], min(lanes, post[-1].size)


def emit_scan(root: Node, emission: Emission, info: DeviceInfo) -> Grid:
    """Inclusive scan along an axis: rows and blocks of lanes in parallel, the axis in order."""
    axis: int = root["axis"]
    (x,) = root.srcs
    sizes = (prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :]))
    groups = [[Axis(s)] if s > 1 else [] for s in sizes]
    walk = Walk(emission.homes, lambda n, index: emission.homes[n].offset(index))
    (value,) = _walked(groups, walk, [(x, [0, 1, 2])])
    target = emission.homes[root].offset(axis_index(a for g in groups for a in g))
    before, along, after = groups
    outside, lane, width = _lane_tiles(after, info, compute_dtype(root.dtype))
    rows = [*before, *outside]
    chunks = 1 if lane is None else -(-lane.size // width)
    row, chunk = instance(chunks)
    top = Tiles(emission, decompose(row, rows))
    grid = (chunks * prod(a.size for a in rows), 1, 1)
    dtype, kind = compute_dtype(root.dtype), root["kind"]
    if lane is None:
        _scan_row(root, value, target, top, along, emission, info)
        return grid
    base = mul(chunk, width)
    limit = None if lane.size % width == 0 else binary("sub", const(lane.size, I64), base)
    block = Tiles(emission, {}, (TileAxis(lane, base, width, limit),), top)

    def walk_along(scope: Tiles, axes: list[Axis], carry: Node) -> Node:
        if not axes:
            total = binary(COMBINE[kind], carry, broadcast(scope.tile(value), scope.shape))
            scope.store(root, target, total)
            return total

        def step(i: Node, carried: Node) -> tuple[Node]:
            return (
                walk_along(
                    Tiles(emission, {axes[0]: i}, scope.tile_axes, scope), axes[1:], carried
                ),
            )

        return emission.b.loop(0, axes[0].size, 1, step, (carry,))[0]

    walk_along(block, along, const(identity(kind, dtype), dtype, (width,)))
    return grid


def _scan_row(
    root: Node,
    value: Expr,
    target: Affine,
    top: Tiles,
    along: list[Axis],
    emission: Emission,
    info: DeviceInfo,
) -> None:
    """Scan along the vector axis itself: tile by tile, carrying the total."""
    dtype, kind = compute_dtype(root.dtype), root["kind"]
    neutral = const(identity(kind, dtype), dtype)
    if not along:
        top.store(root, target, top.tile(value))
        return
    *outer, last = along
    width = min(max(1, info.limits.vector_nbytes // dtype.nbytes), last.size)
    full = last.size - last.size % width

    def block(scope: Tiles, i: Node, limit: Node | None, carry: Node) -> Node:
        inner = Tiles(emission, {}, (TileAxis(last, i, width, limit),), scope)
        part = broadcast(inner.tile(value), inner.shape)
        if limit is not None:
            part = where(inner.valid(inner.tile_axes[0]), part, neutral)
        inner.store(root, target, binary(COMBINE[kind], carry, scan(kind, part, 0)))
        return binary(COMBINE[kind], carry, reduce(kind, part, 0))

    def rows(scope: Tiles, axes: list[Axis], carry: Node) -> Node:
        if axes:
            return emission.b.loop(
                0,
                axes[0].size,
                1,
                lambda i, c: (rows(Tiles(emission, {axes[0]: i}, (), scope), axes[1:], c),),
                (carry,),
            )[0]
        done = emission.b.loop(0, full, width, lambda i, c: (block(scope, i, None, c),), (carry,))[
            0
        ]
        if full < last.size:
            done = block(scope, const(full, I64), const(last.size - full, I64), done)
        return done

    rows(top, outer, neutral)


def emit_scatter_add(root: Node, emission: Emission, info: DeviceInfo) -> Grid:
    """base + updates at indices: rows and blocks of lanes in parallel, updates in order, so that it
    is deterministic."""
    start, where_to, updates = root.srcs
    axis: int = root["axis"]
    size = root.shape[axis]
    sizes = (prod(root.shape[:axis]), where_to.type.size, prod(root.shape[axis + 1 :]), size)
    groups = [[Axis(s)] if s > 1 else [] for s in sizes]
    walk = Walk(emission.homes, lambda n, index: emission.homes[n].offset(index))
    first, position, update = _walked(
        groups, walk, [(start, [0, 3, 2]), (where_to, [1]), (updates, [0, 1, 2])]
    )
    before, count, after, along = groups
    outside, lane, width = _lane_tiles(after, info, compute_dtype(root.dtype))
    rows = [*before, *outside]
    chunks = 1 if lane is None else -(-lane.size // width)
    row, chunk = instance(chunks)
    block = top = Tiles(emission, decompose(row, rows))
    if lane is not None:
        base = mul(chunk, width)
        limit = None if lane.size % width == 0 else binary("sub", const(lane.size, I64), base)
        block = Tiles(emission, {}, (TileAxis(lane, base, width, limit),), top)
    whole = _at([before, along, after], root.shape)
    _nest(block, emission, along, lambda s: s.store(root, whole, s.tile(first)))
    slot = Axis(size)
    addressed = _at([before, [slot], after], root.shape)

    def one(scope: Tiles) -> None:
        place = cast(scope.tile(position), I64)
        inside = binary("and", binary("le", const(0, I64), place), binary("lt", place, size))
        target = Tiles(emission, {slot: place}, scope.tile_axes, scope)
        with emission.b.when(inside):
            memory, begin = emission.memory(emission.homes[root], addressed)
            at = target.position(addressed.shift(-begin))
            limits = tuple(t.limit for t in target.tile_axes)
            old = emission.b.load(memory, at.scalar, target.shape, at.steps, limits)
            target.store(root, addressed, add(old, broadcast(target.tile(update), target.shape)))

    _nest(block, emission, count, one)
    return (chunks * prod(a.size for a in rows), 1, 1)
