"""Attention as a template of tile IR for cores with vector registers: scores never leave the
nearest caches (Milakov and Gimelshein, 2018; Dao and others, 2022).

An instance has some rows of q, and goes along the keys a block at a time, as far as some row sees
them. Everything lies turned, with neighbouring rows in the lanes of a register: a row's maximum and
sum are lanes of vectors, elements of k and v are repeated as they lie in memory, and only q and the
result are turned, once.

    most, total, sums = -inf, 0, 0
    for block of keys that some row sees:
        x = exponents of (k[block] @ q[rows] turned)
        new = max(most, x); weights = exp(x - new); keep = exp(most - new)
        total = total * keep + sum(weights); sums = sums * keep + v[block] turned @ weights
        most = new
    out = (sums / total) turned
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, prod

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.values import Grid
from hal.tile.build import (
    Builder,
    Operand,
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
    sub,
    transpose,
    unary,
    where,
)
from hal.tile.kernel import Memory
from hal.tile.node import Node
from stack.compiler.graph.access import Axis
from stack.compiler.graph.attention import Attention
from stack.compiler.graph.expr import Expr
from stack.compiler.graph.seen import Seen, seen_keys
from stack.compiler.templates.blocking import ceil_div, round_up
from stack.compiler.templates.edges import left_of
from stack.compiler.templates.emission import Emission, TileAxis, Work, compute_dtype
from stack.compiler.templates.instances import decompose
from stack.compiler.templates.product import divided
from stack.compiler.templates.tiles import Tiles

KEYS = 64
"""Keys of a block."""
PANELS = 2
"""Panels of rows that an instance has side by side, which share what is packed of k and v."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows of a panel and of an instance, keys of a block, rows of a register tile, and lanes."""

    panel: int
    rows: int
    keys: int
    height: int
    lanes: int


def choose_cut(m: int, keys: int, dtype: DType, info: DeviceInfo) -> Cut:
    """Panels two registers wide; as many rows of register tiles as hide the latency of sums and
    divide a block of keys."""
    lanes = max(1, info.limits.vector_nbytes // dtype.nbytes)
    height = 8 if info.limits.registers >= 32 else 4
    panel = lanes if m <= lanes else 2 * lanes
    rows = panel * min(PANELS, ceil_div(m, panel))
    return Cut(panel, rows, min(KEYS, round_up(keys, height)), height, lanes)


class Packed:
    """An operand of products in scratch memory, beyond its ends zero."""

    def __init__(self, b: Builder, name: str, dtype: DType, rows: int, columns: int) -> None:
        self.memory, self.columns = b.alloc(name, dtype, rows * columns), columns

    def at(self, row: Operand, column: Operand) -> Node:
        """The place of an element."""
        return add(mul(index(row), self.columns), column)


class Blocks:
    """What kernels of attention are made of."""

    def __init__(self, emission: Emission, dtype: DType, cut: Cut) -> None:
        self.emission, self.b, self.dtype, self.cut = emission, emission.b, dtype, cut

    def loop(self, stop: Operand, step: int, body: Callable[[Node], None]) -> None:
        """body(i) for 0, step, ... below stop."""
        if isinstance(stop, int) and stop == step:
            body(index(0))
        else:
            self.b.loop(0, stop, step, body)

    def rows(self, m: Axis, start: Node, count: int) -> TileAxis:
        """Some of an instance's rows, of which there may be fewer than it has room for."""
        return TileAxis(m, start, count, left_of(m.size, start, self.cut.rows))

    def vector(self, name: str, value: float) -> Memory:
        """A number for each row of the instance."""
        found = self.b.alloc(name, self.dtype, self.cut.rows)
        self.fill(found, self.cut.rows, value)
        return found

    def fill(self, memory: Memory, size: int, value: float) -> None:
        """Set all elements."""
        width = self.cut.panel
        tile = const(value, self.dtype, (width,))
        self.loop(size, width, lambda i: self.b.store(memory, i, tile, (1,)))

    def pack(self, into: Packed, e: Expr, scope: Tiles, rows: TileAxis, columns: Axis) -> None:
        """The elements of an operand over some rows, as many as the axis is wide, and all columns,
        as they lie."""
        lanes, height = min(self.cut.lanes, into.columns), min(4, rows.width)

        def tile(r: Node) -> None:
            for c in range(0, into.columns, lanes):
                found = self._operand(e, scope, rows, r, height, columns, index(c), lanes)
                self.b.store(into.memory, into.at(r, c), found, (into.columns, 1))

        self.loop(round_up(rows.width, height), height, tile)

    def pack_turned(
        self, into: Packed, e: Expr, scope: Tiles, rows: TileAxis, columns: Axis
    ) -> None:
        """The same with a column's elements side by side."""
        lanes = self.cut.lanes

        def tile(c: Node) -> None:
            for r in range(0, rows.width, lanes):
                found = self._operand(e, scope, rows, index(r), lanes, columns, c, lanes)
                self.b.store(into.memory, into.at(c, r), found, (1, into.columns))

        self.loop(round_up(columns.size, lanes), lanes, tile)

    def _operand(
        self,
        e: Expr,
        scope: Tiles,
        rows: TileAxis,
        row: Node,
        height: int,
        columns: Axis,
        column: Node,
        width: int,
    ) -> Node:
        limit = None if rows.limit is None else sub(rows.limit, row)
        axes = (
            TileAxis(rows.axis, add(rows.base, row), height, limit),
            TileAxis(columns, column, width, left_of(columns.size, column, width)),
        )
        inner = Tiles(self.emission, {}, axes, scope)
        found = broadcast(inner.tile(e), inner.shape)
        for t in axes:
            if t.limit is not None:
                found = where(inner.valid(t), found, 0)
        return cast(found, self.dtype)

    def product(
        self,
        depth: int,
        column: Callable[[Node], Node],
        row: Callable[[Node], Node],
        first: Node,
    ) -> Node:
        """`first` with the products of columns and rows of register tiles, one of each for each
        step of the depth."""
        unroll = next(u for u in (4, 2, 1) if depth % u == 0)

        def step(k: Node, total: Node) -> tuple[Node]:
            for u in range(unroll):
                total = dot(column(add(k, u)), row(add(k, u)), total)
            return (total,)

        return self.b.loop(0, depth, unroll, step, (first,))[0]

    def by_column(self, p: Packed, row: Operand) -> Callable[[Node], Node]:
        """Elements of neighbouring rows, at a column."""
        shape = (self.cut.height, 1)
        return lambda k: self.b.load(p.memory, p.at(row, k), shape, (p.columns, 1))

    def by_row(self, p: Packed, column: Operand) -> Callable[[Node], Node]:
        """Elements of neighbouring columns, at a row, below each other."""
        shape = (self.cut.height, 1)
        return lambda k: self.b.load(p.memory, p.at(k, column), shape, (1, 1))

    def lines(self, p: Packed, column: Operand) -> Callable[[Node], Node]:
        """A row's elements in a panel."""
        shape = (1, self.cut.panel)
        return lambda k: self.b.load(p.memory, p.at(k, column), shape, (p.columns, 1))

    def tile(self, p: Packed, row: Operand, column: Operand) -> Node:
        """A register tile of neighbouring rows in a panel."""
        shape = (self.cut.height, self.cut.panel)
        return self.b.load(p.memory, p.at(row, column), shape, (p.columns, 1))

    def store(self, p: Packed, row: Operand, column: Operand, value: Node) -> None:
        """Write a register tile."""
        self.b.store(p.memory, p.at(row, column), value, (p.columns, 1))

    def held(self, memory: Memory, at: Operand) -> Node:
        """The numbers of a panel's rows."""
        return self.b.load(memory, at, (self.cut.panel,), (1,))

    def hold(self, memory: Memory, at: Operand, value: Node) -> Node:
        """The same, set."""
        self.b.store(memory, at, value, (1,))
        return self.held(memory, at)

    def seen(self, seen: Seen, m0: Node, keys: int) -> tuple[Node, Node]:
        """The first block of keys that some row from m0 on sees, and where they end."""
        first, stop = index(0), index(keys)
        for line in seen.ends:
            last = binary("min", add(m0, self.cut.rows), seen.rows)
            above = binary("max", add(mul(sub(last, 1), line.step), line.const + line.by), 0)
            stop = binary("min", stop, binary("div", above, line.by))
        for line in seen.starts:
            start = binary("max", add(mul(m0, line.step), line.const), 0)
            start = binary("div", start, line.by * self.cut.keys)
            first = binary("max", first, mul(start, self.cut.keys))
        return first, stop


def emit_attention(a: Attention, work: Work, emission: Emission) -> Grid:
    """Emit the kernel; give its launch grid."""
    if not a.root.type.size:
        return (0, 1, 1)
    return _Forward(a, work, emission).emit()


class _Forward(Blocks):
    def __init__(self, a: Attention, work: Work, emission: Emission) -> None:
        dtype = compute_dtype(a.scores.dtype)
        super().__init__(emission, dtype, choose_cut(a.m.size, a.keys.size, dtype, emission.info))
        self.a, self.work = a, work
        cut, b = self.cut, self.b
        self.blocks = ceil_div(a.m.size, cut.rows)
        batch, i = divided(program_id(0), self.blocks)
        # Of causal rows the last ones see most keys: they come first.
        self.m0 = mul(sub(self.blocks - 1, i), cut.rows)
        self.scope = Tiles(emission, decompose(batch, a.batch))
        wide = round_up(a.depth.size, cut.lanes), round_up(a.n.size, max(cut.lanes, cut.height))
        self.q = Packed(b, "q", dtype, wide[0], cut.rows)
        self.k = Packed(b, "k", dtype, round_up(cut.keys, 4), wide[0])
        self.v = Packed(b, "v", dtype, round_up(cut.keys, 4), wide[1])
        self.x = Packed(b, "x", dtype, cut.keys, cut.panel)
        self.sums = Packed(b, "sums", dtype, wide[1], cut.rows)

    def emit(self) -> Grid:
        """The loop over keys between what is read before and stored after it."""
        a, b, cut = self.a, self.b, self.cut
        most, total = self.vector("most", -inf), self.vector("total", 0)
        keep = b.alloc("keep", self.dtype, cut.panel)
        self.fill(self.sums.memory, round_up(a.n.size, cut.height) * cut.rows, 0)
        rows = self.rows(a.m, self.m0, cut.rows)
        self.pack_turned(self.q, a.q, self.scope, rows, a.depth)

        def block(j0: Node) -> None:
            keys = TileAxis(a.keys, j0, cut.keys, left_of(a.keys.size, j0, cut.keys))
            self.pack(self.k, a.k, self.scope, keys, a.depth)
            self.pack(self.v, a.v, self.scope, keys, a.n)
            self.loop(cut.rows, cut.panel, lambda r: self._panel(keys, r, most, total, keep))

        first, stop = self.seen(seen_keys(a), self.m0, a.keys.size)
        b.loop(first, stop, cut.keys, block)
        self._finish(total)
        return self.blocks * prod(x.size for x in a.batch), 1, 1

    def _panel(self, keys: TileAxis, r: Node, most: Memory, total: Memory, keep: Memory) -> None:
        """A block of keys for a panel of rows."""
        a, b, cut = self.a, self.b, self.cut
        rows = self.rows(a.m, add(self.m0, r), cut.panel)

        def exponents(c: Node, top: Node) -> tuple[Node]:
            limit = None if keys.limit is None else sub(keys.limit, c)
            own = TileAxis(a.keys, add(keys.base, c), cut.height, limit)
            scope = Tiles(self.emission, {}, (own, rows), self.scope)
            zero = const(0, self.dtype, (cut.height, cut.panel))
            depth = round_up(a.depth.size, 4) if a.depth.size > 4 else a.depth.size
            depth = min(depth, self.k.columns)
            scores = self.product(depth, self.by_column(self.k, c), self.lines(self.q, r), zero)
            scope.local[a.scores] = scores
            x = cast(broadcast(scope.tile(a.exponent), scope.shape), self.dtype)
            if limit is not None:
                x = where(scope.valid(own), x, -inf)
            self.store(self.x, c, 0, x)
            return (binary("max", top, reduce("max", x, 0)),)

        before = self.held(most, r)
        (now,) = b.loop(0, cut.keys, cut.height, exponents, (before,))
        # A row without a score so far has no maximum to be less than.
        base = where(binary("eq", now, -inf), 0.0, now)
        kept = self.hold(keep, 0, unary("exp", binary("sub", before, base)))
        self.hold(most, r, now)

        def weights(c: Node, sum: Node) -> tuple[Node]:
            x = self.tile(self.x, c, 0)
            power = unary("exp", binary("sub", x, broadcast(base, x.shape)))
            self.store(self.x, c, 0, power)
            return (add(sum, reduce("sum", power, 0)),)

        start = mul(self.held(total, r), kept)
        (sum,) = b.loop(0, cut.keys, cut.height, weights, (start,))
        self.hold(total, r, sum)

        def columns(n: Node) -> None:
            first = self.tile(self.sums, n, r)
            first = mul(first, broadcast(kept, first.shape))
            made = self.product(cut.keys, self.by_row(self.v, n), self.lines(self.x, 0), first)
            self.store(self.sums, n, r, made)

        self.loop(round_up(a.n.size, cut.height), cut.height, columns)

    def _finish(self, total: Memory) -> None:
        a, lanes = self.a, self.cut.lanes

        def tile(n: Node) -> None:
            for r in range(0, self.cut.rows, lanes):
                m = add(self.m0, r)
                axes = (
                    self.rows(a.m, m, lanes),
                    TileAxis(a.n, n, lanes, left_of(a.n.size, n, lanes)),
                )
                scope = Tiles(self.emission, {}, axes, self.scope)
                found = self.b.load(
                    self.sums.memory, self.sums.at(n, r), (lanes, lanes), (self.sums.columns, 1)
                )
                over = unary("recip", self.b.load(total, index(r), (lanes,), (1,)))
                scope.local[a.root] = mul(
                    transpose(found, (1, 0)), broadcast(reshape(over, (lanes, 1)), scope.shape)
                )
                scope.keep(a.root, self.work)

        self.loop(round_up(a.n.size, lanes), lanes, tile)
