"""A matmul cluster: the blocked template with fused operands, and an epilogue of everything that
joined it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from hal.core.description import DeviceInfo
from hal.core.values import Grid
from hal.tile.build import Builder, broadcast, where
from hal.tile.node import Node
from stack.compiler.access import Affine, Axis, Index, NeedSplit, NotAffineError
from stack.compiler.blocking import MatmulShape
from stack.compiler.edges import Limits
from stack.compiler.expr import Apply, Expr, Read, Walk, reads
from stack.compiler.fuse import Cluster, Space, forward, settle, stored_from
from stack.compiler.loops import Nest, decompose
from stack.compiler.matmul import LoadTile, matmul
from stack.compiler.roots import Home
from stack.compiler.tiles import Emission, TileAxis, Tiles, compute_dtype


class Operands:
    """A product's operands as expressions over (batch axes, m, k) and (batch axes, k, n)."""

    def __init__(self, cluster: Cluster, homes: Mapping[Node, Home]) -> None:
        """Raises NotAffineError, with the operand to store, when an operand cannot be read in
        place."""
        self.product = cluster.roots[0]
        self.k = Axis(self.product.srcs[0].shape[-1])
        while True:
            self.space, self.exprs = settle(cluster, homes)
            walk = Walk(homes, lambda n, index: homes[n].offset(index))
            *self.batch, self.m, self.n = self.space.axes
            try:
                self.a = self._operand(walk, 0, (self.m, self.k))
                self.b = self._operand(walk, 1, (self.k, self.n))
            except NeedSplit as need:
                at = self.batch.index(need.axis)
                cluster.domain = _split(self.space, at, need.inner)
            else:
                return

    def _operand(self, walk: Walk, which: int, last: tuple[Axis, Axis]) -> Expr:
        node = self.product.srcs[which]
        axes = [*self.batch, *last]
        index = Index(tuple(a.size for a in axes), tuple(Affine(0, ((a, 1),)) for a in axes))
        try:
            return walk.operand(node, index)
        except NeedSplit as need:
            if need.axis in self.batch:
                raise
            error = NotAffineError()
            error.view = node
            raise error from need
        except NotAffineError as error:
            error.view = error.view or node
            raise

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


def _split(space: Space, at: int, inner: int) -> tuple[tuple[int, bool], ...]:
    sizes = [a.size for a in space.axes]
    sizes[at : at + 1] = [sizes[at] // inner, inner]
    return tuple((s, False) for s in sizes)


def _step(e: Expr, axis: Axis) -> int:
    """How far apart in memory neighbours along an axis are, in the first buffer that the operand
    reads."""
    found = [r for r in reads(e) if axis in r.axes]
    return found[0].offset.coefficient(axis) if found else 0


def emit_product(ops: Operands, nest: Nest, emission: Emission, info: DeviceInfo) -> Grid:
    """Emit the matmul with its epilogue; give its launch grid."""

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
        _epilogue(nest, emission, scope)

    return matmul(
        emission.b,
        ops.shape(),
        info,
        load(ops.a, ops.m, ops.k),
        load(ops.b, ops.k, ops.n),
        epilogue,
    )


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


def _epilogue(nest: Nest, emission: Emission, scope: Tiles) -> None:
    for root in nest.roots:
        permuted = stored_from(root, scope.local) if root not in scope.local else None
        if permuted and root not in nest.exprs:
            offset = emission.homes[root].offset(
                forward(permuted[1], nest.space.index(permuted[0]))
            )
            scope.store(root, offset, scope.local[permuted[0]])
            continue
        if root not in scope.local:
            scope.local[root] = broadcast(scope.tile(nest.exprs[root]), scope.shape)
        if root in nest.stored:
            scope.store(
                root, emission.homes[root].offset(nest.space.index(root)), scope.local[root]
            )
