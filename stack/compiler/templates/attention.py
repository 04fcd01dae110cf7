"""Attention as a template of tile IR for cores with vector registers: scores never leave the
nearest caches (Milakov and Gimelshein, 2018; Dao and others, 2022).

An instance has some rows of q, and goes along the keys a block at a time, as far as some row sees
them, and in the last block with each panel of rows as far as some row of it does. Everything lies
turned, with neighbouring rows in the lanes of a register: a row's maximum and sum are lanes of
vectors, elements of k and v are repeated as they lie in memory, and only q and the result are
turned, once.

    most, total, sums = -inf, 0, 0
    for block of keys that some row sees:
        x = exponents of (k[block] @ q[rows] turned)
        new = max(most, x); weights = exp(x - new); keep = exp(most - new)
        total = total * keep + sum(weights); sums = sums * keep + v[block] turned @ weights
        most = new
    out = (sums / total) turned
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.facts import dataclass
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
from hal.tile.size import hint, is_fixed
from stack.compiler.graph.access import Axis
from stack.compiler.graph.attention import Attention
from stack.compiler.graph.expr import Constant, Expr
from stack.compiler.graph.seen import Seen, seen_keys
from stack.compiler.templates.blocking import ceil_div, round_up
from stack.compiler.templates.edges import left_of, round_up_to
from stack.compiler.templates.emission import Emission, TileAxis, Work
from stack.compiler.templates.instances import decompose
from stack.compiler.templates.product import divided
from stack.compiler.templates.tiles import Tiles

Limit = Node | None

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
    divide a block of keys. What is data is taken to be long."""
    m, keys = (size if is_fixed(size) else max(hint(size), KEYS) for size in (m, keys))
    lanes = max(1, info.limits.vector_nbytes // dtype.nbytes)
    height = 8 if info.limits.registers >= 32 else 4
    panel = lanes if m <= lanes else 2 * lanes
    rows = panel * min(PANELS, ceil_div(m, panel))
    return Cut(panel, rows, min(KEYS, round_up(keys, height)), height, lanes)


class PackedOperand:
    """An operand of products in scratch memory, beyond its ends zero."""

    def __init__(self, b: Builder, name: str, dtype: DType, rows: int, columns: int) -> None:
        self.memory, self.columns = b.alloc(name, dtype, rows * columns), columns

    def at(self, row: Operand, column: Operand) -> Node:
        """The place of an element."""
        return add(mul(index(row), self.columns), column)


def seen_blocks(seen: Seen, m0: Node, rows: int, keys: int, block: int) -> tuple[Node, Node]:
    """The first block of keys that some of so many rows from m0 on sees, and where they end."""
    first, stop = index(0), index(keys)
    for line in seen.ends:
        last = binary("min", add(m0, rows), seen.rows)
        above = binary("max", add(mul(sub(last, 1), line.step), line.const + line.by), 0)
        stop = binary("min", stop, binary("div", above, line.by))
    for line in seen.starts:
        start = binary("max", add(mul(m0, line.step), line.const), 0)
        start = binary("div", start, line.by * block)
        first = binary("max", first, mul(start, block))
    return first, stop


class AttentionKernel:
    """What kernels of attention are made of."""

    a: Attention
    scope: Tiles
    """What an instance knows."""

    def __init__(self, emission: Emission, dtype: DType, cut: Cut) -> None:
        self.emission, self.b, self.dtype, self.cut = emission, emission.b, dtype, cut

    def loop(self, stop: Operand, step: int, body: Callable[[Node], None]) -> None:
        """body(i) for 0, step, ... below stop."""
        if isinstance(stop, int) and stop == step:
            body(index(0))
        else:
            self.b.loop(0, stop, step, body)

    def depth(self, size: int, packed: PackedOperand) -> int:
        """A depth with some of the zeros that follow in packed operands."""
        return min(round_up(size, 4), packed.columns)

    def _scope(self, keys: TileAxis, c: Node, rows: TileAxis) -> Tiles:
        """A register tile of keys by rows."""
        limit = None if keys.limit is None else sub(keys.limit, c)
        own = TileAxis(keys.axis, add(keys.base, c), self.cut.height, limit)
        return Tiles(self.emission, {}, (own, rows), self.scope)

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

    def pack(
        self, into: PackedOperand, e: Expr, scope: Tiles, rows: TileAxis, columns: Axis
    ) -> None:
        """The elements of an operand over some rows, as many as the axis is wide, and all columns,
        as they lie."""
        lanes, height = min(self.cut.lanes, into.columns), min(4, rows.width)

        def tile(r: Node) -> None:
            for c in range(0, into.columns, lanes):
                found = const(0, self.dtype, (height, lanes))
                if c < columns.size:
                    found = self._operand(e, scope, rows, r, height, columns, index(c), lanes)
                self.b.store(into.memory, into.at(r, c), found, (into.columns, 1))

        self.loop(round_up(rows.width, height), height, tile)

    def pack_turned(
        self, into: PackedOperand, e: Expr, scope: Tiles, rows: TileAxis, columns: Axis
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
        depth: Operand,
        column: Callable[[Node], Node],
        row: Callable[[Node], Node],
        first: Node,
    ) -> Node:
        """`first` with the products of columns and rows of register tiles, one of each for each
        step of the depth. A depth that is data is of whole register tiles."""
        least = self.cut.height if isinstance(depth, Node) else depth
        unroll = next(u for u in (4, 2, 1) if least % u == 0)

        def step(k: Node, total: Node) -> tuple[Node]:
            for u in range(unroll):
                total = dot(column(add(k, u)), row(add(k, u)), total)
            return (total,)

        return self.b.loop(0, depth, unroll, step, (first,))[0]

    def by_column(self, p: PackedOperand, row: Operand) -> Callable[[Node], Node]:
        """Elements of neighbouring rows, at a column."""
        shape = (self.cut.height, 1)
        return lambda k: self.b.load(p.memory, p.at(row, k), shape, (p.columns, 1))

    def by_row(self, p: PackedOperand, column: Operand) -> Callable[[Node], Node]:
        """Elements of neighbouring columns, at a row, below each other."""
        shape = (self.cut.height, 1)
        return lambda k: self.b.load(p.memory, p.at(k, column), shape, (1, 1))

    def lines(self, p: PackedOperand, column: Operand) -> Callable[[Node], Node]:
        """A row's elements in a panel."""
        shape = (1, self.cut.panel)
        return lambda k: self.b.load(p.memory, p.at(k, column), shape, (p.columns, 1))

    def tile(self, p: PackedOperand, row: Operand, column: Operand) -> Node:
        """A register tile of neighbouring rows in a panel."""
        shape = (self.cut.height, self.cut.panel)
        return self.b.load(p.memory, p.at(row, column), shape, (p.columns, 1))

    def store(self, p: PackedOperand, row: Operand, column: Operand, value: Node) -> None:
        """Write a register tile."""
        self.b.store(p.memory, p.at(row, column), value, (p.columns, 1))

    def held(self, memory: Memory, at: Operand) -> Node:
        """The numbers of a panel's rows."""
        return self.b.load(memory, at, (self.cut.panel,), (1,))

    def hold(self, memory: Memory, at: Operand, value: Node) -> Node:
        """The same, set."""
        self.b.store(memory, at, value, (1,))
        return self.held(memory, at)

    def seen_blocks(self, seen: Seen, m0: Node, keys: int) -> tuple[Node, Node]:
        """The first block of keys that some row from m0 on sees, and where they end."""
        return seen_blocks(seen, m0, self.cut.rows, keys, self.cut.keys)


class Flat:
    """A root whose elements lie one after the other."""

    def __init__(self, blocks: AttentionKernel, root: Node, work: Work, axis: Axis) -> None:
        self.blocks, self.root, self.axis = blocks, root, axis
        emission = blocks.emission
        self.memory, start = emission.memory(emission.homes[root], work.nest.own[root])
        self.offset = work.nest.own[root].shift(-start)

    def _at(self, place: Node) -> Node:
        scope = Tiles(self.blocks.emission, {self.axis: place}, (), self.blocks.scope)
        return scope.position(self.offset).scalar

    def load(
        self, place: Node, shape: tuple[int, ...], steps: Sequence[int], limits: Sequence[Limit]
    ) -> Node:
        """A block from an element of the last axis on."""
        return self.blocks.b.load(self.memory, self._at(place), shape, steps, limits)

    def store(
        self, place: Node, value: Node, steps: Sequence[int], limits: Sequence[Limit]
    ) -> None:
        """Write a block."""
        stored = cast(value, self.root.dtype)
        self.blocks.b.store(self.memory, self._at(place), stored, steps, limits)


def emit_attention(a: Attention, work: Work, emission: Emission) -> Grid:
    """Emit the kernel; give its launch grid."""
    if not a.root.type.size:
        return (0, 1, 1)
    if a.given is not None:
        return _Gradients(a, work, emission).emit()
    return _Forward(a, work, emission).emit()


class _Forward(AttentionKernel):
    def __init__(self, a: Attention, work: Work, emission: Emission) -> None:
        dtype = a.dtype
        super().__init__(emission, dtype, choose_cut(a.m.size, a.keys.size, dtype, emission.info))
        self.a, self.work, self.seen = a, work, seen_keys(a)
        cut, b = self.cut, self.b
        self.blocks = ceil_div(a.m.size, cut.rows)
        batch, i = divided(program_id(0), self.blocks)
        # Of causal rows the last ones see most keys: they come first.
        self.m0 = mul(sub(self.blocks - 1, i), cut.rows)
        self.scope = Tiles(emission, decompose(batch, a.batch))
        wide = round_up(a.depth.size, cut.lanes), round_up(a.n.size, max(cut.lanes, cut.height))
        self.q = PackedOperand(b, "q", dtype, wide[0], cut.rows)
        self.k = PackedOperand(b, "k", dtype, round_up(cut.keys, 4), wide[0])
        self.v = PackedOperand(b, "v", dtype, round_up(cut.keys, 4), wide[1])
        self.x = PackedOperand(b, "x", dtype, cut.keys, cut.panel)
        self.sums = PackedOperand(b, "sums", dtype, wide[1], cut.rows)

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

        first, stop = self.seen_blocks(self.seen, self.m0, a.keys.size)
        b.loop(first, stop, cut.keys, block)
        self._finish(most, total)
        return self.blocks * prod(x.size for x in a.batch), 1, 1

    def _panel(self, keys: TileAxis, r: Node, most: Memory, total: Memory, keep: Memory) -> None:
        """A block of keys for a panel of rows."""
        a, b, cut = self.a, self.b, self.cut
        rows = self.rows(a.m, add(self.m0, r), cut.panel)
        count: Operand = cut.keys
        if self.seen.ends:
            # Rows of the panels behind this one may see more of the last block.
            _, stop = seen_blocks(self.seen, rows.base, cut.panel, a.keys.size, cut.keys)
            count = round_up_to(binary("min", sub(stop, keys.base), cut.keys), cut.height)

        factor = next((e for e in a.inner if not (isinstance(e, Constant) and e.value == 1)), None)

        def exponents(c: Node, top: Node) -> tuple[Node]:
            scope = self._scope(keys, c, rows)
            zero = const(0, self.dtype, (cut.height, cut.panel))
            depth = self.depth(a.depth.size, self.k)
            scores = self.product(depth, self.by_column(self.k, c), self.lines(self.q, r), zero)
            scope.local[a.leaves[0]] = scores
            x = cast(broadcast(scope.tile(a.exponent), scope.shape), self.dtype)
            if keys.limit is not None:
                x = where(scope.valid(scope.tile_axes[0]), x, -inf)
            self.store(self.x, c, 0, x)
            return (binary("max", top, reduce("max", x, 0)),)

        before = self.held(most, r)
        (now,) = b.loop(0, count, cut.height, exponents, (before,))
        # A row without a score so far has no maximum to be less than.
        base = where(binary("eq", now, -inf), 0.0, now)
        kept = self.hold(keep, 0, unary("exp", binary("sub", before, base)))
        self.hold(most, r, now)

        def weights(c: Node, sum: Node) -> tuple[Node]:
            x = self.tile(self.x, c, 0)
            power = unary("exp", binary("sub", x, broadcast(base, x.shape)))
            used = power
            if factor is not None:
                scope = self._scope(keys, c, rows)
                used = mul(power, cast(broadcast(scope.tile(factor), x.shape), self.dtype))
            self.store(self.x, c, 0, used)
            return (add(sum, reduce("sum", power, 0)),)

        start = mul(self.held(total, r), kept)
        (sum,) = b.loop(0, count, cut.height, weights, (start,))
        self.hold(total, r, sum)

        def columns(n: Node) -> None:
            first = self.tile(self.sums, n, r)
            first = mul(first, broadcast(kept, first.shape))
            made = self.product(count, self.by_row(self.v, n), self.lines(self.x, 0), first)
            self.store(self.sums, n, r, made)

        self.loop(round_up(a.n.size, cut.height), cut.height, columns)

    def _finish(self, most: Memory, total: Memory) -> None:
        a, b, lanes = self.a, self.b, self.cut.lanes
        out = None if a.flat is None else Flat(self, a.root, self.work, a.flat)

        def tile(n: Node) -> None:
            for r in range(0, self.cut.rows, lanes):
                rows = self.rows(a.m, add(self.m0, r), lanes)
                columns = TileAxis(a.n, n, lanes, left_of(a.n.size, n, lanes))
                scope = Tiles(self.emission, {}, (rows, columns), self.scope)
                found = b.load(
                    self.sums.memory, self.sums.at(n, r), (lanes, lanes), (self.sums.columns, 1)
                )
                over = unary("recip", b.load(total, index(r), (lanes,), (1,)))
                value = mul(
                    transpose(found, (1, 0)), broadcast(reshape(over, (lanes, 1)), scope.shape)
                )
                if out is None:
                    scope.hold(a.root, value)
                    scope.keep(a.root, self.work)
                else:
                    at = add(mul(rows.base, a.n.size), n)
                    out.store(at, value, (a.n.size, 1), (rows.limit, columns.limit))

        self.loop(round_up(a.n.size, lanes), lanes, tile)
        if out is not None:
            for i, memory in enumerate((most, total)):
                for r in range(0, self.cut.rows, self.cut.panel):
                    rows = self.rows(a.m, add(self.m0, r), self.cut.panel)
                    at = add(rows.base, a.m.size * (a.n.size + i))
                    out.store(at, self.held(memory, r), (1,), (rows.limit,))


class _Gradients(AttentionKernel):
    """An instance goes over blocks of rows, and for each over the keys that some row sees. What is
    by q is summed over keys in scratch memory, what is by k and v over rows where it is stored."""

    def __init__(self, a: Attention, work: Work, emission: Emission) -> None:
        assert a.given is not None
        assert a.flat is not None
        super().__init__(
            emission, a.dtype, choose_cut(a.m.size, a.keys.size, a.dtype, emission.info)
        )
        self.a, self.given, self.b, cut = a, a.given, emission.b, self.cut
        self.parts: int = a.root["parts"]
        batch, self.part = divided(program_id(0), self.parts)
        self.scope = Tiles(emission, decompose(batch, a.batch))
        self.out = Flat(self, a.root, work, a.flat)
        d, n, c = (round_up(x, cut.panel) for x in (a.depth.size, a.n.size, cut.keys))
        self.q, self.g = (self._packed(s, cut.rows, w) for s, w in (("q", d), ("given", n)))
        self.qt, self.gt = (
            self._packed(f"{s}_turned", w, cut.rows) for s, w in (("q", d), ("given", n))
        )
        self.k, self.v = (self._packed(s, c, w) for s, w in (("k", d), ("v", n)))
        self.by_scores = self._packed("by_scores", cut.keys, cut.rows)
        self.weights = self._packed("weights", cut.keys, cut.rows)
        self.by_q = self._packed("by_q", d, cut.rows)

    def _packed(self, name: str, rows: int, columns: int) -> PackedOperand:
        return PackedOperand(self.b, name, self.dtype, rows, columns)

    def emit(self) -> Grid:
        """The loops over rows and keys."""
        a, b, cut = self.a, self.b, self.cut
        seen = seen_keys(a)
        own = a.keys.size * (a.depth.size + a.n.size)
        self.by_k = add(mul(self.part, own), a.m.size * a.depth.size)
        self._clear(self.by_k, own)

        def rows_block(m0: Node) -> None:
            rows = self.rows(a.m, m0, cut.rows)
            for e, axis, natural, other in (
                (a.q, a.depth, self.q, self.qt),
                (self.given, a.n, self.g, self.gt),
            ):
                self.pack(natural, e, self.scope, rows, axis)
                self.pack_turned(other, e, self.scope, rows, axis)
            self.fill(self.by_q.memory, self.by_q_rows * cut.rows, 0)

            def keys_block(j0: Node) -> None:
                keys = TileAxis(a.keys, j0, cut.keys, left_of(a.keys.size, j0, cut.keys))
                self.pack(self.k, a.k, self.scope, keys, a.depth)
                self.pack(self.v, a.v, self.scope, keys, a.n)
                self._block(rows, keys)

            b.loop(*self.seen_blocks(seen, m0, a.keys.size), cut.keys, keys_block)
            self._store_by_q(rows)

        step = cut.rows * self.parts
        b.loop(mul(self.part, cut.rows), a.m.size, step, rows_block)
        return self.parts * prod(x.size for x in a.batch), 1, 1

    @property
    def by_q_rows(self) -> int:
        """The columns of q in whole register tiles and vectors."""
        return round_up(self.a.depth.size, self.cut.lanes)

    def _clear(self, first: Node, size: int) -> None:
        width = self.cut.panel
        zero = const(0, self.dtype, (width,))
        self.b.loop(
            0,
            size,
            width,
            lambda i: self.out.store(add(first, i), zero, (1,), (left_of(size, i, width),)),
        )

    def _block(self, rows: TileAxis, keys: TileAxis) -> None:
        """Rows and keys, of which some row sees some."""
        a, cut = self.a, self.cut
        leaves = {n.op: n for n in a.leaves}

        def tiles(r: Node) -> None:
            own = self.rows(a.m, add(rows.base, r), cut.panel)

            def tile(c: Node) -> None:
                scope = self._scope(keys, c, own)
                zero = const(0, self.dtype, (cut.height, cut.panel))
                for name, k, q, depth in (
                    ("scores", self.k, self.qt, a.depth.size),
                    ("score_gradients", self.v, self.gt, a.n.size),
                ):
                    if name in leaves:
                        scope.local[leaves[name]] = self.product(
                            self.depth(depth, k), self.by_column(k, c), self.lines(q, r), zero
                        )
                for e, into in zip(a.inner, (self.by_scores, self.weights), strict=True):
                    value = cast(broadcast(scope.tile(e), scope.shape), self.dtype)
                    for t in scope.tile_axes:
                        if t.limit is not None:
                            value = where(scope.valid(t), value, 0)
                    self.store(into, c, r, value)

            self.loop(cut.keys, cut.height, tile)

        self.loop(cut.rows, cut.panel, tiles)
        by_v = add(self.by_k, a.keys.size * a.depth.size)
        self._by_keys(keys, self.weights, self.g, by_v, a.n.size)
        self._by_keys(keys, self.by_scores, self.q, self.by_k, a.depth.size)

        def columns(d: Node) -> None:
            def panel(r: Node) -> None:
                made = self.product(
                    *(cut.keys, self.by_row(self.k, d), self.lines(self.by_scores, r)),
                    self.tile(self.by_q, d, r),
                )
                self.store(self.by_q, d, r, made)

            self.loop(cut.rows, cut.panel, panel)

        self.loop(round_up(a.depth.size, cut.height), cut.height, columns)

    def _by_keys(
        self, keys: TileAxis, left: PackedOperand, right: PackedOperand, at: Node, size: int
    ) -> None:
        """Add the products of what neighbouring keys have of all rows with the rows' operand."""
        cut = self.cut

        def panel(n: Node) -> None:
            def tile(c: Node) -> None:
                key = add(keys.base, c)
                place = add(at, add(mul(key, size), n))
                limit = None if keys.limit is None else sub(keys.limit, c)
                limits = limit, left_of(size, n, cut.panel)
                before = self.out.load(place, (cut.height, cut.panel), (size, 1), limits)
                made = self.product(cut.rows, self.by_column(left, c), self.lines(right, n), before)
                self.out.store(place, made, (size, 1), limits)

            self.loop(cut.keys, cut.height, tile)

        self.loop(round_up(size, cut.panel), cut.panel, panel)

    def _store_by_q(self, rows: TileAxis) -> None:
        a, lanes = self.a, self.cut.lanes

        def tile(d: Node) -> None:
            for r in range(0, self.cut.rows, lanes):
                found = self.b.load(
                    self.by_q.memory, self.by_q.at(d, r), (lanes, lanes), (self.by_q.columns, 1)
                )
                own = self.rows(a.m, add(rows.base, r), lanes)
                at = add(mul(own.base, a.depth.size), d)
                limits = own.limit, left_of(a.depth.size, d, lanes)
                self.out.store(at, transpose(found, (1, 0)), (a.depth.size, 1), limits)

        self.loop(self.by_q_rows, lanes, tile)
