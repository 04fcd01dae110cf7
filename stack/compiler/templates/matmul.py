"""Matrix multiplication as a template of tile IR for devices with vector registers and caches.

Each program instance computes a block of C. It packs its operands into panels in scratch memory,
as wide as a register tile and zero-padded, so that the innermost loop reads consecutive elements
and needs no masks:

    for k0 in blocks of kc:
        pack B[k0:, n0:] into panels [kc][nr]
        for i0 in blocks of mc:
            pack A[i0:, k0:] into panels [kc][mr], or [mr][kc] where k comes in uneven pieces
            for each panel of B, for each panel of A:
                tile = 0
                for k: tile += outer product of a column of A's panel and a row of B's panel
                tile += partial sums that wait for it (pairs.py)
                epilogue(tile) after the last k0, else keep it as partial sums
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import prod

from hal.core.description import DeviceInfo
from hal.core.facts import dataclass
from hal.core.values import Grid
from hal.tile.build import (
    Builder,
    Operand,
    add,
    arange,
    binary,
    bitcast,
    broadcast,
    const,
    dot,
    index,
    mul,
    program_id,
    reshape,
    sub,
    transpose,
    unary,
    where,
)
from hal.tile.kernel import Memory
from hal.tile.node import Node
from hal.tile.size import divides, hint, is_fixed
from stack.compiler.pairs import SERIAL_PRODUCTS, Sums, completed, waiting
from stack.compiler.templates.blocking import Blocks, MatmulShape, ceil_div, choose_blocks, round_up
from stack.compiler.templates.edges import (
    NO_LIMITS,
    Limits,
    at_most,
    inside,
    least,
    left_of,
    round_up_to,
    whole_or_by_rows,
)
from stack.compiler.templates.product import LoadTile, Place, Product, Steady, divided, kept
from stack.compiler.units import UNSIGNED, into_groups, out_of_groups, stacked

LINES = 4
"""Rows of a tile that tile registers leave in memory, which are finished at a time: their vectors
are as many as fit in registers."""


def matmul(b: Builder, p: Product, info: DeviceInfo, blocks: Blocks | None = None) -> Grid:
    """Emit a product and give its launch grid (with a 0 where C is empty).

    Without `blocks` their sizes follow from the shape and the device.
    """
    shape = p.shape
    if 0 in (shape.batch, shape.m, shape.n):
        return (0, 1, 1)
    blocks = blocks or choose_blocks(shape.hinted(), info)
    _MatmulTemplate(b, p, blocks).emit()
    down, across = _program_counts(shape, blocks)
    return across * down * shape.batch, 1, 1


@dataclass(frozen=True)
class _Block:
    """What one instance computes: its batch, its corner, and the rows and columns of C in it."""

    batch: Node
    m0: Node
    n0: Node
    rows: Operand
    cols: Operand


@dataclass(frozen=True)
class _Scratch:
    """Packed operands (no A that is read in place, no B that lies so in memory), the partial sums
    where k takes several blocks, the lines in work where some tile reaches beyond C, the tile that
    tile registers leave, and what sums by column begin with where A is packed with more than it
    has."""

    a: Memory | None
    b: Memory | None
    c: Memory | None
    edge: Memory | None
    sums: Memory | None
    columns: Memory | None


@dataclass(frozen=True)
class _MatmulTemplate:
    b: Builder
    p: Product
    blocks: Blocks

    @property
    def shape(self) -> MatmulShape:
        return self.p.shape

    def emit(self) -> None:
        s, t = self.shape, self.blocks
        down, across = _program_counts(s, t)
        rest, i = divided(program_id(0), down)
        batch, j = divided(rest, across)
        m0, n0 = mul(i, t.mp), mul(j, t.np)
        rows = least(t.mp, sub(s.m, m0), divides(t.mp, s.m))
        cols = least(t.np, sub(s.n, n0), divides(t.np, s.n))
        block, scratch = _Block(batch, m0, n0, rows, cols), self._scratch()
        if self.p.is_there is None:
            self._all_depths(block, scratch)
            return
        there = self.p.is_there(block.batch)
        with self.b.when(there):
            self._all_depths(block, scratch)
        with self.b.when(unary("not", there)):
            t, b = self.blocks, self.b
            zeros = const(0, self.shape.accumulate, (self._lines, t.nr))

            def tile(i: Node, j: Node, rest: Node | None) -> None:
                m, n = add(block.m0, i), add(block.n0, j)
                self._finish(block, scratch.edge, zeros, m, n, rest)

            def tiles(i: Node, _: Node, rest: Node | None) -> None:
                b.loop(0, block.cols, t.nr, lambda j: tile(i, j, rest))

            self._each_rows(block.rows, self._lines, tiles)

    def _all_depths(self, block: _Block, scratch: _Scratch) -> None:
        depth, kc = self.shape.k, self.blocks.kc
        if is_fixed(depth) and depth <= kc:
            self._depth_block(block, scratch, index(0), round_up(depth, self.blocks.whole))
            return

        def step(k0: Node) -> None:
            left = least(kc, sub(depth, k0), divides(kc, depth))
            self._depth_block(block, scratch, k0, round_up_to(left, self.blocks.whole))

        self.b.loop(0, depth, kc, step)

    @property
    def _depth_blocks(self) -> int:
        return ceil_div(self.shape.k, self.blocks.kc)

    @property
    def _lines(self) -> int:
        """The rows of a tile of sums that vector registers hold at a time."""
        return LINES if self.shape.tile else self.blocks.mr

    @property
    def _pitch(self) -> int:
        return self.shape.pitch(self.blocks.mr)

    def _panel(self, i: Node) -> Node:
        """Where the panel of A that begins at row i of a block does."""
        t = self.blocks
        if self._pitch == t.mr:
            return mul(i, t.kc)
        return mul(binary("div", i, t.mr), self._pitch * t.kc)

    @property
    def _b_in_place(self) -> bool:
        """Whether rows of B's panels are read where they are."""
        s, t = self.shape, self.blocks
        fits = self.p.b_panels and self.p.b_panels % t.nr == 0
        return bool(fits) and divides(t.kt, s.k)

    @property
    def _a_in_place(self) -> bool:
        """Whether columns of A are read where they are."""
        return self.p.in_place_a is not None and self.shape.in_place(self.blocks)

    @property
    def _run(self) -> int:
        """The rows of which each run of register tiles is; 0: they follow one another."""
        return self.shape.run_of(self.blocks.mr) if self._a_in_place else 0

    def _each_rows(
        self, rows: Operand, step: int, body: Callable[[Node, Node, Node | None], None]
    ) -> None:
        """body(row, slot, left) for so many rows after others of a block: where they are, where
        their sums wait among those of all tiles, and how many are left in their run."""
        b, t, run = self.b, self.blocks, self._run
        if not run:
            b.loop(0, rows, step, lambda i: body(i, i, None))
            return

        def tiles(r: Node) -> None:
            begin = mul(binary("div", r, run), round_up(run, t.mr))
            b.loop(0, run, t.mr, lambda x: body(add(r, x), add(begin, x), sub(run, x)))

        b.loop(0, rows, run, tiles)

    @property
    def _slots(self) -> int:
        """The rows of a block's tiles."""
        t, run = self.blocks, self._run
        return t.mp // run * round_up(run, t.mr) if run else t.mp

    def _scratch(self) -> _Scratch:
        s, t, dtype = self.shape, self.blocks, self.shape.accumulate
        beyond = 0 if self._k_evenly else t.kt  # what is behind the last run, until it is written
        held = t.mc // t.mr * self._pitch * t.kc + beyond
        a = None if self._a_in_place else self.b.alloc("packed_a", s.packed, held)
        room = (t.kc + beyond) * t.np
        b = None if self._b_in_place else self.b.alloc("packed_b", s.packed_right, room)
        held = s.waiting(t.kc) * self._slots * t.np
        c = self.b.alloc("partial_c", dtype, held) if held else None
        whole = divides(self._lines, self._run or s.m) and divides(t.nr, s.n)
        edge = None if whole else self.b.alloc("edge", dtype, self._lines * t.nr)
        sums = self.b.alloc("sums", dtype, t.mr * t.nr) if s.tile else None
        columns = self.b.alloc("columns", dtype, t.np) if s.moved else None
        return _Scratch(a, b, c, edge, sums, columns)

    def _depth_block(self, block: _Block, scratch: _Scratch, k0: Node, depth: Operand) -> None:
        """Add A[:, k0:k0+depth] @ B[k0:k0+depth, :]; `depth`, a multiple of `kt`, may exceed k."""
        t = self.blocks
        if scratch.b is not None:
            self._pack_b(block, scratch.b, k0, depth)
            if scratch.columns is not None:
                self._add_columns(scratch.b, scratch.columns, block.cols, depth)

        def rows_block(i0: Node) -> None:
            rows = least(
                t.mc, sub(block.rows, i0), divides(t.mp, self.shape.m) and t.mp % t.mc == 0
            )
            if scratch.a is not None:
                self._pack_a(block, scratch.a, i0, rows, k0, depth)
            self._tiles(block, scratch, i0, rows, k0, depth)

        if t.mc == t.mp:
            rows_block(index(0))
        else:
            self.b.loop(0, block.rows, t.mc, rows_block)

    def _pack_b(self, block: _Block, panels: Memory, k0: Node, depth: Operand) -> None:
        s, t, b = self.shape, self.blocks, self.b

        # As wide as the runs seem to be.
        width = t.nr
        while s.n_run and width // 2 >= hint(s.n_run):
            width //= 2

        def piece(kk: Node, j: Node, x: Node, most: Node | None) -> None:
            """What is in a row of a panel from x on, up to `most` elements of it."""
            k, n = add(k0, kk), add(add(block.n0, j), x)
            limits = left_of(s.k, k, t.kt), at_most(left_of(s.n, n, t.nr), most)
            loaded = self.p.load_b(b, block.batch, k, n, (1, width), limits)
            offset = add(add(mul(j, t.kc), self._row_of(kk, t.nr)), mul(x, s.together))
            b.store(panels, offset, kept(loaded, s.packed_right), (t.nr, s.together), (None, most))

        def panel_by_runs(j: Node) -> None:
            def part(x: Node, most: Node) -> None:
                b.loop(0, depth, 1, lambda kk: piece(kk, j, x, most))

            def run(first: Node, count: Node) -> None:
                end = add(first, count)
                b.loop(first, end, width, lambda x: part(x, sub(end, x)))

            self._each_run(add(block.n0, j), t.nr, s.n_run, run)

        if self.p.b_uneven:
            if s.n_run and not divides(t.nr, s.n_run):
                b.loop(0, block.cols, t.nr, panel_by_runs)
                return

            def rows(kk: Node, j: Node) -> None:
                """As many as lie together: side by side they are neighbours in memory."""
                n, lines = add(block.n0, j), []
                for u in range(s.together):
                    k = add(add(k0, kk), u)
                    limits = left_of(s.k, k, t.kt), left_of(s.n, n, t.nr)
                    loaded = self.p.load_b(b, block.batch, k, n, (1, t.nr), limits)
                    lines.append(kept(loaded, s.packed_right))
                offset = add(mul(j, t.kc), mul(kk, t.nr))
                b.store(panels, offset, into_groups(stacked(lines), s.together), (1, 1))

            grouped = s.together > 1 and not s.tile
            own = rows if grouped else lambda kk, j: piece(kk, j, index(0), None)
            b.loop(
                *(0, depth, s.together if grouped else 1),
                lambda kk: b.loop(0, block.cols, t.nr, lambda j: own(kk, j)),
            )
            return

        def tile(j: Node, kk: Node, most: Node | None = None) -> None:
            k, n = add(k0, kk), add(block.n0, j)
            offset = add(mul(j, t.kc), mul(kk, t.nr))

            def pack(row: Node, shape: tuple[int, int], limits: Limits) -> None:
                loaded = self.p.load_b(b, block.batch, add(k, row), n, shape, limits)
                stored = into_groups(kept(loaded, s.packed_right), s.together)
                b.store(panels, add(offset, mul(row, t.nr)), stored, (t.nr * s.together, 1))

            limits = at_most(left_of(s.k, k, t.kt), most), left_of(s.n, n, t.nr)
            whole_or_by_rows(b, (t.kt, t.nr), limits, pack, s.together)

        if s.b_contiguous == "k" and not self._k_evenly:
            b.loop(
                *(0, block.cols, t.nr),
                lambda j: self._each_k_run(k0, depth, lambda kk, _, most: tile(j, kk, most)),
            )
            return
        self._each_tile((block.cols, t.nr), depth, s.b_contiguous == "k", tile)

    def _of_a(self, tile: Node) -> Node:
        """What is loaded of A as it is packed."""
        s = self.shape
        if not s.moved:
            return kept(tile, s.packed)
        signed = next(d for d, unsigned in UNSIGNED.items() if unsigned is s.packed)
        return binary("xor", bitcast(kept(tile, signed), s.packed), s.moved)

    def _add_columns(self, panels: Memory, columns: Memory, cols: Operand, depth: Operand) -> None:
        """Of each column of a block of packed B the sum by which sums are too large, below zero."""
        s, t, b = self.shape, self.blocks, self.b
        moved = const(s.moved, s.packed, (1, s.together))

        def panel(j: Node) -> None:
            def step(kk: Node, total: Node) -> tuple[Node]:
                at = add(mul(j, t.kc), mul(kk, t.nr))
                row = b.load(panels, at, (s.together, t.nr), (1, s.together))
                return (dot(moved, row, total),)

            zeros = (const(0, s.accumulate, (1, t.nr)),)
            (total,) = b.loop(0, depth, s.together, step, zeros)
            b.store(columns, j, unary("neg", total), (t.nr, 1))

        b.loop(0, cols, t.nr, panel)

    def _pack_a(
        self, block: _Block, panels: Memory, i0: Node, rows: Operand, k0: Node, depth: Operand
    ) -> None:
        s, t, b = self.shape, self.blocks, self.b
        steady = self.p.steady_a if s.together == 1 else None
        if steady is not None and (divides(t.mr, s.m_run) or t.mr <= hint(s.m_run) + 1):
            windows = functools.partial(self._pack_windows, steady, block, panels, i0, rows, k0)
            if divides(t.mr, s.m_run) or is_fixed(s.m_run):
                windows(depth)
                return
            # Of a size that is data it is found when the kernel runs whether runs are long enough.
            long = binary("le", index(t.mr - 1), s.m_run)
            with b.when(long):
                windows(depth)
            with b.when(unary("not", long)):
                self._pack_a_by_runs(block, panels, i0, rows, k0, depth)
            return
        if s.m_run and not divides(t.mr, s.m_run):
            self._pack_a_by_runs(block, panels, i0, rows, k0, depth)
            return

        def row(i: Node, r: Node, kk: Node, at: Place, most: Node | None = None) -> None:
            m, k = add(add(add(block.m0, i0), i), r), add(k0, kk)
            limits = left_of(s.m, m, t.mr), at_most(left_of(s.k, k, t.kt), most)

            def pack(load: LoadTile, limits: Limits) -> None:
                loaded = load(b, block.batch, m, at, (1, t.kt), limits)
                self._store_a(panels, self._panel(i), r, kk, self._of_a(loaded))

            inner = self.p.inner_a
            whole = None if inner is None else inner.holds(block.batch, m, at, (1, t.kt))
            if inner is None or whole is None:
                pack(self.p.load_a, limits)
                return
            # To find a mask takes several times as long as to load and store a tile without one.
            if limits != NO_LIMITS:
                whole = binary("and", whole, inside((1, t.kt), limits))
            with b.when(whole):
                pack(inner.load, NO_LIMITS)
            with b.when(unary("not", whole)):
                pack(self.p.load_a, limits)

        def rows_of(i: Node) -> None:
            def line(r: Node) -> None:
                if s.k_run:
                    self._each_k_run(k0, depth, lambda kk, at, most: row(i, r, kk, at, most))
                else:
                    b.loop(0, depth, t.kt, lambda kk: row(i, r, kk, add(k0, kk)))

            b.loop(0, t.mr, 1, line)

        if self._a_by_rows:
            b.loop(0, rows, t.mr, rows_of)
            return
        if self.p.a_uneven:
            start = add(block.m0, i0)

            def column(kk: Node, i: Node) -> None:
                self._pack_column(block, panels, start, i, index(0), add(k0, kk), kk, None)

            def columns(kk: Node, i: Node) -> None:
                """As many as lie together: side by side they are neighbours in memory."""
                m, k = add(start, i), add(k0, kk)
                lines = []
                for u in range(s.together):
                    limits = left_of(s.m, m, t.mr), left_of(s.k, add(k, u), t.kt)
                    loaded = self.p.load_a(b, block.batch, m, add(k, u), (t.mr, 1), limits)
                    lines.append(transpose(self._of_a(loaded), (1, 0)))
                offset = add(self._panel(i), mul(kk, self._pitch))
                b.store(panels, offset, into_groups(stacked(lines), s.together), (1, 1))

            own = column if s.together == 1 or s.tile else columns
            step = 1 if own is column else s.together
            b.loop(0, depth, step, lambda kk: b.loop(0, rows, t.mr, lambda i: own(kk, i)))
            return

        rest = s.m - t.mr, s.k - t.kt
        ahead = (
            self.p.a_plain and s.a_contiguous == "k" and all(map(is_fixed, rest)) and min(rest) >= 0
        )

        def tile(i: Node, kk: Node) -> None:
            m, k = add(add(block.m0, i0), i), add(k0, kk)
            if ahead:
                # Nothing uses it: rows of the next panel are asked for, since processors look ahead
                # along a row only, which ends with the block of k.
                m_next, k_next = binary("min", add(m, t.mr), rest[0]), binary("min", k, rest[1])
                self.p.load_a(b, block.batch, m_next, k_next, (t.mr, t.kt), NO_LIMITS)

            def pack(row: Node, shape: tuple[int, int], limits: Limits) -> None:
                loaded = self.p.load_a(b, block.batch, add(m, row), k, shape, limits)
                self._store_a(panels, self._panel(i), row, kk, self._of_a(loaded))

            limits = left_of(s.m, m, t.mr), left_of(s.k, k, t.kt)
            whole_or_by_rows(b, (t.mr, t.kt), limits, pack)

        self._each_tile((rows, t.mr), depth, s.a_contiguous == "k", tile)

    def _pack_a_by_runs(
        self, block: _Block, panels: Memory, i0: Node, rows: Operand, k0: Node, depth: Operand
    ) -> None:
        """Pack rows of A that lie in runs, panel by panel, each part of one run."""
        s, t, b, start = self.shape, self.blocks, self.b, add(block.m0, i0)

        def panel(i: Node) -> None:
            def run(r: Node, most: Node) -> None:
                def column(kk: Node) -> None:
                    self._pack_column(block, panels, start, i, r, add(k0, kk), kk, most)

                b.loop(0, depth, 1, column)

            self._each_run(add(start, i), t.mr, s.m_run, run)

        b.loop(0, rows, t.mr, panel)

    def _pack_column(
        self,
        block: _Block,
        panels: Memory,
        start: Node,
        i: Node,
        r: Node,
        k: Node,
        kk: Node,
        most: Node | None,
    ) -> None:
        """What is in column kk of a panel, which is k of A, from r on, up to `most` elements of
        it; the panel is that of row start + i."""
        s, t = self.shape, self.blocks
        m = add(add(start, i), r)
        limits = at_most(left_of(s.m, m, t.mr), most), left_of(s.k, k, t.kt)
        loaded = self.p.load_a(self.b, block.batch, m, k, (t.mr, 1), limits)
        self._store_a(panels, self._panel(i), r, kk, self._of_a(loaded), most)

    def _pack_windows(
        self,
        steady: Steady,
        block: _Block,
        panels: Memory,
        i0: Node,
        rows: Operand,
        k0: Node,
        depth: Operand,
    ) -> None:
        """Pack rows of A that lie in runs, panel by panel, of one run or two each, so that elements
        lie evenly along the innermost loop."""
        s, t, b = self.shape, self.blocks, self.b
        left_of_k, width = left_of(s.k, k0, t.kt), self._pitch
        stop = depth if left_of_k is None else binary("min", depth, left_of_k)
        # Two panels at a time where a vector has a row of both: half as many loads.
        pairs = width == t.mr and 4 * t.mr <= t.nr and divides(2 * t.mr, s.m_run)
        step = 2 * t.mr if pairs and t.mp % (2 * t.mr) == t.mc % (2 * t.mr) == 0 else t.mr

        def panel(i: Node) -> None:
            m = add(add(block.m0, i0), i)
            limit = left_of(s.m, m, step)
            if width != t.mr:
                limit = at_most(limit, index(t.mr))

            def store(kk: Node, column: Node) -> None:
                """As a row; what lies behind the panel's own rows is not read."""
                offset = add(self._panel(i), mul(kk, width))
                rows = reshape(kept(column, s.packed), (step // t.mr, width))
                b.store(panels, offset, rows, (width * t.kc, 1))

            def one(at: tuple[Node, Node]) -> Node:
                return steady.load(b, block.batch, m, at, step // t.mr * width, limit, None)

            def two(at: tuple[Node, Node]) -> Node:
                first = steady.load(b, block.batch, m, at, width, at_most(limit, left), None)
                second = steady.load(b, block.batch, m, at, width, limit, left)
                return where(binary("lt", reshape(arange(width), (1, width)), left), first, second)

            def each(load: Callable[[tuple[Node, Node]], Node]) -> None:
                self._each_depth(steady, k0, stop, lambda kk, at: store(kk, load(at)))

            if divides(t.mr, s.m_run):
                each(one)
            else:
                left = sub(s.m_run, binary("rem", m, s.m_run))
                whole = binary("le", t.mr, left)
                with b.when(whole):
                    each(one)
                with b.when(unary("not", whole)):
                    each(two)
            if left_of_k is not None:
                zeros = const(0, s.packed, (1, step // t.mr * width))
                b.loop(stop, depth, 1, lambda kk: store(kk, zeros))

        b.loop(0, rows, step, panel)

    def _each_depth(
        self,
        steady: Steady,
        k0: Node,
        count: Operand,
        body: Callable[[Node, tuple[Node, Node]], None],
    ) -> None:
        """body(kk, numbers) for each depth k0 + kk of so many, innermost the steady number."""
        b, end, width = self.b, add(k0, count), steady.count

        def other(x: Node) -> None:
            if steady.along == 0:
                start, stop = (binary("div", sub(add(n, width - 1), x), width) for n in (k0, end))
                b.loop(start, stop, 1, lambda o: body(sub(add(mul(o, width), x), k0), (o, x)))
                return
            first = mul(x, width)
            start = binary("max", sub(k0, first), 0)
            stop = binary("min", sub(end, first), width)
            b.loop(start, stop, 1, lambda i: body(sub(add(first, i), k0), (x, i)))

        if steady.along == 0:
            b.loop(0, width, 1, other)
        else:
            b.loop(binary("div", k0, width), binary("div", add(end, width - 1), width), 1, other)

    def _each_tile(
        self,
        panels: tuple[Operand, int],
        depth: Operand,
        depth_first: bool,
        body: Callable[[Node, Node], None],
    ) -> None:
        """body(panel, k) for each tile to pack, along the operand's rows in memory."""
        b, kt = self.b, self.blocks.kt
        size, step = panels
        if depth_first:
            b.loop(0, size, step, lambda i: b.loop(0, depth, kt, lambda k: body(i, k)))
        else:
            b.loop(0, depth, kt, lambda k: b.loop(0, size, step, lambda i: body(i, k)))

    def _each_run(
        self, start: Node, width: Operand, run: int, body: Callable[[Node, Node], None]
    ) -> None:
        """body(first, count) for each run that has some of `width` elements from `start` on. Where
        they begin is the same at every depth, and is found once."""
        within = binary("rem", start, run)

        def one(at: Node) -> None:
            first = binary("max", sub(at, within), 0)
            body(first, sub(binary("min", sub(add(at, run), within), width), first))

        self.b.loop(0, add(within, width), run, one)

    @property
    def _a_by_rows(self) -> bool:
        """Whether packed A has rows of neighbours along k, which uneven pieces are written to by
        vectors; else its columns follow one another, so that a step of the innermost loop reads one
        line of the cache and not one for each row."""
        return self.shape.a_contiguous == "k" and (self.p.a_uneven or not self._k_evenly)

    @property
    def _k_evenly(self) -> bool:
        """Whether tiles divide the runs along k."""
        return not self.shape.k_run or divides(self.blocks.kt, self.shape.k_run)

    def _each_k_run(
        self, k0: Node, depth: Operand, body: Callable[[Node, Place, Node | None], None]
    ) -> None:
        """body(k, place, count) for tiles along k, one run after another; where tiles do not divide
        runs, what one writes beyond its count is where the next one goes."""
        b, width, end = self.b, self.shape.k_run, add(k0, depth)

        def run(x: Node) -> None:
            begin = mul(x, width)
            start = binary("max", sub(k0, begin), 0)
            stop = binary("min", sub(end, begin), width)

            def tile(i: Node) -> None:
                most = None if self._k_evenly else sub(stop, i)
                body(sub(add(begin, i), k0), (x, i), most)

            b.loop(start, stop, self.blocks.kt, tile)

        b.loop(binary("div", k0, width), binary("div", add(end, width - 1), width), 1, run)

    def _store_a(
        self,
        panels: Memory,
        panel: Node,
        row: Node,
        kk: Node,
        tile: Node,
        most: Node | None = None,
    ) -> None:
        """Store a tile at (row, kk) of a panel, of a column up to `most` elements."""
        t, b, group = self.blocks, self.b, self.shape.together
        if self.shape.tile:
            # Tile by tile as the unit reads them: rows of neighbours along k
            deep = t.unroll
            number, within = divided(kk, deep)
            offset = add(add(panel, mul(number, t.mr * deep)), add(mul(row, deep), within))
            b.store(panels, offset, tile, (deep, 1), (most, None))
        elif self._a_by_rows:
            b.store(panels, add(add(panel, mul(row, t.kc)), kk), tile, (t.kc, 1))
        elif tile.shape[1] % group:
            offset = add(add(panel, self._row_of(kk, self._pitch)), mul(row, group))
            b.store(panels, offset, tile, (group, 1), (most, None))
        else:
            offset = add(add(panel, mul(kk, self._pitch)), mul(row, group))
            columns = into_groups(transpose(tile, (1, 0)), group)
            b.store(panels, offset, columns, (self._pitch * group, 1), (None, most))

    def _row_of(self, kk: Node, width: int) -> Node:
        """Where the elements at depth kk of a panel of that width begin."""
        group = self.shape.together
        if group == 1:
            return mul(kk, width)
        number, within = divided(kk, group)
        return add(mul(number, width * group), within)

    def _tiles(
        self, block: _Block, scratch: _Scratch, i0: Node, rows: Operand, k0: Node, depth: Operand
    ) -> None:
        t, b = self.blocks, self.b

        # How many kept sums a block of k completes
        number = binary("div", k0, t.kc)
        if self.shape.in_pairs:
            done = completed(number, self._depth_blocks)
        else:
            done = binary("min", number, 1)

        first = i0  # the slot of the first row
        if self._run:
            first = mul(binary("div", i0, self._run), round_up(self._run, t.mr))

        def tile(j: Node, i: Node, slot: Node, rest: Node | None) -> None:
            if scratch.a is None:
                total = self._accumulate_in_place(block, scratch, add(i0, i), j, k0)
            else:
                total = self._accumulate(block, scratch, scratch.a, self._panel(i), j, k0, depth)
            if scratch.sums is None:
                lines(j, i, slot, total, rest)
                return
            sums = scratch.sums
            b.store(sums, 0, total, (t.nr, 1))
            shape = self._lines, t.nr

            def some(r: Node) -> None:
                lines(j, add(i, r), add(i, r), b.load(sums, mul(r, t.nr), shape, (t.nr, 1)), None)

            left = left_of(self.shape.m, add(add(block.m0, i0), i), t.mr)
            stop = t.mr if left is None else binary("min", left, t.mr)
            b.loop(0, stop, self._lines, some)

        def lines(j: Node, i: Node, slot: Node, total: Node, rest: Node | None) -> None:
            """What becomes of sums of rows from the i-th on."""
            m, n = add(add(block.m0, i0), i), add(block.n0, j)
            if scratch.c is None:
                self._finish(block, scratch.edge, total, m, n, rest)
                return
            # Tile after tile in the order of the loops
            offset = add(mul(j, self._slots), mul(add(first, slot), t.nr))
            total = self._with_waiting(scratch.c, offset, done, total)
            last = binary("le", self.shape.k, add(k0, t.kc))
            with b.when(last):
                left = waiting(self._depth_blocks) if self.shape.in_pairs else []
                others = [self._held(scratch.c, offset, n) for n in left]
                self._finish(block, scratch.edge, functools.reduce(add, others, total), m, n, rest)
            with b.when(unary("not", last)):
                level = done if self.shape.in_pairs else index(0)
                b.store(scratch.c, self._level(offset, level), total, (t.nr, 1))

        def column(j: Node) -> None:
            self._each_rows(rows, t.mr, lambda i, slot, rest: tile(j, i, slot, rest))

        b.loop(0, block.cols, t.nr, column)

    def _level(self, offset: Node, level: Operand) -> Node:
        """Where a tile's sums of 2 ** level blocks of k wait for their other half."""
        return add(offset, mul(index(level), self._slots * self.blocks.np))

    def _held(self, partial: Memory, offset: Node, level: Operand) -> Node:
        t = self.blocks
        return self.b.load(partial, self._level(offset, level), (self._lines, t.nr), (t.nr, 1))

    def _with_waiting(self, partial: Memory, offset: Node, done: Node, total: Node) -> Node:
        """A block's sums with those that they complete, `done` of them."""

        def step(level: Node, sums: Node) -> tuple[Node]:
            return (add(self._held(partial, offset, level), sums),)

        return self.b.loop(0, done, 1, step, (total,))[0]

    def _accumulate(
        self,
        block: _Block,
        scratch: _Scratch,
        panels: Memory,
        a0: Node,
        j: Node,
        k0: Node,
        depth: Operand,
    ) -> Node:
        """The product of a panel of A and the panel of B at column j, in registers."""
        t, b = self.blocks, self.b
        b0 = mul(j, t.kc)
        group = self.shape.together
        a_row, a_col = (t.kc, 1) if self._a_by_rows else (group, self._pitch)

        def tiles(kk: Node, acc: Node) -> tuple[Node]:
            deep = t.unroll
            left = b.load(panels, add(a0, mul(kk, t.mr)), (t.mr, deep), (deep, 1))
            assert scratch.b is not None
            wide = t.nr * group
            right = b.load(scratch.b, add(b0, mul(kk, t.nr)), (deep // group, wide), (wide, 1))
            return (dot(left, out_of_groups(right, group), acc),)

        def step(kk: Node, acc: Node) -> tuple[Node]:
            for u in range(0, t.unroll, group):
                k = add(kk, u)
                column = b.load(panels, add(a0, mul(k, a_col)), (t.mr, group), (a_row, 1))
                if scratch.b is None:
                    n = add(block.n0, j)
                    row = self.p.load_b(b, block.batch, add(k0, k), n, (1, t.nr), NO_LIMITS)
                else:
                    near = (t.nr, 1) if group == 1 else (1, group)
                    row = b.load(scratch.b, add(b0, mul(k, t.nr)), (group, t.nr), near)
                acc = dot(column, row, acc)
            return (acc,)

        zeros = (const(0, self.shape.accumulate, (t.mr, t.nr)),)
        if scratch.columns is not None:
            first = b.load(scratch.columns, j, (1, t.nr), (t.nr, 1))
            zeros = (broadcast(first, (t.mr, t.nr)),)
        if self.shape.tile:
            return b.loop(0, depth, t.unroll, tiles, zeros)[0]
        if isinstance(depth, Node) or not self.shape.over_rows:
            return b.loop(0, depth, t.unroll, step, zeros)[0]
        sums = Sums(zeros, ("add",), SERIAL_PRODUCTS * group, apart=True)
        steps = int(depth) // t.unroll
        return sums.over(b, steps, t.unroll, lambda i, acc: step(mul(i, t.unroll), acc), zeros)[0]

    def _accumulate_in_place(
        self, block: _Block, scratch: _Scratch, i: Node, j: Node, k0: Node
    ) -> Node:
        """The product of rows of A from i on, read where they are, and the panel of B at column j,
        in registers: along the axes of the depth one by one, the last one written out."""
        s, t, b, found = self.shape, self.blocks, self.b, self.p.in_place_a
        assert found is not None
        assert scratch.b is not None
        panels, group, m = scratch.b, s.together, add(block.m0, i)
        b0, taps = mul(j, t.kc), s.taps
        first = binary("div", k0, taps)
        last = binary("div", binary("min", s.k, add(k0, t.kc)), taps)

        def step(places: tuple[Node, ...], k: Node, acc: Node) -> Node:
            column = kept(found.load(b, block.batch, m, places, (t.mr, group)), s.packed)
            near = (t.nr, 1) if group == 1 else (1, group)
            row = b.load(panels, add(b0, mul(k, t.nr)), (group, t.nr), near)
            return dot(column, row, acc)

        def along(places: tuple[Node, ...], k: Node, acc: Node) -> Node:
            """The sum with what the depth has at these numbers, from its k-th element on."""
            at = len(places)
            if at == len(found.sizes):
                return step(places, k, acc)
            inside = prod(found.sizes[at + 1 :]) * group
            if at == len(found.sizes) - 1 and t.unroll > group:
                for u in range(found.sizes[at]):
                    acc = along((*places, index(u)), add(k, u * inside), acc)
                return acc
            start, stop = (first, last) if at == 0 else (index(0), index(found.sizes[at]))

            def one(x: Node, acc: Node) -> tuple[Node]:
                number = x if at else sub(x, first)
                return (along((*places, x), add(k, mul(number, inside)), acc),)

            return b.loop(start, stop, 1, one, (acc,))[0]

        return along((), index(0), const(0, s.accumulate, (t.mr, t.nr)))

    def _finish(
        self,
        block: _Block,
        edge: Memory | None,
        total: Node,
        m: Node,
        n: Node,
        rest: Node | None = None,
    ) -> None:
        """The epilogue: for all lines, or row by row where they reach beyond C, or beyond the rest
        of their run."""
        s, t, b, lines = self.shape, self.blocks, self.b, self._lines
        if edge is None:
            self.p.epilogue(b, total, block.batch, m, n, NO_LIMITS)
            return

        def at(m: Node) -> Place:
            """Where a row is: all of a tile are of one run, where it begins one."""
            return divided(m, self._run) if self._run else m

        rows, columns = left_of(s.m, m, lines), left_of(s.n, n, t.nr)
        rows = rest if self._run else rows
        within = inside((lines, t.nr), (rows, columns))
        with b.when(within):
            self.p.epilogue(b, total, block.batch, at(m), n, NO_LIMITS)
        with b.when(unary("not", within)):
            b.store(edge, 0, total, (t.nr, 1))

            def row(r: Node) -> None:
                one = b.load(edge, mul(r, t.nr), (1, t.nr), (t.nr, 1))
                self.p.epilogue(b, one, block.batch, at(add(m, r)), n, (None, columns))

            b.loop(0, lines if rows is None else binary("min", rows, lines), 1, row)


def _program_counts(shape: MatmulShape, blocks: Blocks) -> tuple[int, int]:
    """The blocks of C from top to bottom and from left to right.

    Instances count along one grid axis, down first, because the others may be short.
    """
    return ceil_div(shape.m, blocks.mp), ceil_div(shape.n, blocks.np)
