"""Attention as a template of tile IR for devices on which a group runs an instance and that have
matrix units: scores never leave the lanes (Milakov and Gimelshein, 2018; Dao and others, 2022).

An instance has some rows of q, and goes along the keys a block at a time, as far as some row sees
them. Both products are by a unit, with sums in one layout, so that a row's weights are on the lanes
that have its maximum and its sum.

    most, total, sums = -inf, 0, 0
    for block of keys that some row sees:
        x = exponents of q[rows] @ k[block] turned
        new = max(most, x); weights = exp(x - new); keep = exp(most - new)
        total = total * keep + sum(weights); sums = sums * keep + weights @ v[block]
        most = new
    out = sums / total
"""

from __future__ import annotations

from math import inf, prod

from hal.core.description import DeviceInfo
from hal.core.values import Grid
from hal.tile.build import (
    binary,
    broadcast,
    cast,
    const,
    dot,
    index,
    mul,
    program_id,
    reduce,
    reshape,
    sub,
    unary,
    where,
)
from hal.tile.node import Node
from hal.tile.size import hint
from stack.compiler.graph.access import Axis
from stack.compiler.graph.attention import Attention
from stack.compiler.graph.expr import Constant, Expr
from stack.compiler.graph.seen import seen_keys
from stack.compiler.templates.attention import seen_blocks
from stack.compiler.templates.blocking import ceil_div, round_up
from stack.compiler.templates.edges import left_of
from stack.compiler.templates.emission import Emission, TileAxis, Work
from stack.compiler.templates.instances import decompose
from stack.compiler.templates.product import divided, kept
from stack.compiler.templates.tiles import Tiles, zero_beyond
from stack.compiler.units import unit_of_groups

ROWS, KEYS = 64, 64
"""Rows of an instance and keys of a block, where there are so many: a lane then has as many sums
and scores as fit beside each other into its registers."""


def suits(n: Node, info: DeviceInfo) -> bool:
    """Whether an attention is by a matrix unit: elsewhere scores take more than what they save."""
    q, k, v, exponent = n.srcs
    unit = unit_of_groups(q.dtype, k.dtype, exponent.dtype, info)
    return unit is not None and v.dtype is q.dtype


def emit_attention(a: Attention, work: Work, emission: Emission) -> Grid:
    """Emit the kernel; give its launch grid."""
    if not a.root.type.size:
        return (0, 1, 1)
    b, narrow, wide = emission.b, a.root.srcs[0].dtype, a.dtype
    unit = unit_of_groups(narrow, narrow, wide, emission.info)
    assert unit is not None, "attention is a node only where it suits"
    most_rows, block = (_power(hint(x.size), most) for x, most in ((a.m, ROWS), (a.keys, KEYS)))
    blocks = ceil_div(a.m.size, most_rows)
    batch, i = divided(program_id(0), blocks)
    # Of causal rows the last ones see most keys: they come first.
    m0 = mul(sub(blocks - 1, i), most_rows)
    values = decompose(batch, a.batch)
    rows = TileAxis(a.m, m0, most_rows, left_of(a.m.size, m0, most_rows))
    depth, columns = _whole(a.depth, unit.k), _whole(a.n, unit.n)

    def tile(e: Expr, *axes: TileAxis) -> Node:
        """An operand's tile as it is in memory."""
        scope = Tiles(emission, values, axes)
        return kept(broadcast(zero_beyond(scope, e), scope.shape), narrow)

    def of_rows(x: Node, shape: tuple[int, ...]) -> Node:
        return broadcast(reshape(x, (most_rows, 1)), shape)

    factor = next((e for e in a.inner if not (isinstance(e, Constant) and e.value == 1)), None)
    q = tile(a.q, rows, depth)
    first = (
        const(-inf, wide, (most_rows,)),
        const(0, wide, (most_rows,)),
        const(0, wide, (most_rows, columns.width)),
    )

    def step(j0: Node, most: Node, total: Node, sums: Node) -> tuple[Node, ...]:
        keys = TileAxis(a.keys, j0, block, left_of(a.keys.size, j0, block))
        k, v = tile(a.k, depth, keys), tile(a.v, keys, columns)
        scope = Tiles(emission, values, (rows, keys))
        scope.local[a.leaves[0]] = dot(q, k, const(0, wide, scope.shape))
        x = cast(broadcast(scope.tile(a.exponent), scope.shape), wide)
        if keys.limit is not None:
            x = where(scope.valid(keys), x, -inf)
        now = binary("max", most, reduce("max", x, 1))
        # A row without a score so far has no maximum to be less than.
        base = where(binary("eq", now, -inf), 0.0, now)
        power = unary("exp", binary("sub", x, of_rows(base, x.shape)))
        keep = unary("exp", binary("sub", most, base))
        used = power
        if factor is not None:
            used = mul(power, cast(broadcast(scope.tile(factor), x.shape), wide))
        added = dot(cast(used, narrow), v, mul(sums, of_rows(keep, sums.shape)))
        return now, binary("add", mul(total, keep), reduce("sum", power, 1)), added

    start, stop = seen_blocks(seen_keys(a), m0, most_rows, a.keys.size, block)
    _, total, sums = b.loop(start, stop, block, step, first)
    scope = Tiles(emission, values, (rows, columns))
    scope.hold(a.root, mul(sums, of_rows(unary("recip", total), sums.shape)))
    scope.keep(a.root, work)
    return blocks * prod(x.size for x in a.batch), 1, 1


def _whole(axis: Axis, step: int) -> TileAxis:
    """All of an axis, in steps of a unit."""
    width = round_up(axis.size, step)
    return TileAxis(axis, index(0), width, None if width == axis.size else index(axis.size))


def _power(size: int, most: int) -> int:
    """A power of two from 16 to the most, as large as the size where it can be."""
    return min(most, max(16, 1 << (size - 1).bit_length()))
