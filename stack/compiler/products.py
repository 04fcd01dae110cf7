"""A matmul cluster: the blocked template with fused operands, and an epilogue of everything that
joined it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from hal.core.description import DeviceInfo
from hal.core.values import Grid
from hal.tile.build import Builder, broadcast, where
from hal.tile.node import Node
from stack.compiler.access import Axis, NeedSplit, NotAffineError, axis_index
from stack.compiler.blocking import MatmulShape
from stack.compiler.cluster import Cluster, Homes
from stack.compiler.edges import Limits
from stack.compiler.emission import Emission, TileAxis, Work, compute_dtype
from stack.compiler.expr import Apply, Expr, Read, Walk, reads
from stack.compiler.group_matmul import group_matmul
from stack.compiler.instances import decompose
from stack.compiler.lanes import in_groups
from stack.compiler.matmul import LoadTile, matmul
from stack.compiler.mesh import Elements, mesh_matmul, on_mesh
from stack.compiler.mesh.block import TILES
from stack.compiler.schedule import Choices
from stack.compiler.space import Space
from stack.compiler.tiles import Tiles


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

    def shape(self) -> MatmulShape:
        """The template's problem."""
        return MatmulShape(
            batch=prod(a.size for a in self.batch),
            m=self.m.size,
            n=self.n.size,
            k=self.k.size,
            a_contiguous="m" if _step(self.a, self.m) == 1 else "k",
            b_contiguous="k" if _step(self.b, self.k) == 1 and _step(self.b, self.n) != 1 else "n",
            dtype=compute_dtype(self.product.srcs[0].dtype),
            accumulate=compute_dtype(self.product.dtype),
        )


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


def _step(e: Expr, axis: Axis) -> int:
    """How far apart in memory neighbours along an axis are, in the first buffer that the operand
    reads."""
    found = [r for r in reads(e) if axis in r.axes]
    return found[0].offset.coefficient(axis) if found else 0


def emit_product(
    ops: Operands, work: Work, emission: Emission, info: DeviceInfo, choices: Choices
) -> Grid:
    """Emit the matmul with its epilogue; give its launch grid."""
    shape = ops.shape()

    def load(e: Expr, rows: Axis, cols: Axis) -> LoadTile:
        def tile(
            b: Builder, batch: Node, row: Node, col: Node, shape: tuple[int, int], limits: Limits
        ) -> Node:
            axes = (
                TileAxis(rows, row, shape[0], limits[0]),
                TileAxis(cols, col, shape[1], limits[1]),
            )
            scope = Tiles(emission, decompose(batch, ops.batch), axes)
            return broadcast(_zero_beyond(scope, e), shape)

        return tile

    def epilogue(b: Builder, acc: Node, batch: Node, m: Node, n: Node, limits: Limits) -> None:
        axes = (
            TileAxis(ops.m, m, acc.shape[0], limits[0]),
            TileAxis(ops.n, n, acc.shape[1], limits[1]),
        )
        scope = Tiles(emission, decompose(batch, ops.batch), axes)
        scope.local[ops.product] = acc
        _epilogue(work, scope)

    loads = load(ops.a, ops.m, ops.k), load(ops.b, ops.k, ops.n)
    if in_groups(info):
        block = choices.group_products.get(shape)
        return group_matmul(emission.b, shape, info, *loads, epilogue, block)
    if on_mesh(info):
        return mesh_matmul(emission.b, shape, _elements(ops, work), info, *loads, epilogue)
    blocks = choices.products.get(shape)
    return matmul(emission.b, shape, info, *loads, epilogue, blocks)


def _elements(ops: Operands, work: Work) -> Elements:
    """What the operands are of: they are multiplied in a narrow type only if both are of it."""
    wide = compute_dtype(ops.product.srcs[0].dtype)
    stored = max((r.dtype for x in (ops.a, ops.b) for r in reads(x)), key=lambda d: d.nbytes)
    multiplied = ops.a.dtype if ops.a.dtype is ops.b.dtype else wide
    nest = work.nest
    return Elements(stored, multiplied, TILES + len(nest.own) + sum(map(len, nest.reads.values())))


def _zero_beyond(scope: Tiles, e: Expr) -> Node:
    """The operand's tile, zero from the limits on; a masked load gives zero there by itself."""
    value = scope.tile(e)
    below = e
    while isinstance(below, Apply) and below.node.op == "cast":
        below = below.args[0]
    for t in scope.tile_axes:
        if t.limit is not None and not (isinstance(below, Read) and t.axis in e.axes):
            value = where(scope.valid(t), value, 0)
    return value


def _epilogue(work: Work, scope: Tiles) -> None:
    for root in work.nest.own:
        if root not in scope.local:
            scope.local[root] = broadcast(scope.root(root, work), scope.shape)
        scope.keep(root, work)
