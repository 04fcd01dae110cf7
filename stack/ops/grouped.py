"""Products of rows with the matrix of the group that each belongs to: what experts compute.

Which row belongs to which group is data. Rows are moved into blocks of one group each, as many as
any choice of groups can need, so that the work is that of the rows and at most one block more for
each group (Gale et al., "MegaBlocks: Efficient Sparse Training with Mixture-of-Experts", 2022).
Blocks that are not needed are moved, but not multiplied: of rows that belong to groups of other
ranks there are many.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node, Type, node
from hal.tile.size import hint, is_fixed, less
from stack import ops as g
from stack.ops.error import GraphError
from stack.ops.operator import Attrs, NDArray, OpKind
from stack.ops.rules import need
from stack.ops.sharding import Link, Sharding, Share, linear_in, same_attributes
from stack.ops.table import FLOATS, INDEX, define, doubled, rounded

__all__ = ["grouped_matmul", "grouped_outer"]

LEAST, MOST = 8, 128
"""Rows of a block: a quarter of what a group has in the mean, within these limits."""

HINTED = 1024
"""Rows that are taken to come, at least, where their number is data: blocks that the first, small
call would have chosen make a large one read each matrix for every few rows."""


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Rows in blocks of one group each.

    `group` i64[blocks] is the group of each block, the number of groups for one that is left over;
    `row` i64[blocks * size] the row that is at each place, -1 for none; and `place` i64[rows] the
    place of each row, -1 for one whose group there is not.
    """

    size: int
    group: Node
    row: Node
    place: Node

    @staticmethod
    def of(group: Node, groups: int) -> _Blocks:
        """The blocks of rows of these groups; there is at least one row, and one group."""
        rows = group.shape[0]
        likely = hint(rows) if is_fixed(rows) else max(hint(rows), HINTED)
        size = LEAST
        while size < MOST and 8 * size * hint(groups) <= likely:
            size *= 2
        # A block has at least a row.
        blocks = rows if less(rows, groups) else rows // size + groups
        own = g.expand(g.reshape(g.cast(group, DType.I64), (rows, 1)), (rows, groups))
        is_own = g.cast(g.eq(own, _along(g.arange(groups), own)), DType.I64)
        count = g.reshape(g.reduce("sum", is_own, (0,)), (groups,))
        number = g.sub(g.scan("sum", is_own, 0), is_own)
        taken = g.shr(g.add(count, _all(count, size - 1)), _all(count, size.bit_length() - 1))
        end = g.scan("sum", taken, 0)
        first = g.mul(g.sub(end, taken), _all(end, size))
        at = g.add(_along(first, own), number)
        given = g.reduce("sum", g.mul(is_own, g.add(at, _all(at, 1))), (1,))
        place = g.contiguous(g.sub(g.reshape(given, (rows,)), g.full((rows,), 1, DType.I64)))
        none = g.full((blocks * size,), -1, DType.I64)
        block = g.expand(g.reshape(g.arange(blocks), (blocks, 1)), (blocks, groups))
        before = g.cast(g.le(_along(end, block), block), DType.I64)
        return _Blocks(
            size,
            g.contiguous(g.reshape(g.reduce("sum", before, (1,)), (blocks,))),
            g.scatter("set", none, place, g.arange(rows), 0),
            place,
        )

    def filled(self, x: Node) -> Node:
        """[rows, width] as [blocks, size, width], 0 where a block has no row. Blocks that are left
        over are chosen by a number that is out of range, so that a product does not compute them.
        """
        blocks = self.group.shape[0]
        moved = g.gather(x, self.row, 0)
        every = g.contiguous(g.reshape(moved, (blocks, self.size, x.shape[1])))
        first = g.slice_axis(g.reshape(self.row, (blocks, self.size)), 1, 0, 1)
        is_left_over = g.lt(g.reshape(first, (blocks,)), g.full((blocks,), 0, DType.I64))
        number = g.where(is_left_over, g.full((blocks,), -1, DType.I64), g.arange(blocks))
        return g.gather(every, g.contiguous(number), 0)


def _all(x: Node, value: int) -> Node:
    return g.full_like(x, value)


def _along(line: Node, table: Node) -> Node:
    """A line in every row of a table."""
    return g.expand(g.reshape(line, (1, line.shape[0])), table.shape)


def _matmul(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    x, w, group = xs
    found = np.zeros(n.shape, doubled(x).dtype)
    with np.errstate(all="ignore"):
        for i in range(w.shape[0]):
            found[group == i] = doubled(x)[group == i] @ doubled(w)[i]
        return rounded(found, n.dtype)


def _outer(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    x, y, group = xs
    found = np.zeros(n.shape, doubled(x).dtype)
    with np.errstate(all="ignore"):
        for i in range(n["groups"]):
            found[i] = doubled(x)[group == i].T @ doubled(y)[group == i]
        return rounded(found, n.dtype)


def _matmul_gradient(n: Node, d: Node) -> tuple[Node, Node, None]:
    x, w, group = n.srcs
    back = grouped_matmul(d, g.transpose(w), group)
    return back, grouped_outer(x, d, group, w.shape[0]), None


def _outer_gradient(n: Node, d: Node) -> tuple[Node, Node, None]:
    x, y, group = n.srcs
    return grouped_matmul(y, g.transpose(d), group), grouped_matmul(x, d, group), None


def _matmul_parts(n: Node) -> Node:
    x, w, group = n.srcs
    if not x.type.size or not w.type.size:
        return g.full(n.shape, 0, n.dtype)
    blocks = _Blocks.of(group, w.shape[0])
    y = g.matmul(blocks.filled(x), g.gather(w, blocks.group, 0))
    y = g.reshape(y, (blocks.row.shape[0], n.shape[1]))
    return g.gather(y, blocks.place, 0)


def _outer_parts(n: Node) -> Node:
    x, y, group = n.srcs
    if not x.shape[0]:
        return g.full(n.shape, 0, n.dtype)
    blocks = _Blocks.of(group, n["groups"])
    wide = n.dtype.computed_in
    each = g.matmul(g.transpose(blocks.filled(x)), blocks.filled(y), wide)
    total = g.scatter("sum", g.full(n.shape, 0, wide), blocks.group, each, 0)
    return g.cast(total, n.dtype)


def _need_rows(x: Type, group: Type) -> None:
    need(len(x.shape) == 2, "rows are [rows, width]")
    need(group.dtype in INDEX, "groups must be i32 or i64")
    if group.shape != x.shape[:1]:
        raise GraphError(f"{x.shape[0]} rows need as many groups, not {list(group.shape)}")


def _matmul_type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    x, w, group = srcs
    _need_rows(x, group)
    need(len(w.shape) == 3, "matrices are [groups, depth, width]")
    if x.shape[1] != w.shape[1]:
        raise GraphError(f"inner sizes {x.shape[1]} and {w.shape[1]} differ")
    return Type((x.shape[0], w.shape[2]), x.dtype)


def _outer_type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    x, y, group = srcs
    _need_rows(x, group)
    _need_rows(y, group)
    need(isinstance(attrs["groups"], int) and attrs["groups"] >= 0, "groups are counted")
    return Type((attrs["groups"], x.shape[1], y.shape[1]), x.dtype)


def _own_groups(n: Node, srcs: tuple[Node, ...], type: Type, share: Share | None) -> Node:
    """Groups count from the rank's first one, where it has a part of them; without `share` they do
    already."""
    groups = type.shape[0] if n.op == "grouped_outer" else srcs[1].shape[0]
    whole = n.shape[0] if n.op == "grouped_outer" else n.srcs[1].shape[0]
    if groups == whole:
        return same_attributes(n, srcs, type, share)
    group = srcs[2]
    if share is not None:
        begin = g.mul(share.rank, g.const(share.part, share.rank.dtype))
        group = g.sub(group, g.broadcast(g.cast(begin, group.dtype), group.shape))
    attrs = {"groups": groups} if n.op == "grouped_outer" else {}
    return node(n.op, type, (*srcs[:2], group), **attrs)


_MATMUL = define(
    "grouped_matmul",
    OpKind.CONTRACT,
    FLOATS,
    "x[N,K]'s rows, each times the matrix w[group] of w[G,K,M]; out of range gives 0",
    3,
    _matmul_type,
    _matmul,
    _matmul_gradient,
    decompose=_matmul_parts,
    data=(0, 1),
    sharding=Sharding(
        lambda n: [
            Link((0, None, 0), 0),
            Link((None, 2, None), 1),
            Link((1, 1, None), None, "sum"),
            Link((None, 0, None), None, "sum", contiguous=True),
        ],
        linear_in((0,), (1,)),
        _own_groups,
    ),
)
_OUTER = define(
    "grouped_outer",
    OpKind.CONTRACT,
    FLOATS,
    "of each of `groups` the sum of x[N,K]'s rows times y[N,M]'s: [groups,K,M]; rows of no "
    "group are left out",
    3,
    _outer_type,
    _outer,
    _outer_gradient,
    attrs=frozenset({"groups"}),
    decompose=_outer_parts,
    data=(0, 1),
    sharding=Sharding(
        lambda n: [
            Link((0, 0, 0), None, "sum"),
            Link((1, None, None), 1),
            Link((None, 1, None), 2),
            Link((None, None, None), 0, contiguous=True),
        ],
        linear_in((0,), (1,)),
        _own_groups,
    ),
)


def grouped_matmul(x: Node, w: Node, group: Node) -> Node:
    """x[N,K]'s rows, row n times w[group[n]] of w[G,K,M], i32 or i64 groups: [N,M]; a row whose
    group is out of range gives 0."""
    return _MATMUL(x, w, group)


def grouped_outer(x: Node, y: Node, group: Node, groups: int) -> Node:
    """[groups,K,M]: for each group the sum over its rows of x[N,K] and y[N,M] of their outer
    products."""
    return _OUTER(x, y, group, groups=groups)
