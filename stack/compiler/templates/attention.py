"""Attention as a template of tile IR for cores with vector registers: scores never leave the
nearest caches (Milakov and Gimelshein, 2018; Dao and others, 2022).

An instance has some rows of q, and goes along the keys a block at a time, as far as some row sees
them, and in the last block with each panel of rows as far as some row of it does. Everything lies
turned, with neighbouring rows in the lanes of a register: a row's maximum and sum are lanes of
vectors, elements of k and v are repeated as they lie in memory, and only q and the result are
turned, once. Where a matrix unit multiplies elements of their type, packed operands and weights are
of that type and lie as it takes them, and v is turned, too.

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
from dataclasses import replace
from math import inf, lcm, prod

from hal.core.description import DeviceInfo, MatrixUnit
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
from stack.compiler.templates.blocking import ceil_div, round_up, sums_in_tiles
from stack.compiler.templates.edges import left_of, round_up_to
from stack.compiler.templates.emission import Emission, TileAxis, Work
from stack.compiler.templates.instances import decompose
from stack.compiler.templates.product import divided, kept
from stack.compiler.templates.tiles import Tiles, zero_beyond
from stack.compiler.units import into_groups, out_of_groups, units_of

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
    tall: int
    """Rows of a register tile of sums of products: several of the others where these sums are in
    tile registers."""
    unit: MatrixUnit | None = None
    """What products are by; None: by multiply-adds."""

    @property
    def deep(self) -> int:
        """The depth that a product has at once."""
        return 1 if self.unit is None else self.unit.k

    @property
    def step(self) -> int:
        """What numbers of keys are rounded up to."""
        if self.unit is None:
            return self.height
        return lcm(self.height, self.tall, self.deep, self.lanes)

    @property
    def in_tiles(self) -> bool:
        """Whether sums of products are in tile registers."""
        return self.unit is not None and bool(self.unit.register)


def choose_cut(
    m: int, keys: int, dtype: DType, info: DeviceInfo, operands: tuple[DType, ...]
) -> Cut:
    """Panels two registers wide; as many rows of register tiles as hide the latency of sums and
    divide a block of keys. What is data is taken to be long. `operands` are the types of what is
    multiplied, `dtype` is that of sums."""
    m, keys = (size if is_fixed(size) else max(hint(size), KEYS) for size in (m, keys))
    lanes = max(1, info.limits.vector_nbytes // dtype.nbytes)
    height = 8 if info.limits.registers >= 32 else 4
    # One panel of rows is not worth turning v for a unit.
    unit = _unit(operands, dtype, lanes, info) if m > lanes else None
    tall, panel = height, lanes if m <= lanes else 2 * lanes
    if unit is not None and unit.register:
        tall, panel = sums_in_tiles(unit, 2 * unit.m, min(m, 2 * unit.n))
        lanes = min(lanes, unit.n)
    rows = panel * min(PANELS, ceil_div(m, panel))
    cut = Cut(panel, rows, KEYS, height, lanes, tall, unit)
    step = cut.step
    rows = round_up(rows, lcm(panel, cut.deep))
    return replace(cut, rows=rows, keys=round_up(min(KEYS, keys), step))


def _unit(
    operands: tuple[DType, ...], dtype: DType, lanes: int, info: DeviceInfo
) -> MatrixUnit | None:
    """The unit that multiplies operands of one type, whose rows of sums are whole vectors or parts
    of one."""
    if len(set(operands)) != 1:
        return None

    def fits(u: MatrixUnit) -> bool:
        evenly = u.n % lanes == 0 or lanes % u.n == 0
        return evenly if u.register else u.n == lanes

    return next((u for u in units_of(operands[0], operands[0], dtype, info) if fits(u)), None)


class PackedOperand:
    """An operand of products in scratch memory, beyond its ends zero. So many neighbours along its
    rows' axis may lie side by side (`into_groups`)."""

    def __init__(
        self, b: Builder, name: str, dtype: DType, rows: int, columns: int, together: int = 1
    ) -> None:
        self.memory, self.columns = b.alloc(name, dtype, rows * columns), columns
        self.dtype, self.together = dtype, together

    def at(self, row: Operand, column: Operand) -> Node:
        """The place of an element, or of a group that begins at that row."""
        return add(mul(index(row), self.columns), mul(index(column), self.together))

    @property
    def pitch(self) -> int:
        """The elements from a row, or a row of groups, to the next."""
        return self.columns * self.together


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

    def __init__(self, a: Attention, emission: Emission) -> None:
        self.a, self.emission, self.b, self.dtype = a, emission, emission.b, a.dtype
        operands = tuple(s.dtype for s in a.root.srcs[: 3 if a.given is None else 4])
        self.cut = choose_cut(a.m.size, a.keys.size, a.dtype, emission.info, operands)
        unit = self.cut.unit
        self.packed = a.dtype if unit is None else unit.inputs
        """The type of packed operands."""
        self.together = 1 if unit is None else unit.together

    def left(self, name: str, rows: int, columns: int) -> PackedOperand:
        """Room for a left operand of products, whose columns are their depth."""
        return PackedOperand(self.b, name, self.packed, rows, columns)

    def left_across(self, name: str, depth: int, rows: int) -> PackedOperand:
        """The same of one whose rows in memory are the depth: as they lie, or turned for a unit."""
        size = (depth, rows) if self.cut.unit is None else (rows, depth)
        return PackedOperand(self.b, name, self.packed, *size)

    def right(self, name: str, rows: int, columns: int) -> PackedOperand:
        """Room for a right operand of products, whose rows are their depth."""
        return PackedOperand(self.b, name, self.packed, rows, columns, self.together)

    def room(self, name: str, rows: int, columns: int) -> PackedOperand:
        """Room for what products are summed into, or exponents."""
        return PackedOperand(self.b, name, self.dtype, rows, columns)

    def loop(self, stop: Operand, step: int, body: Callable[[Node], None]) -> None:
        """body(i) for 0, step, ... below stop."""
        if isinstance(stop, int) and stop == step:
            body(index(0))
        else:
            self.b.loop(0, stop, step, body)

    def depth(self, size: int, packed: PackedOperand) -> int:
        """A depth with some of the zeros that follow in packed operands."""
        return min(round_up(size, max(4, self.cut.deep)), packed.columns)

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

    def fill(self, memory: Memory, size: int, value: float, first: int = 0) -> None:
        """Set so many elements, from one on."""
        width = self.cut.panel
        tile = const(value, memory.dtype, (width,))
        self.loop(size, width, lambda i: self.b.store(memory, add(i, first), tile, (1,)))

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
                self.store(into, r, c, found)

        self.loop(round_up(rows.width, height), height, tile)

    def pack_turned(
        self, into: PackedOperand, e: Expr, scope: Tiles, rows: TileAxis, columns: Axis
    ) -> None:
        """The same with a column's elements side by side."""
        lanes = self.cut.lanes
        read = round_up(columns.size, lanes)

        def tile(c: Node) -> None:
            for r in range(0, rows.width, lanes):
                found = self._operand(e, scope, rows, index(r), lanes, columns, c, lanes)
                if into.together == 1:
                    self.b.store(into.memory, into.at(c, r), found, (1, into.columns))
                else:
                    self.store(into, c, r, transpose(found, (1, 0)))

        self.loop(read, lanes, tile)
        beyond = round_up(columns.size, lcm(lanes, self.cut.deep)) - read
        if beyond:
            self.fill(into.memory, beyond * into.columns, 0, read * into.columns)

    def pack_across(
        self, into: PackedOperand, e: Expr, scope: Tiles, rows: TileAxis, columns: Axis
    ) -> None:
        """The same for products over the rows."""
        pack = self.pack if self.cut.unit is None else self.pack_turned
        pack(into, e, scope, rows, columns)

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
        return kept(broadcast(zero_beyond(inner, e), inner.shape), self.packed)

    def product(
        self,
        depth: Operand,
        column: Callable[[Node], Node],
        row: Callable[[Node], Node],
        first: Node,
    ) -> Node:
        """`first` with the products of columns and rows of register tiles, one of each for each
        step of the depth. A depth that is data is of whole register tiles."""
        deep = self.cut.deep
        least = self.cut.step if isinstance(depth, Node) else depth
        unroll = 1 if self.cut.in_tiles else next(u for u in (4, 2, 1) if least % (u * deep) == 0)

        def step(k: Node, total: Node) -> tuple[Node]:
            for u in range(0, unroll * deep, deep):
                total = dot(column(add(k, u)), row(add(k, u)), total)
            return (total,)

        return self.b.loop(0, depth, unroll * deep, step, (first,))[0]

    def by_column(self, p: PackedOperand, row: Operand) -> Callable[[Node], Node]:
        """Elements of neighbouring rows, from a column on."""
        shape = (self.cut.tall, self.cut.deep)
        return lambda k: self.b.load(p.memory, p.at(row, k), shape, (p.columns, 1))

    def across(self, p: PackedOperand, column: Operand) -> Callable[[Node], Node]:
        """Elements of neighbouring columns of what `left_across` made room for, from a row on,
        below each other."""
        if self.cut.unit is not None:
            return self.by_column(p, column)
        shape = (self.cut.tall, 1)
        return lambda k: self.b.load(p.memory, p.at(k, column), shape, (1, 1))

    def lines(self, p: PackedOperand, column: Operand) -> Callable[[Node], Node]:
        """Rows' elements in a panel, from a row on."""
        panel, group, deep = self.cut.panel, p.together, self.cut.deep
        if self.cut.in_tiles:
            shape, steps = (deep // group, panel * group), (p.pitch, 1)
        else:
            shape, steps = (deep, panel), (p.columns, 1) if group == 1 else (1, group)

        def load(k: Node) -> Node:
            found = self.b.load(p.memory, p.at(k, column), shape, steps)
            return out_of_groups(found, group) if self.cut.in_tiles else found

        return load

    def tile(self, p: PackedOperand, row: Operand, column: Operand, height: int = 0) -> Node:
        """A register tile of neighbouring rows in a panel."""
        shape = (height or self.cut.height, self.cut.panel)
        return self.b.load(p.memory, p.at(row, column), shape, (p.columns, 1))

    def store(self, p: PackedOperand, row: Operand, column: Operand, value: Node) -> None:
        """Write a tile."""
        tile = into_groups(kept(value, p.dtype), p.together)
        self.b.store(p.memory, p.at(row, column), tile, (p.pitch, 1))

    def scores(
        self,
        made: PackedOperand | None,
        c: Node,
        k: PackedOperand,
        q: PackedOperand,
        r: Operand,
        depth: int,
    ) -> Node:
        """Products of keys from the c-th of a block on and a panel of rows, or what `in_memory` has
        made of them."""
        if made is not None:
            return self.tile(made, c, 0)
        zero = const(0, self.dtype, (self.cut.height, self.cut.panel))
        return self.product(self.depth(depth, k), self.by_column(k, c), self.lines(q, r), zero)

    def in_memory(
        self,
        room: PackedOperand,
        count: Operand,
        k: PackedOperand,
        q: PackedOperand,
        r: Operand,
        depth: int,
    ) -> None:
        """The same of so many keys, from tile registers to memory: they are more than vector
        registers hold."""
        zero = const(0, self.dtype, (self.cut.tall, self.cut.panel))

        def tile(c: Node) -> None:
            columns, rows = self.by_column(k, c), self.lines(q, r)
            self.store(room, c, 0, self.product(self.depth(depth, k), columns, rows, zero))

        self.loop(count, self.cut.tall, tile)

    def held(self, memory: Memory, at: Operand) -> Node:
        """The numbers of a panel's rows."""
        return self.b.load(memory, at, (self.cut.panel,), (1,))

    def hold(self, memory: Memory, at: Operand, value: Node) -> Node:
        """The same, set."""
        self.b.store(memory, at, value, (1,))
        return self.held(memory, at)

    def count(self, keys: TileAxis, seen: Seen, stop: Node) -> Operand:
        """The keys of a block before where some row sees no more, in whole steps."""
        if keys.limit is None and not seen.ends:
            return self.cut.keys
        return round_up_to(binary("min", sub(stop, keys.base), self.cut.keys), self.cut.step)

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
        super().__init__(a, emission)
        self.work, self.seen = work, seen_keys(a)
        cut = self.cut
        self.blocks = ceil_div(a.m.size, cut.rows)
        batch, i = divided(program_id(0), self.blocks)
        # Of causal rows the last ones see most keys: they come first.
        self.m0 = mul(sub(self.blocks - 1, i), cut.rows)
        self.scope = Tiles(emission, decompose(batch, a.batch))
        wide = (
            round_up(a.depth.size, lcm(cut.lanes, cut.deep)),
            round_up(a.n.size, lcm(cut.lanes, cut.tall)),
        )
        self.q = self.right("q", wide[0], cut.rows)
        self.k = self.left("k", round_up(cut.keys, 4), wide[0])
        self.v = self.left_across("v", round_up(cut.keys, 4), wide[1])
        self.x = self.room("x", cut.keys, cut.panel)
        self.weights = self.x if cut.unit is None else self.right("weights", cut.keys, cut.panel)
        self.sums = self.room("sums", wide[1], cut.rows)

    def emit(self) -> Grid:
        """The loop over keys between what is read before and stored after it."""
        a, b, cut = self.a, self.b, self.cut
        most, total = self.vector("most", -inf), self.vector("total", 0)
        keep = b.alloc("keep", self.dtype, cut.panel)
        self.fill(self.sums.memory, round_up(a.n.size, cut.tall) * cut.rows, 0)
        rows = self.rows(a.m, self.m0, cut.rows)
        count = cut.rows if rows.limit is None else binary("min", rows.limit, cut.rows)
        self.pack_turned(self.q, a.q, self.scope, rows, a.depth)

        def block(j0: Node) -> None:
            keys = TileAxis(a.keys, j0, cut.keys, left_of(a.keys.size, j0, cut.keys))
            self.pack(self.k, a.k, self.scope, keys, a.depth)
            self.pack_across(self.v, a.v, self.scope, keys, a.n)
            self.loop(count, cut.panel, lambda r: self._panel(keys, r, most, total, keep))

        first, stop = self.seen_blocks(self.seen, self.m0, a.keys.size)
        b.loop(first, stop, cut.keys, block)
        self._finish(most, total)
        return self.blocks * prod(x.size for x in a.batch), 1, 1

    def _panel(self, keys: TileAxis, r: Node, most: Memory, total: Memory, keep: Memory) -> None:
        """A block of keys for a panel of rows."""
        a, b, cut = self.a, self.b, self.cut
        rows = self.rows(a.m, add(self.m0, r), cut.panel)
        # Rows of the panels behind this one may see more of the last block.
        _, stop = seen_blocks(self.seen, rows.base, cut.panel, a.keys.size, cut.keys)
        count = self.count(keys, self.seen, stop)

        factor = next((e for e in a.inner if not (isinstance(e, Constant) and e.value == 1)), None)

        scores = self.k, self.q, r, a.depth.size
        made = self.x if cut.in_tiles else None
        if made is not None:
            self.in_memory(made, count, *scores)

        def exponents(c: Node, top: Node) -> tuple[Node]:
            scope = self._scope(keys, c, rows)
            scope.local[a.leaves[0]] = self.scores(made, c, *scores)
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
            self.store(self.weights, c, 0, used)
            return (add(sum, reduce("sum", power, 0)),)

        start = mul(self.held(total, r), kept)
        (sum,) = b.loop(0, count, cut.height, weights, (start,))
        self.hold(total, r, sum)

        def columns(n: Node) -> None:
            first = self.tile(self.sums, n, r, cut.tall)
            first = mul(first, broadcast(kept, first.shape))
            made = self.product(count, self.across(self.v, n), self.lines(self.weights, 0), first)
            self.store(self.sums, n, r, made)

        self.loop(round_up(a.n.size, cut.tall), cut.tall, columns)

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
        super().__init__(a, emission)
        self.given, cut = a.given, self.cut
        self.parts: int = a.root["parts"]
        batch, self.part = divided(program_id(0), self.parts)
        self.scope = Tiles(emission, decompose(batch, a.batch))
        self.out = Flat(self, a.root, work, a.flat)
        whole = lcm(cut.panel, cut.deep, cut.tall)
        d, n, c = (round_up(x, whole) for x in (a.depth.size, a.n.size, cut.keys))
        self.q, self.g = (self.right(s, cut.rows, w) for s, w in (("q", d), ("given", n)))
        self.qt, self.gt = (
            self.right(f"{s}_turned", w, cut.rows) for s, w in (("q", d), ("given", n))
        )
        self.k, self.v = (self.left(s, c, w) for s, w in (("k", d), ("v", n)))
        self.by_scores = self.left("by_scores", cut.keys, cut.rows)
        self.weights = self.left("weights", cut.keys, cut.rows)
        self.by_q = self.room("by_q", d, cut.rows)
        # For products over keys, a unit reads both operands otherwise than for the others.
        self.kt, self.over_keys = self.k, self.by_scores
        if cut.unit is not None:
            self.kt = self.left_across("k_turned", c, d)
            self.over_keys = self.right("by_scores_over_keys", cut.keys, cut.rows)
        self.made = {
            n.op: self.room(n.op, cut.keys, cut.panel) for n in (a.leaves if cut.in_tiles else ())
        }

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
            self.fill(self.by_q.memory, round_up(self.by_q_rows, cut.tall) * cut.rows, 0)

            def keys_block(j0: Node) -> None:
                keys = TileAxis(a.keys, j0, cut.keys, left_of(a.keys.size, j0, cut.keys))
                self.pack(self.k, a.k, self.scope, keys, a.depth)
                self.pack(self.v, a.v, self.scope, keys, a.n)
                if self.kt is not self.k:
                    self.pack_across(self.kt, a.k, self.scope, keys, a.depth)
                self._block(rows, keys, self.count(keys, seen, stop))

            first, stop = self.seen_blocks(seen, m0, a.keys.size)
            b.loop(first, stop, cut.keys, keys_block)
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

    def _block(self, rows: TileAxis, keys: TileAxis, count: Operand) -> None:
        """Rows and so many keys, of which some row sees some."""
        a, cut = self.a, self.cut
        by_scores = list(dict.fromkeys((self.by_scores, self.over_keys)))

        def tiles(r: Node) -> None:
            own = self.rows(a.m, add(rows.base, r), cut.panel)
            operands = {
                "scores": (self.k, self.qt, r, a.depth.size),
                "score_gradients": (self.v, self.gt, r, a.n.size),
            }
            for name, room in self.made.items():
                self.in_memory(room, count, *operands[name])

            def tile(c: Node) -> None:
                scope = self._scope(keys, c, own)
                for leaf in a.leaves:
                    room = self.made.get(leaf.op)
                    scope.local[leaf] = self.scores(room, c, *operands[leaf.op])
                for e, into in zip(a.inner, (by_scores, [self.weights]), strict=True):
                    value = cast(broadcast(scope.tile(e), scope.shape), self.dtype)
                    for t in scope.tile_axes:
                        if t.limit is not None:
                            value = where(scope.valid(t), value, 0)
                    for packed in into:
                        self.store(packed, c, r, value)

            self.loop(count, cut.height, tile)

        self.loop(cut.rows, cut.panel, tiles)
        by_v = add(self.by_k, a.keys.size * a.depth.size)
        self._by_keys(keys, count, self.weights, self.g, by_v, a.n.size)
        self._by_keys(keys, count, self.by_scores, self.q, self.by_k, a.depth.size)

        def columns(d: Node) -> None:
            def panel(r: Node) -> None:
                made = self.product(
                    *(count, self.across(self.kt, d), self.lines(self.over_keys, r)),
                    self.tile(self.by_q, d, r, cut.tall),
                )
                self.store(self.by_q, d, r, made)

            self.loop(cut.rows, cut.panel, panel)

        self.loop(round_up(a.depth.size, cut.tall), cut.tall, columns)

    def _by_keys(
        self,
        keys: TileAxis,
        count: Operand,
        left: PackedOperand,
        right: PackedOperand,
        at: Node,
        size: int,
    ) -> None:
        """Add the products of what neighbouring keys have of all rows with the rows' operand."""
        cut = self.cut

        def panel(n: Node) -> None:
            def tile(c: Node) -> None:
                key = add(keys.base, c)
                place = add(at, add(mul(key, size), n))
                limit = None if keys.limit is None else sub(keys.limit, c)
                limits = limit, left_of(size, n, cut.panel)
                before = self.out.load(place, (cut.tall, cut.panel), (size, 1), limits)
                made = self.product(cut.rows, self.by_column(left, c), self.lines(right, n), before)
                self.out.store(place, made, (size, 1), limits)

            self.loop(count, cut.tall, tile)

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
