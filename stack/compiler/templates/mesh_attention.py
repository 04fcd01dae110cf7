"""Attention as a template of tile IR: scores never leave the scratchpad (Milakov and Gimelshein,
2018; Dao and others, 2022).

An instance has some rows of q, and goes along the keys a block at a time. What it has summed is
corrected when a larger score comes:

    most, total, sums = -inf, 0, 0
    for block of keys:
        x = exponents of (k[block] @ q[rows] turned)
        new = max(most, x); weights = exp(x - new); keep = exp(most - new)
        total = total * keep + sum(weights); sums = sums * keep + weights turned @ v[block]
        most = new
    out = sums / total

Scores lie turned, a key's beside each other: so k is multiplied as it lies in memory, and a row's
maximum and sum are vectors over rows. The instances of a mesh have the same keys where there are
rows enough for all: a lowering may fetch them once.
"""

from __future__ import annotations

from math import inf, prod

from hal.core.description import DeviceInfo, SpaceKind
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.core.values import Grid
from hal.tile.build import (
    Builder,
    add,
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
    transpose,
    unary,
    where,
)
from hal.tile.node import Node
from stack.compiler.graph.attention import Attention
from stack.compiler.graph.expr import Expr
from stack.compiler.templates.blocking import ceil_div
from stack.compiler.templates.edges import left_of
from stack.compiler.templates.emission import Emission, TileAxis, Work
from stack.compiler.templates.instances import decompose
from stack.compiler.templates.product import divided
from stack.compiler.templates.tiles import Tiles

_SIZES = (64, 32, 16, 8)
_TILES = 4
"""Tiles of scores that are in the scratchpad at once."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows of q of an instance, keys of a step, and how many instances share what they read."""

    rows: int
    keys: int
    together: int


def choose_cut(a: Attention, info: DeviceInfo) -> Cut:
    """As many rows as leave work for all cores; as many keys as fit."""
    cores = prod(info.limits.mesh)
    batch = prod(x.size for x in a.batch)
    together = cores if a.m.size >= cores * _SIZES[-1] else 1
    parts = cores if together > 1 else ceil_div(cores, batch)
    most = next((s for s in _SIZES if s * parts <= a.m.size), _SIZES[-1])
    sizes = ((rows, keys) for rows in _SIZES if rows <= most for keys in _SIZES)
    fitting = (size for size in sizes if _nbytes(a, *size) <= _room(info))
    return Cut(*next(fitting, (_SIZES[-1], _SIZES[-1])), together)


def _room(info: DeviceInfo) -> int:
    space = info.space(SpaceKind.SCRATCHPAD)
    return (space.nbytes if space else 0) * 3 // 4


def _nbytes(a: Attention, rows: int, keys: int) -> int:
    """Two blocks of k and v, which may be converted; q, the sums twice; some tiles of scores."""
    both, width = a.depth.size + a.n.size, a.dtype.nbytes
    return (3 * keys * both + rows * (both + 2 * a.n.size) + _TILES * rows * keys) * width


def emit_attention(a: Attention, work: Work, emission: Emission) -> Grid:
    """Emit the kernel; give its launch grid."""
    if not a.root.type.size:
        return (0, 1, 1)
    return _Template(a, work, emission, choose_cut(a, emission.info)).emit()


class _Template:
    def __init__(self, a: Attention, work: Work, emission: Emission, cut: Cut) -> None:
        self.a, self.work, self.emission, self.cut = a, work, emission, cut
        self.b: Builder = emission.b
        self.dtype: DType = a.dtype
        self.blocks = ceil_div(a.m.size, cut.rows * cut.together)
        rest, core = divided(program_id(0), cut.together)
        batch, i = divided(rest, self.blocks)
        self.values = decompose(batch, a.batch)
        m0 = mul(add(mul(i, cut.together), core), cut.rows)
        whole = self.cut.rows * self.cut.together
        self.rows = TileAxis(
            a.m,
            m0,
            cut.rows,
            None if self.a.m.size % whole == 0 else binary("sub", self.a.m.size, m0),
        )

    def emit(self) -> Grid:
        """The loop over keys between what is read before and stored after it."""
        a, b, rows = self.a, self.b, self.cut.rows
        zero = index(0)
        depth = TileAxis(a.depth, zero, a.depth.size)
        columns = TileAxis(a.n, zero, a.n.size)
        q = self._tile(a.q, depth, self.rows)
        first = (
            const(-inf, self.dtype, (rows,)),
            const(0, self.dtype, (rows,)),
            const(0, self.dtype, (rows, a.n.size)),
        )

        def step(j0: Node, most: Node, total: Node, sums: Node) -> tuple[Node, ...]:
            keys = TileAxis(a.keys, j0, self.cut.keys, left_of(a.keys.size, j0, self.cut.keys))
            k = self._tile(a.k, keys, depth)
            v = self._tile(a.v, keys, columns)
            # Keys by rows; minus infinity beyond the last key.
            scope = Tiles(self.emission, self.values, (keys, self.rows))
            scope.local[self.a.leaves[0]] = dot(k, q, const(0, self.dtype, scope.shape))
            x = cast(broadcast(scope.tile(self.a.exponent), scope.shape), self.dtype)
            return self._step(
                x if keys.limit is None else where(scope.valid(keys), x, -inf),
                v,
                (most, total, sums),
            )

        _, total, sums = b.loop(0, a.keys.size, self.cut.keys, step, first)
        scope = Tiles(self.emission, self.values, (self.rows, columns))
        over = broadcast(reshape(unary("recip", total), (rows, 1)), sums.shape)
        scope.hold(a.root, mul(sums, over))
        scope.keep(a.root, self.work)
        return self.blocks * self.cut.together * prod(x.size for x in a.batch), 1, 1

    def _tile(self, e: Expr, *axes: TileAxis) -> Node:
        """An operand's tile in the type of the sums."""
        scope = Tiles(self.emission, self.values, axes)
        return cast(broadcast(scope.tile(e), scope.shape), self.dtype)

    def _step(self, x: Node, v: Node, before: tuple[Node, Node, Node]) -> tuple[Node, ...]:
        most, total, sums = before
        now = binary("max", most, reduce("max", x, 0))
        # A row without a score so far has no maximum to be less than.
        base = where(binary("eq", now, -inf), 0.0, now)
        weights = unary("exp", binary("sub", x, broadcast(base, x.shape)))
        keep = unary("exp", binary("sub", most, base))
        kept = mul(sums, broadcast(reshape(keep, (self.cut.rows, 1)), sums.shape))
        added = dot(transpose(weights, (1, 0)), v, kept)
        return now, add(mul(total, keep), reduce("sum", weights, 0)), added
