"""A cluster as a loop nest: rows over the grid, passes over each row, the innermost axis in vector
tiles.

The roots of one row are computed in *passes*: a root that needs a finished reduction of the row
waits for the next pass. Roots of one pass share its loop. The innermost axis is the vector axis;
when it is parallel, an instance works on a block of it and reductions keep one accumulator per
lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import gcd, inf, prod

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.core.values import Grid
from hal.tile.build import add, arange, binary, broadcast, cast, const, mul, reduce, sub, where
from hal.tile.kernel import Memory
from hal.tile.node import Node
from hal.tile.size import divides, equal, expected, hint, is_fixed, is_one, may_be_positive
from stack.compiler.graph.access import Affine, Axis, Guard
from stack.compiler.graph.expr import (
    Apply,
    Constant,
    Expr,
    Iota,
    Read,
    Select,
    axes_of,
    below,
    parts,
    reads,
    uncast,
)
from stack.compiler.graph.roots import Home, base
from stack.compiler.pairs import BLOCK, SERIAL, Sums, halved
from stack.compiler.templates.blocking import (
    cache_nbytes,
    ceil_div,
    last_cache_nbytes,
    near_nbytes,
    round_up,
)
from stack.compiler.templates.emission import Emission, TileAxis, Work, compute_dtype
from stack.compiler.templates.instances import decompose, instance, instance_by_rows
from stack.compiler.templates.lanes import UNROLL
from stack.compiler.templates.schedule import LoopSizes
from stack.compiler.templates.tiles import Tiles
from stack.ops.numeric import identity

I64 = DType.I64

TURNED_CHUNK = 64
"""Elements of a row that an instance computes where transfers go along columns."""

TALL, WIDE = 16, 4
"""Tiles of lanes by lanes that an instance has along the turned axis, and along the vector axis of
each of them: lines that are written in two halves are still near, and reads go along their rows as
far as pays. Measured on transposed copies of 1024 squared, 4096 by 1024 and 1000 by 3007."""

SIDE, PAD = 64, 16
"""Elements along both axes of a block that an instance lays anew in scratch memory, and elements
between its rows there: lines are read and written whole. Measured on Zen 3 with 32 to 256 along
either axis, on transposed copies of 4096 and 65536 by 1024."""

LAID = 2
"""The most operands that are laid anew: their blocks stay in the nearer caches."""

LINE, SETS = 64, 64
"""The bytes of a cache line, and the sets of the nearest cache: lines that many lines apart share
one."""

ROWS = 8
"""Rows of sums down columns that are read side by side: a processor fetches ahead along so many.
Measured with 4, 8, 16 and 32 on 4096 squared."""

WRITTEN = 4
"""Operations of what is summed up to which these rows are written one after the other: a processor
looks ahead farther than in a loop over them. Measured on Zen 3 with 4096 by 1024: 1.25."""

STREAM, STREAM_NBYTES = 1 << 12, 1 << 17
"""Columns of an instance of such sums at most, and the bytes of those that it holds."""

SIDE_SERIAL = 128
"""Terms in each lane of sums along rows side by side that are added one after the other."""

NEAR = 4
"""The most elements from one to the next along an axis that is read and written by vectors though
another one lies closer."""

PAGE = 1 << 12
"""Bytes that rows have at least to be read side by side: a processor fetches ahead within a page,
so that shorter rows are better read as one run. Measured on Zen 3 by products of a row with
matrices in memory: rows of 384 and 512 floats are read 1.5 and 1.2 times as fast one after the
other, of 768 alike, of 1024 and 2048 at 0.75. Sums of what the last cache holds are read so, too:
on Zen 4 they take 0.91 to 0.97 of the time of rows side by side, from 256 KB to 16 MB, but those of
64 MB 1.3."""

LEAST = 4
"""Elements that an axis has at least for tiles along two axes to pay."""

HINTED = 128
"""Elements that a size which is data is taken to be at least."""

LONG = 1 << 12
"""Elements of a row from which on a masked tile at its end costs less than that all are narrower.
Measured on Zen 3 with cross-entropy over rows of 50,000: 9 % on two threads."""

TURN = 512
"""Elements of a row at most that takes turns with its neighbours. Measured on Zen 3: cross-entropy
over rows of 256 gained 7 %; softmax over rows of 1024, two of which fill the nearest cache with
what is read, kept and written, lost 4 %."""

CHOSEN = 4
"""Rows of a strip for each row that chooses from it, and cores for each instance, at most, where
strips are laid in scratch memory: on Zen 3 to choose of 4096 rows takes a quarter of the time then,
wherever the elements come from."""

TAPS = 16
"""Elements that are written one after the other at most, where each is of a block of lanes: of a
window's, what says whether an element is in it is then found once for many. On Zen 3 a depthwise
convolution of 3x3 takes 0.35 and a maximum of 3x3 half of the time of loops."""

INSIDE = 64
"""As many, and written so, where no edge cuts a block: its text is short without masks. On Zen 3 a
depthwise convolution of 7x7 takes a fifth of the time of loops."""

DRAWN = 8
"""Registers for each tile of random numbers that is computed with others: with 32 of them on Zen 4,
four tiles take 0.93 of the time of two in dropout and 0.95 in uniform and normal numbers, six 0.98
and eight as long as two."""

CHAIN, STACKED = 9, 8
"""Terms of a window from which on rows are added up side by side, and the registers that their sums
fill at most."""

TAPS_HELD = 9
"""The registers that sums for each tap fill at most. On Zen 4 gradients by the weights of depthwise
convolutions of 3x3 take 0.65 of the time of three sums, and these half of that of one."""

COMBINE = {"sum": "add", "prod": "mul", "min": "min", "max": "max"}


def emit_loops(work: Work, emission: Emission, sizes: LoopSizes) -> Grid:
    """Emit the kernel's body; give its launch grid."""
    return _Loops(work, emission, sizes).emit()


@dataclass(frozen=True, slots=True)
class _Strip:
    """A read at a position that an index chooses, the axis of these positions, and the axis of rows
    that choose from the same strip."""

    read: Read
    chosen: Axis
    row: Axis


@dataclass(frozen=True, slots=True)
class _Picked:
    """What is summed where the position along an axis is that of an index."""

    value: Expr
    index: Expr
    start: Iota
    """The position of the axis' first element."""


class _Loops:
    def __init__(self, work: Work, emission: Emission, sizes: LoopSizes) -> None:
        self.work, self.emission, self.b, self.sizes = work, emission, emission.b, sizes
        self.transfers = emission.loops.transfers
        self.nest = nest = work.nest
        self.space = nest.space
        self.level = nest.passes()
        axes = self.space.axes
        width = max((compute_dtype(e.dtype).nbytes for e in nest.exprs.values()), default=4)
        lanes = emission.loops.lanes(emission.info, max(width, 4))
        self.picked: dict[Node, _Picked] = {}
        self.vector = self._found_vector(lanes) if axes else None
        self.picked = self._found_picked()
        self.rows = [a for a in self.space.parallel if a is not self.vector]
        self.inner = [a for a in axes if a in self.space.reduced and a is not self.vector]
        self.turned: Axis | None = None
        self.blocks: Axis | None = None
        self.laid: list[Read] = []
        self.height = 1
        fitting = _divisor if self.transfers else self._tile_width
        # The words of a random block are computed once for four neighbours: more registers have as
        # many of its chains of products to work on. Sums would be of other parts.
        drawn = emission.loops.shares and not self.space.reduced and self._draws()
        registers = emission.info.limits.registers or 16
        unroll = sizes.unroll * (max(1, registers // DRAWN) if drawn else 1)
        if self.vector and not is_fixed(self.vector.size) and self._are_taps(INSIDE):
            unroll = 1  # rows of images may be short, and a register of windows is much work
        self.lanes = lanes
        self.width = fitting(self.vector.size, lanes, unroll) if self.vector else 1
        self.streams = self._are_streams()
        blocks = self.vector.size if self.vector and self.vector_parallel else 1
        chunk = self._chunk_size() if blocks > 1 else blocks
        self.chunks = 1 if equal(chunk, blocks) else ceil_div(blocks, chunk)
        self.chunk = const(0, I64)
        if (turned := self._found_turned()) is not None:
            # Make tiles of lanes by lanes, a block of them for each instance
            assert self.vector is not None
            self.turned = turned
            self.laid = self._found_laid(self.vector, turned, lanes)
            self.width, self.height = (
                min(lanes, a.size) if is_fixed(a.size) else lanes for a in (self.vector, turned)
            )
            rest = [a for a in self.rows if a is not turned]
            if self.laid:
                self.width = 2 * lanes
                self.blocks = Axis(ceil_div(turned.size, SIDE))
                self.rows = [*rest, self.blocks]
            else:
                self.blocks = Axis(ceil_div(turned.size, self.height * TALL))
                self.rows = [self.blocks, *rest]
            self.chunks = ceil_div(self.vector.size, self._chunk_size())
        self.strip = None if self.turned else self._found_strip(lanes)
        if self.strip is not None:
            assert self.vector is not None
            self.rows = [a for a in self.rows if a is not self.strip.row]
            self.width = lanes * UNROLL
            self.chunks = ceil_div(self.vector.size, self.width)
        self.side: tuple[Axis, Axis] | None = None
        if (height := self._found_side(lanes)) > 1:
            self._put_side_by_side(height, lanes)
        self.stacked: tuple[Axis, Axis] | None = None
        if (height := self._found_stacked(lanes)) > 1:
            *rest, row = self.rows
            self.height, self.stacked = height, (row, Axis(row.size // height))
            self.rows = [*rest, self.stacked[1]]
        self.taps = [] if self.side else self._found_taps(lanes)
        self.rows = [a for a in self.rows if a not in self.taps]
        self.phases = self._found_phases() if axes else None
        if self.phases is not None:
            self.rows = [a for a in self.rows if a is not self.phases]
            self.inner = [a for a in self.inner if a is not self.phases]
        self.turns: tuple[Axis, Axis] | None = None
        if self.side is None and self._take_turns():
            *rest, row = self.rows
            self.turns = row, Axis(row.size // sizes.turns)
            self.rows = [*rest, self.turns[1]]

    def _tile_width(self, size: int, lanes: int, unroll: int) -> int:
        return _width(size, lanes, unroll, LONG if self.emission.loops.squares else inf)

    def _draws(self) -> bool:
        """Whether some of the values are random."""
        return any(
            isinstance(e, Apply) and e.node.op == "philox"
            for root in self.nest.exprs.values()
            for e in parts(root)
        )

    def _found_vector(self, lanes: int) -> Axis:
        """The innermost axis, or where that does not fill a vector, as the taps of a window and the
        phases of a stride, a parallel one that does and whose elements are near everywhere; else
        one of the sums, as in a gradient by such taps. Where elements are also written, one whose
        neighbours' phases the innermost ones are."""
        axes, own = self.space.axes, self.nest.own
        last = axes[-1]
        stored = any(self._in_loop(r) and r.op != "reduce" for r in own)
        if not self.emission.loops.squares or not (is_fixed(last.size) and last.size < lanes):
            return last
        kept = bool(self.space.reduced and stored)
        found = [at for at, _ in self._accesses()]
        reduced = [a for a in axes if a in self.space.reduced]
        near = [
            axis
            for those in (() if kept else self.space.parallel, reduced)
            for axis in reversed(those)
            if all(is_fixed(at.coefficient(axis)) for at in found)
            and 0 < max(abs(at.coefficient(axis)) for at in found) <= NEAR
            and (not kept or self._are_phases(last, axis))
        ]
        full = (axis for axis in near if hint(axis.size) >= lanes)
        # Rows of small images leave lanes empty, but more than taps do.
        small = (axis for axis in near if hint(axis.size) > last.size)
        return next(full, None) or next(small, None) or last

    def _accesses(self) -> list[tuple[Affine, DType]]:
        """Where elements are read and written."""
        read = [(r.offset, r.dtype) for e in self.nest.exprs.values() for r in reads(e)]
        return [*read, *((at, root.dtype) for root, at in self.nest.own.items())]

    def _are_phases(self, last: Axis, v: Axis) -> bool:
        """Whether the elements along the innermost axis are those between two neighbours along
        another one, as the phases of a stride are: registers of all of them are one run of what is
        read or written. Nothing may lie otherwise so that it would have to be turned."""
        if v is last or (v in self.space.reduced) != (last in self.space.reduced):
            return False
        if not (is_fixed(last.size) and 1 < last.size <= NEAR):
            return False
        found, runs, least = self._accesses(), 0, self.emission.info.limits.masked_nbytes
        if any(a.source is not None for at, _ in found for a, _ in at.terms):
            return False
        for at, dtype in found:
            across, along = at.coefficient(last), at.coefficient(v)
            if equal(across, 1) and not any(equal(along, k) for k in (0, 1)):
                if not equal(along, last.size) or dtype.nbytes < least:
                    return False
                runs += 1
        return runs > 0

    def _found_phases(self) -> Axis | None:
        """The innermost axis, where tiles go along it and the vector axis."""
        last, v = self.space.axes[-1], self.vector
        if not self.emission.loops.squares or v is None or not self._are_phases(last, v):
            return None
        special = (self.turned, self.strip, self.side, self.stacked)
        if any(x is not None for x in special) or (self.vector_parallel and self.inner):
            return None
        return last

    @property
    def vector_parallel(self) -> bool:
        return self.vector is not None and self.vector not in self.space.reduced

    def _found_turned(self) -> Axis | None:
        """The row axis along which most elements lie side by side that are far apart along the
        vector axis, where the kernel is one pass over elements and the nearest cache loses lines
        before the next row needs them: tiles along both axes use whole lines at once."""
        v = self.vector
        simple = v is not None and self.vector_parallel and not self.inner
        if not (self.emission.loops.squares and simple and max(self.level.values()) == 0):
            return None
        assert v is not None
        if not all(self.space.is_full(r) for r in self.nest.own) or not _is_long(v):
            return None
        found = self._accesses()
        lost = {
            a: sum(_goes_down(at, a, v) and self._is_lost(at, d, a, v) for at, d in found)
            for a in self.rows
            if _is_long(a)
        }
        best = max(lost, key=lost.__getitem__, default=None)
        return best if best is not None and lost[best] else None

    def _found_laid(self, v: Axis, turned: Axis, lanes: int) -> list[Read]:
        """The operands that are turned, where blocks of them are laid anew: where both axes are
        long, and results lie as the vector axis does."""
        if any(hint(a.size) < SIDE // 2 for a in (v, turned)) or SIDE % (2 * lanes):
            return []
        if any(_goes_down(at, turned, v) for at in self.nest.own.values()):
            return []
        every = dict.fromkeys(r for e in self.nest.exprs.values() for r in reads(e))
        found = [r for r in every if _goes_down(r.offset, turned, v)]
        plain = all(
            r.dtype.nbytes >= 4
            and r.root not in self.emission.own
            and all(a.source is None for a in r.axes)
            for r in found
        )
        return found if plain and len(found) <= LAID else []

    def _is_lost(self, at: Affine, dtype: DType, row: Axis, v: Axis) -> bool:
        """Whether lines that a row reads are gone when its neighbour reads them: too many for half
        of the nearest cache, or for the sets of it in which they lie."""
        inside = self.rows[self.rows.index(row) + 1 :]
        lines = hint(prod([v.size, *(a.size for a in inside if at.coefficient(a) != 0)]))
        coefficient = at.coefficient(v)
        step = hint(coefficient) * dtype.nbytes
        sets = SETS // gcd(SETS, abs(step) // LINE) if step % LINE == 0 else SETS
        if not is_fixed(coefficient):
            sets = 1  # as it is where sizes are large powers of two
        cached = cache_nbytes(self.emission.info, 0) // (2 * LINE)
        return bool(lines > min(cached, sets * cached // SETS))

    def _found_side(self, lanes: int) -> int:
        """How many rows of sums along the vector axis are read side by side, as those of sums down
        columns are; 1 where the kernel is anything else, or rows are few or short."""
        own, v = self.nest.own, self.vector
        sums = [r for r in own if r.op == "reduce" and r not in self.picked]
        alone = self.emission.loops.squares and v in self.space.reduced and not self.inner
        if not (alone and self.rows and all((r in sums) == (self.level[r] == 0) for r in own)):
            return 1
        if any(self._in_loop(r) for r in own if self.level[r]):
            return 1
        row = self.rows[-1]
        assert v is not None
        if not (is_fixed(row.size) and is_fixed(v.size)):
            return 1
        found = [r for e in self.nest.exprs.values() for r in reads(e)]
        apart = [r.dtype.nbytes for r in found if not equal(r.offset.coefficient(row), 0)]
        if v.size * max(apart, default=0) < PAGE:
            return 1
        exprs = self.nest.exprs.values()
        if not (any(map(_is_by_a_row, exprs)) or self._far(exprs, row, v)):
            return 1
        most = ROWS // len(sums)
        enough = row.size // (2 * max(1, self.emission.info.limits.instances))
        heights = (h for h in (8, 4, 2) if h <= min(most, enough) and row.size % h == 0)
        return next((h for h in heights if v.size % (lanes * (ROWS // h)) == 0), 1)

    def _found_taps(self, lanes: int) -> list[Axis]:
        """The innermost rows, where they are those of few sums for each of which the vector axis is
        gone through, as the taps of a weight's gradient: all of them share what does not depend on
        them, and none waits for the additions of another. What is left is enough for all cores."""
        own, v, found = self.nest.own, self.vector, list[Axis]()
        if not self.emission.loops.squares or v not in self.space.reduced:
            return found
        if self.space.axes[-1] not in self.rows:
            return found
        if self.picked or any(self.level.values()) or not all(r.op == "reduce" for r in own):
            return found
        registers = len(own) * ceil_div(self.width, lanes)
        for axis in reversed(self.rows):
            if not is_fixed(axis.size):
                break
            registers *= axis.size
            rest = hint(prod(a.size for a in self.rows if a is not axis and a not in found))
            if registers > TAPS_HELD or rest < self.emission.info.limits.instances:
                break
            found.insert(0, axis)
        return found

    def _put_side_by_side(self, height: int, lanes: int) -> None:
        *rest, row = self.rows
        self.height, self.width = height, lanes * (ROWS // height)
        blocks = Axis(row.size // height)
        self.side = row, blocks
        self.rows = [*rest, blocks]

    def _found_stacked(self, lanes: int) -> int:
        """How many rows of sums over windows are added up side by side: the additions of one wait
        for each other; 1 where the kernel is anything else."""
        v = self.vector
        if v is None or self.streams or not self._are_taps(INSIDE):
            return 1
        long = prod(a.size for a in self.inner) >= CHAIN
        if not (long and self.rows and is_fixed(v.size) and is_fixed(self.rows[-1].size)):
            return 1
        if self._known_guards() and self.width < v.size:  # rows have parts that no edge cuts
            return 1
        row, most = self.rows[-1].size, STACKED * lanes // self.width
        enough = row * prod(a.size for a in self.rows[:-1]) * ceil_div(v.size, self.width)
        fair = enough // (8 * max(1, self.emission.info.limits.instances))
        return next((h for h in (7, 5, 4, 3, 2) if h <= min(most, fair) and row % h == 0), 1)

    def _found_picked(self) -> dict[Node, _Picked]:
        """The sums along rows of one element each, where a position is that of an index, as a loss
        has of its classes: the element is read, and no row is gone through for it."""
        v, found = self.vector, dict[Node, _Picked]()
        if not (self.emission.loops.squares and v is not None and self.space.reduced == {v}):
            return found
        for root, e in self.nest.exprs.items():
            picked = _as_picked(e, v) if root.op == "reduce" and root["kind"] == "sum" else None
            if picked is None:
                continue
            needed = {r.root for r in reads(e)} & self.nest.own.keys()
            if all(r.op == "reduce" and r not in found for r in needed):
                found[root] = picked
        return found

    def _pick(self, scope: Tiles, picked: _Picked) -> Node:
        """The element that such a sum has, zero where the index is none of a position. As a sum it
        is never -0."""
        v = self.vector
        assert v is not None
        at = binary("sub", cast(scope.tile(picked.index), I64), scope.tile(picked.start))
        inside = binary("and", binary("le", const(0, I64), at), binary("lt", at, v.size))
        place = binary("max", binary("min", at, v.size - 1), 0)
        value = Tiles(self.emission, {v: place}, scope.tile_axes, scope).tile(picked.value)
        return binary("add", where(inside, value, 0), 0)

    def _take_turns(self) -> bool:
        """Whether an instance makes each pass over several rows before the next one: what a pass
        ends with, as the sum of its lanes, and a quotient of it, is a chain of operations that all
        of the next pass waits for, and no processor looks as far ahead as to the next row."""
        alone = self.emission.loops.squares and self.rows and not self.vector_parallel
        passes = {self.level[r] for r in self.nest.own if self._in_loop(r)}
        if not alone or len(passes) < 2:
            return False
        row, length = self.rows[-1], prod(a.size for a in self.space.reduced)
        if not (is_fixed(row.size) and is_fixed(length)) or length > TURN:
            return False
        enough = row.size >= 2 * self.sizes.turns * max(1, self.emission.info.limits.instances)
        return bool(enough and row.size % self.sizes.turns == 0)

    def emit(self) -> Grid:
        count, k = 1, 0
        while k < len(self.rows) and count < self.sizes.rows_on_grid:
            count *= expected(self.rows[k].size, HINTED)
            k += 1
        grid_rows, loop_rows = self.rows[:k], self.rows[k:]
        row, self.chunk = self._instance(prod(a.size for a in grid_rows))
        top = Tiles(self.emission, decompose(row, grid_rows))
        top.hoist(self.nest.exprs.values())
        self._over_rows(top, loop_rows)
        return (self.chunks * prod(a.size for a in grid_rows), 1, 1)

    def _instance(self, rows: int) -> tuple[Node, Node]:
        """The instance's row and chunk of it: transfers merge neighbours, and a block of rows and
        columns lies well both for what goes by rows and for what goes by columns."""
        if self.transfers or self.laid:
            return instance_by_rows(self.chunks, rows)
        return instance(self.chunks, rows)

    def _over_rows(self, scope: Tiles, axes: list[Axis]) -> None:
        """Loop over the parallel axes that are not on the grid."""
        if not axes:
            if self.side is not None:
                row, blocks = self.side
                tile = TileAxis(row, mul(scope.values[blocks], self.height), self.height)
                self._passes(Tiles(self.emission, {}, (tile,), scope))
            elif self.taps:
                tiles = tuple(TileAxis(a, const(0, I64), a.size) for a in self.taps)
                self._passes(Tiles(self.emission, {}, tiles, scope))
            elif self.turns is not None:
                self._passes(*self._in_turns(scope, *self.turns))
            elif self.vector is None or not self.vector_parallel:
                self._passes(scope)
            elif self.streams:
                self._stream(scope, self.vector)
            elif self.strip is not None:
                self._from_a_strip(scope, self.vector, self.strip)
            elif self.inner:
                self._block_of_lanes(scope, self.vector)
            elif self.turned is not None and self.blocks is not None:
                squares = self._laid_anew if self.laid else self._squares
                squares(scope, self.vector, self.turned, self.blocks)
            else:
                asking = self._asking(scope, self.vector)
                self._vector_chunk(self._with_phases(scope), self.vector, asking)
            return

        def body(i: Node) -> None:
            inner = Tiles(self.emission, {axes[0]: i}, scope.tile_axes, scope)
            inner.hoist(self.nest.exprs.values())
            self._over_rows(inner, axes[1:])

        self.b.loop(0, axes[0].size, 1, body)

    def _block_of_lanes(self, scope: Tiles, v: Axis) -> None:
        """What an instance reduces. Where it is of windows, a block that no edge cuts has a text of
        its own: to ask of each element whether it is there takes most of the time else."""
        base = mul(self.chunk, self.width)
        limit = None if divides(self.width, v.size) else sub(v.size, base)
        guards = self._known_guards() if self._are_taps(INSIDE) else ()
        if self.stacked is not None:
            row, blocks = self.stacked
            down = TileAxis(row, mul(scope.values[blocks], self.height), self.height)
            scope = Tiles(self.emission, {}, (*scope.tile_axes, down), scope)
        cut, whole = (self._tiled(scope, v, base, end) for end in (limit, None))
        taps = [TileAxis(a, const(0, I64), a.size) for a in self.inner]
        every = Tiles(self.emission, {}, (*whole.tile_axes, *taps), scope)
        inside = every.all_hold(guards) if guards else None
        if inside is None:
            self._passes(cut)
            return
        if limit is not None:
            inside = binary("and", inside, binary("le", const(self.width, I64), limit))
        whole.holding = frozenset(guards)
        with self.b.when(inside):
            self._passes(whole)
        with self.b.when(binary("eq", inside, const(False, DType.BOOL))):
            self._passes(cut)

    def _guards(self) -> dict[Guard, None]:
        """All guards of what is computed."""
        every = [e for root in self.nest.exprs.values() for e in parts(root)]
        return dict.fromkeys(g for e in every if isinstance(e, Read | Select) for g in e.guards)

    def _known_guards(self) -> tuple[Guard, ...]:
        """The guards that follow from where an element is."""
        found = self._guards()
        return tuple(g for g in found if all(a.source is None for a, _ in g.value.terms))

    def _are_windows(self) -> bool:
        """Whether neighbours along the vector axis share elements of what is summed."""
        v = self.vector
        found = [r.offset for e in self.nest.exprs.values() for r in reads(e)]
        return any(
            0 < abs(hint(at.coefficient(a))) < abs(hint(at.coefficient(v) * v.size))
            for at in found
            for a in self.inner
            if v is not None
        )

    def _squares(self, scope: Tiles, v: Axis, turned: Axis, blocks: Axis) -> None:
        """A block of tiles, along the vector axis first: what is written of a row lies in one piece
        and fills its lines, also where they begin in the middle of a vector."""
        first = mul(scope.values[blocks], self.height * TALL)
        end = add(first, self.height * TALL)
        if not divides(self.height * TALL, turned.size):
            end = binary("min", end, turned.size)

        def body(i: Node) -> None:
            left = None if divides(self.height, turned.size) else sub(turned.size, i)
            tile = (TileAxis(turned, i, self.height, left),)
            self._vector_chunk(Tiles(self.emission, {}, tile, scope), v)

        self.b.loop(first, end, self.height, body)

    def _laid_anew(self, scope: Tiles, v: Axis, turned: Axis, blocks: Axis) -> None:
        """A block in two steps: turned operands are read along their own rows into scratch memory,
        and what reads them there goes along the rows of the results. While these are written, the
        lines of the next block are asked for, one for each line of this one: what processors fetch
        ahead by themselves ends with a row of the block."""
        b, start = self.b, mul(self.chunk, SIDE)
        first = mul(scope.values[blocks], SIDE)
        end = add(first, SIDE)
        if not divides(SIDE, turned.size):
            end = binary("min", end, turned.size)
        held = [
            (r, b.alloc(f"laid{i}", compute_dtype(r.dtype), SIDE * (SIDE + PAD)))
            for i, r in enumerate(self.laid)
        ]

        def place(i: Node, j: Node) -> Node:
            return add(mul(sub(i, first), SIDE + PAD), sub(j, start))

        def tile_axis(a: Axis, at: Node) -> TileAxis:
            left = None if divides(self.height, a.size) else sub(a.size, at)
            return TileAxis(a, at, self.height, left)

        def lay(j: Node) -> None:
            def down(i: Node) -> None:
                square = tile_axis(turned, i), tile_axis(v, j)
                inner = Tiles(self.emission, {}, (*scope.tile_axes, *square), scope)
                for r, memory in held:
                    b.store(memory, place(i, j), inner.tile(r), (SIDE + PAD, 1))

            b.loop(first, end, self.height, down)

        stop = add(start, SIDE)
        if not divides(SIDE, v.size):
            stop = binary("min", stop, v.size)
        b.loop(start, stop, self.height, lay)
        following = self._following(scope, v, turned, blocks)

        def row(i: Node) -> None:
            def tile(across: Tiles) -> None:
                j = across.tile_axes[-1].base
                for r, memory in held:
                    across.give(r, b.load(memory, place(i, j), across.shape[-1:], (1,)))
                if following is not None:
                    down, along = following
                    along = add(along, sub(j, start))
                    along = binary("min", along, turned.size - self.width)
                    down = binary("min", add(down, sub(i, first)), v.size - 1)
                    there = (TileAxis(turned, along, self.width),)
                    Tiles(self.emission, {v: down}, there, scope).tile(self.laid[0])
                self._passes(across)

            inner = Tiles(self.emission, {turned: i}, scope.tile_axes, scope)
            inner.hoist(self.nest.exprs.values())
            self._vector_chunk(inner, v, tile)

        b.loop(first, end, 1, row)

    def _following(
        self, scope: Tiles, v: Axis, turned: Axis, blocks: Axis
    ) -> tuple[Node, Node] | None:
        """Where the block that most likely comes next begins, along the vector axis and the turned
        one; None where that is not asked for: sizes are data, or a part has to be left out."""
        if not (is_fixed(v.size) and is_fixed(turned.size)) or self.laid[0].guards:
            return None
        number = add(scope.values[blocks], 1)
        again = binary("eq", number, blocks.size)
        chunk = add(self.chunk, where(again, const(1, I64), 0))
        return mul(chunk, SIDE), mul(where(again, const(0, I64), number), SIDE)

    def _chunk_size(self) -> int:
        """Elements along the vector axis that an instance computes, where the axis is parallel."""
        assert self.vector is not None
        size, rows = self.vector.size, hint(prod(a.size for a in self.rows))
        if self.streams:
            # Columns of an instance: each core has as many, since long runs of a row are read
            # faster (on Zen 3, of 4096 squared, by 1.15 and with two threads by 1.3 than half as
            # long ones), and the sums stay in the nearest cache.
            assert self.vector is not None
            nbytes = sum(map(self._stream_nbytes, range(max(self.level.values()) + 1)))
            rows = hint(prod(a.size for a in self.rows))
            shares = ceil_div(max(1, self.emission.info.limits.instances), rows)
            share = min(expected(size, HINTED) // shares, STREAM, STREAM_NBYTES // nbytes)
            return round_up(max(share, 1), self.width)
        if self.inner:
            return self.width
        if self.laid:
            return SIDE
        if self.turned is not None:
            return min(size, self.width * WIDE) if is_fixed(size) else self.width * WIDE
        # Whether transfers find neighbours of some element in other rows
        if not self.transfers or not self.rows:
            turned = False
        else:
            offsets = [r.offset for e in self.nest.exprs.values() for r in reads(e)]
            turned = any(self._goes_by_rows(at) for at in (*offsets, *self.nest.own.values()))
        most = TURNED_CHUNK if turned else self.sizes.chunk
        chunk = round_up(min(most, self.sizes.chunk), self.width)
        many = rows >= self.sizes.rows_on_grid and hint(size) <= 8 * chunk
        whole = many or (is_fixed(size) and size <= chunk)
        return size if whole else chunk

    def _goes_by_rows(self, at: Affine) -> bool:
        assert self.vector is not None
        beside = any(abs(at.coefficient(a)) == 1 for a in self.rows)
        return beside and abs(at.coefficient(self.vector)) > 1

    def _found_strip(self, lanes: int) -> _Strip | None:
        """What an index chooses, for each element of the vector axis a row of its own, where rows
        are far apart and a strip of them is chosen from again and again: each element would come
        with a line of its own, and one from memory."""
        v, every = self.vector, [r for e in self.nest.exprs.values() for r in reads(e)]
        simple = v is not None and self.vector_parallel and not self.inner and self.rows
        if not (self.emission.loops.squares and simple and max(self.level.values()) == 0):
            return None
        assert v is not None
        row, width = self.rows[-1], lanes * UNROLL
        found = []
        for r in dict.fromkeys(every):
            dynamic = [a for a, _ in r.offset.terms if a.source is not None]
            sources = [a for d in dynamic for i in reads(d.source) for a in i.axes]
            if len(dynamic) == 1 and v in sources and r.root not in self.emission.own:
                found.append((r, dynamic[0]))
        if len(found) != 1 or not all(self.space.is_full(root) for root in self.nest.own):
            return None
        ((r, chosen),) = found
        step, size = r.offset.coefficient(chosen), chosen.size
        if not all(map(is_fixed, (step, size, v.size, row.size))) or v.size < width:
            return None
        apart = abs(step) * r.dtype.nbytes >= LINE and r.offset.coefficient(v) == 1
        fits = size * width * r.dtype.nbytes <= near_nbytes(self.emission.info)
        often = CHOSEN * row.size >= size and r.offset.coefficient(row) == 0
        instances = hint(prod(a.size for a in self.rows[:-1])) * ceil_div(v.size, width)
        many = CHOSEN * instances >= self.emission.info.limits.instances
        if not (apart and fits and often and many):
            return None
        return _Strip(r, chosen, row)

    def _from_a_strip(self, scope: Tiles, v: Axis, strip: _Strip) -> None:
        """Lay a strip of rows in scratch memory, then choose from it."""
        b, r, width = self.b, strip.read, self.width
        base = mul(self.chunk, width)
        limit = None if divides(width, v.size) else sub(v.size, base)
        memory = b.alloc("strip", r.dtype, strip.chosen.size * width)
        place = Axis(strip.chosen.size)
        terms = tuple((place if a is strip.chosen else a, c) for a, c in r.offset.terms)
        offset = Affine(r.offset.const, terms)
        whole = Read(r.dtype, axes_of(offset), r.root, offset, ())
        index = [i for i in reads(strip.chosen.source) if not i.guards]
        index = [i for i in index if i.offset.coefficient(v) == 1]

        def ask(exprs: Sequence[Expr], axis: Axis, at: Node) -> None:
            later = binary("min", add(at, ROWS), axis.size - 1)
            there = TileAxis(v, binary("min", base, v.size - width), width)
            for e in exprs:
                Tiles(self.emission, {**scope.values, axis: later}, (there,)).tile(e)

        def lay(i: Node) -> None:
            ask([whole], place, i)
            inner = self._tiled(Tiles(self.emission, {place: i}, (), scope), v, base, limit)
            stored = cast(broadcast(inner.tile(whole), inner.shape), r.dtype)
            b.store(memory, mul(i, width), stored, (1,))

        def choose(i: Node) -> None:
            ask(index, strip.row, i)
            inner = self._tiled(Tiles(self.emission, {strip.row: i}, (), scope), v, base, limit)
            at = broadcast(cast(inner.tile(strip.chosen.source), I64), inner.shape)
            at = binary("add", binary("mul", at, width), arange(width, I64))
            mask = broadcast(inner.mask(r.guards), inner.shape)
            if limit is not None:
                mask = binary("and", mask, inner.valid(inner.tile_axes[-1]))
            found = b.gather(memory, at, mask)
            inner.give(r, cast(found, compute_dtype(r.dtype)))
            self._passes(inner)

        b.loop(0, place.size, 1, lay)
        b.loop(0, strip.row.size, 1, choose)

    def _asking(self, scope: Tiles, v: Axis) -> Callable[[Tiles], None] | None:
        """The passes over a tile that also ask for what a row some way behind this one reads by an
        index, and for the index: a gather takes so many steps that no processor looks as far ahead
        as to the next page. None where nothing of that is known."""
        if not (self.emission.loops.squares and self.rows and is_fixed(v.size)):
            return None
        row, every = self.rows[-1], [r for e in self.nest.exprs.values() for r in reads(e)]
        asked: list[tuple[Read, Axis, int]] = []
        for r in dict.fromkeys(every):
            dynamic = [(a, c) for a, c in r.offset.terms if a.source is not None]
            if len(dynamic) != 1 or r.root in self.emission.own:
                continue
            ((chosen, step),) = dynamic
            if step == 1 and v in chosen.source.axes:
                if r.offset.coefficient(v) == 0:
                    asked.append((r, chosen, ceil_div(chosen.size, v.size)))
                asked += [(i, v, 1) for i in reads(chosen.source) if not i.guards]
        apart = [
            (_along(r, chosen, v), v if chosen is v else chosen, times)
            for r, chosen, times in asked
            if is_fixed(chosen.size)
        ]
        known = [x for x in apart if self._is_ahead(*x, row, v)]
        if not is_fixed(row.size):
            return None
        whole = [self._row_behind(r, scope, row, v) for r in dict.fromkeys(every)]
        rows = [x for x in whole if x is not None]
        if not known and not rows:
            return None

        def tile(s: Tiles) -> None:
            (across,) = s.tile_axes
            for r, values in rows if across.limit is None else ():
                Tiles(self.emission, values, s.tile_axes).tile(r)
            for r, over, times in known if across.limit is None else ():
                width = across.width * times
                base = binary("min", mul(across.base, times), over.size - width)
                nbytes = abs(r.offset.coefficient(row)) * r.dtype.nbytes
                behind = add(scope.values[row], ceil_div(PAGE, nbytes))
                values = {**s.values, row: binary("min", behind, row.size - 1)}
                Tiles(self.emission, values, (TileAxis(v, base, width),)).tile(r)
            self._passes(s)

        return tile

    def _row_behind(
        self, r: Read, scope: Tiles, row: Axis, v: Axis
    ) -> tuple[Read, dict[Axis, Node]] | None:
        """A read of a row that an index chooses, as that of a row behind this one, with the
        values that say which."""
        dynamic = [a for a, _ in r.offset.terms if a.source is not None]
        if len(dynamic) != 1 or r.root in self.emission.own or not is_fixed(v.size):
            return None
        (chosen,) = dynamic
        axes = chosen.source.axes
        alone = row in axes and v not in axes and r.offset.coefficient(v) == 1
        if not alone or not is_fixed(chosen.size) or r.offset.coefficient(row) != 0:
            return None
        rows = ceil_div(PAGE, v.size * r.dtype.nbytes)
        behind = binary("min", add(scope.values[row], rows), row.size - 1)
        values = {**scope.values, row: behind}
        at = cast(Tiles(self.emission, values).tile(chosen.source), I64)
        place = Axis(chosen.size)
        values[place] = binary("max", binary("min", at, chosen.size - 1), 0)
        terms = tuple((place if a is chosen else a, c) for a, c in r.offset.terms)
        offset = Affine(r.offset.const, terms)
        return Read(r.dtype, axes_of(offset), r.root, offset, ()), values

    def _is_ahead(self, r: Read, over: Axis, times: int, row: Axis, v: Axis) -> bool:
        """Whether a read along the vector axis has another row to ask for, most of whose lines are
        used."""
        step = r.offset.coefficient(row)
        plain = all(a.source is None for a, _ in r.offset.terms)
        return (
            plain
            and is_fixed(step)
            and step != 0
            and r.offset.coefficient(v) == 1
            and times <= NEAR
            and over.size >= self.width * times
        )

    def _are_streams(self) -> bool:
        """Whether the kernel is sums down columns, over one axis, and what follows from them: then
        an instance goes along a few rows at a time. Down a block of lanes each line that it reads
        would be in a page of its own, where memory is slow."""
        v = self.vector
        if not (self.emission.loops.squares and v is not None and self.vector_parallel):
            return False
        return (
            len(self.inner) == 1
            and hint(v.size) > self.width
            and hint(self.inner[0].size) >= 2 * ROWS
        )

    def _stream_levels(self, sums: list[Node]) -> tuple[int, int]:
        """The rows that are added one after the other, and how many sums wait for their other half
        (pairs.py)."""
        size, serial = self.inner[0].size, self._serial(sums)
        if serial is None:
            return size, 1
        if not is_fixed(size):
            return BLOCK, 2
        short = halved(size, max(1, serial))
        return short, (size // short).bit_length()

    def _stream_nbytes(self, number: int) -> int:
        """The bytes that a pass holds for each column: sums, and what has one value for each."""
        sums = self._pass_sums(number)
        held = sum(compute_dtype(r.dtype).nbytes for r in sums) * self._stream_levels(sums)[1]
        return held + sum(compute_dtype(x.dtype).nbytes for x in self._pass_columns(number))

    def _pass_sums(self, number: int) -> list[Node]:
        """The sums of a pass."""
        return [r for r in self.nest.own if r.op == "reduce" and self.level[r] == number]

    def _stream(self, scope: Tiles, v: Axis) -> None:
        """The passes down a run of columns. What a column has of its own, as sums and what follows
        from them, is in scratch memory from one pass to the next: a tile of a few rows would make
        it anew."""
        own, size = self.nest.own, self._chunk_size()
        start, held = mul(self.chunk, size), dict[Node | Expr, Memory]()

        def column(s: Tiles) -> Node:
            return sub(s.tile_axes[-1].base, start)

        def give(s: Tiles, found: Iterable[Node | Expr]) -> None:
            for x in found:
                value = self.b.load(held[x], column(s), s.shape, (1,))
                if isinstance(x, Node):
                    s.hold(x, value)
                else:
                    s.give(x, value)

        def begin(needed: list[Node], ended: list[Node], columns: list[Node | Expr]) -> None:
            """What columns have before a pass: the sums of the last one, and what follows."""
            memories = [
                self.b.alloc(f"column{len(held) + i}", compute_dtype(x.dtype), size)
                for i, x in enumerate(columns)
            ]

            def tile(s: Tiles) -> None:
                give(s, needed)
                for root in ended:
                    s.keep(root, self.work)
                for x, memory in zip(columns, memories, strict=True):
                    if isinstance(x, Node):
                        self._compute(s, x)
                        value = s.local[x]
                    else:
                        value = s.tile(x)
                    self.b.store(memory, column(s), broadcast(value, s.shape), (1,))

            self._vector_chunk(scope, v, tile)
            held.update(zip(columns, memories, strict=True))

        for number in range(max(self.level.values()) + 2):
            ended = self._pass_sums(number - 1)
            full = [r for r in own if self.level[r] == number and self._in_loop(r)]
            columns = self._pass_columns(number)
            if columns or any(r in self.work.stored for r in ended):
                needed = dict.fromkeys(r for x in columns for r in self._read_of(x) if r in held)
                begin([*dict.fromkeys([*ended, *needed])], ended, columns)
            if full:
                read = [r for root in full for r in self._read_of(root)]
                given = [x for x in held if x in columns or x in read]
                held |= self._stream_pass(scope, v, full, column, partial(give, found=given))

    def _pass_columns(self, number: int) -> list[Node | Expr]:
        """What has one value for each column in a pass: roots, and what is computed of columns
        alone for roots of all rows, as large as can be."""
        here = [r for r in self.nest.own if self.level[r] == number]
        full = [r for r in here if self._in_loop(r)]
        found = dict[Expr, None]()
        stack = [self.nest.exprs[r] for r in full if r in self.nest.exprs]
        while stack:
            e = stack.pop()
            alone = self.vector in e.axes and self.inner[0] not in e.axes
            if isinstance(e, Apply) and alone and e.dtype.is_float:
                found[e] = None
            else:
                stack += below(e)
        return [*(r for r in here if r not in full), *found]

    def _read_of(self, x: Node | Expr) -> list[Node]:
        """The roots that a root, or an expression, is computed from."""
        if isinstance(x, Expr):
            return [r.root for r in reads(x)]
        moved = self.nest.moved.get(x)
        return [moved.source] if moved else [r.root for r in self.nest.reads[x]]

    def _stream_pass(
        self,
        scope: Tiles,
        v: Axis,
        roots: list[Node],
        column: Callable[[Tiles], Node],
        give: Callable[[Tiles], None],
    ) -> dict[Node | Expr, Memory]:
        """One pass over all rows, a few of them at a time, with its sums in the order of `Sums`:
        where they are. `column` says where a tile's values of columns are, and `give` has it read
        those of former passes."""
        sums = [r for r in roots if r.op == "reduce"]
        short, count = self._stream_levels(sums)
        combine = tuple(COMBINE[r["kind"]] for r in sums)
        size, types = self._chunk_size(), [compute_dtype(r.dtype) for r in sums]
        number = self.level[roots[0]]
        held = [
            [self.b.alloc(f"sums{number}_{i}_{level}", t, size) for i, t in enumerate(types)]
            for level in range(count)
        ]
        exprs = [self.nest.exprs[r] for r in roots if r in self.nest.exprs]
        terms = sum(isinstance(e, Apply) for root in exprs for e in parts(root))
        rows, rest = self.inner[0], 0 if not is_fixed(short) else short % ROWS
        asked = self._far(exprs, rows, v)

        def load(s: Tiles, level: int) -> list[Node]:
            return [self.b.load(m, column(s), s.shape, (1,)) for m in held[level]]

        def store(s: Tiles, level: int, values: Sequence[Node]) -> None:
            for m, value in zip(held[level], values, strict=True):
                self.b.store(m, column(s), value, (1,))

        def begun(is_first: Node, old: Sequence[Node]) -> list[Node]:
            pairs = zip(sums, old, strict=True)
            return [where(is_first, _neutral(r, x.shape), x) for r, x in pairs]

        def add_rows(first: Node, block: Node, number: int, end: Node | None = None) -> None:
            """Add so many rows to a block's sums, or those up to `end`."""

            def tile(s: Tiles) -> None:
                give(s)
                s.hoist(exprs)

                def step(i: Node, *acc: Node) -> list[Node]:
                    inner = Tiles(self.emission, {rows: i}, s.tile_axes, s)
                    return self._block(inner, roots, sums, acc)

                for i in range(number if asked else 0):
                    down = binary("min", add(first, number + i), rows.size - 1)
                    for r in asked:  # nothing uses them
                        Tiles(self.emission, {rows: down}, s.tile_axes, s).tile(r)
                old = begun(binary("eq", first, block), load(s, 0))
                if end is None and terms <= WRITTEN:
                    for i in range(number):
                        old = step(add(first, i), *old)
                else:
                    stop = add(first, number) if end is None else end
                    old = list(self.b.loop(first, stop, 1, step, old))
                store(s, 0, old)

            self._vector_chunk(scope, v, tile)

        def add_block(first: Node) -> None:
            """The sums of a block's rows, one after the other."""
            if is_fixed(rows.size):
                last = add(first, short - rest)
                self.b.loop(first, last, ROWS, lambda i: add_rows(i, first, ROWS))
                if rest:
                    add_rows(last, first, rest)
                return
            end: Node = const(rows.size, I64)
            if count > 1:
                end = binary("min", add(first, short), end)
            last = sub(end, binary("rem", sub(end, first), ROWS))
            self.b.loop(first, last, ROWS, lambda i: add_rows(i, first, ROWS))
            self.b.loop(last, end, ROWS, lambda i: add_rows(i, first, ROWS, end))

        def join(is_first: Node, level: int) -> None:
            """Add the sums of one level to those of the next."""

            def tile(s: Tiles) -> None:
                old = begun(is_first, load(s, level))
                found = zip(combine, old, load(s, level - 1), strict=True)
                store(s, level, [binary(op, x, y) for op, x, y in found])

            self._vector_chunk(scope, v, tile)

        def part(first: Node, size: int, level: int) -> None:
            if level == 0:
                add_block(first)
                return

            def half(i: Node) -> None:
                part(add(first, mul(i, size // 2)), size // 2, level - 1)
                join(binary("eq", i, 0), level)

            self.b.loop(0, 2, 1, half)

        def following(first: Node) -> None:
            add_block(first)
            join(binary("eq", first, 0), 1)

        if is_fixed(rows.size) or count == 1:
            part(const(0, I64), rows.size, count - 1)
        else:
            self.b.loop(0, rows.size, short, following)
        return dict(zip(sums, held[count - 1], strict=True))

    def _vector_chunk(
        self, scope: Tiles, v: Axis, tile: Callable[[Tiles], None] | None = None
    ) -> None:
        """A run of blocks of lanes, each of which is made by `tile`, or by the passes over it."""
        tile = tile or self._passes
        chunk, count = self._chunk_size(), self.chunks
        start = mul(self.chunk, chunk)
        full = v.size - v.size % self.width
        stop = const(full, I64) if is_one(count) else add(start, chunk)
        if not divides(chunk, v.size):
            stop = binary("min", stop, full)

        def body(i: Node) -> None:
            tile(self._tiled(scope, v, i, None))

        if may_be_positive(full):
            self.b.loop(start, stop, self.width, body)
        if not divides(self.width, v.size):
            self._tail(scope, v, full, tile)

    def _tail(self, scope: Tiles, v: Axis, full: int, tile: Callable[[Tiles], None]) -> None:
        def emit() -> None:
            limit = const(v.size - full, I64)
            tile(self._tiled(scope, v, const(full, I64), limit))

        if not is_fixed(v.size):
            last = binary("eq", self.chunk, self.chunks - 1)
            with self.b.when(binary("and", last, binary("lt", const(full, I64), v.size))):
                if self.emission.loops.squares and self.width > self.lanes:
                    self._narrow_tail(scope, v, full, tile)
                else:
                    emit()
            return
        if is_one(self.chunks):
            emit()
            return
        with self.b.when(binary("eq", self.chunk, self.chunks - 1)):
            emit()

    def _narrow_tail(self, scope: Tiles, v: Axis, full: int, tile: Callable[[Tiles], None]) -> None:
        """What is left of an axis by single registers, of which the last one alone is masked: on
        some processors a masked store takes as long as 15 others, also where nothing is stored."""
        end = v.size - v.size % self.lanes
        self.b.loop(
            full, end, self.lanes, lambda i: tile(self._tiled(scope, v, i, None, self.lanes))
        )
        with self.b.when(binary("lt", const(end, I64), v.size)):
            left = const(v.size - end, I64)
            tile(self._tiled(scope, v, const(end, I64), left, self.lanes))

    def _tiled(
        self, scope: Tiles, v: Axis, base: Node, limit: Node | None, width: int | None = None
    ) -> Tiles:
        across = TileAxis(v, base, self.width if width is None else width, limit)
        return Tiles(scope.emission, {}, (*scope.tile_axes, across), scope)

    def _far(self, exprs: Iterable[Expr], rows: Axis, v: Axis) -> list[Read]:
        """What rows that are read side by side have that is taken to be in memory: what the last
        cache does not hold, and matrices that the second one does not hold, since they are mostly
        weights, of which others were read meanwhile. A processor that looks ahead along so many
        rows fetches less than memory gives, and begins anew with each of them, so the rows that
        follow are asked for. Measured on one thread of Zen 4: sums down columns of 256 MB take 0.81
        of the time, those of its rows and of all 0.84, a row by a matrix of 64 MB 0.87, and by
        twelve of 4 or 9 MB one after the other 0.77 to 0.84; what is in the third cache after all
        takes 1.12 to 1.2 times as long, and sums down columns in the second 1.35."""
        if not (is_fixed(rows.size) and is_fixed(v.size)):
            return []
        info, found = self.emission.info, dict[Read, None]()
        for e in exprs:
            most = cache_nbytes(info, 1) if _is_by_a_row(e) else last_cache_nbytes(info)
            for r in reads(e):
                known = not r.guards and all(a.source is None for a in r.axes)
                along = r.offset.coefficient(v) == 1 and rows in r.axes
                nbytes = hint(prod(a.size for a in r.axes)) * r.dtype.nbytes
                if along and known and r.root not in self.emission.own and nbytes > most:
                    found[r] = None
        return [*found]

    # passes over rows

    def _in_turns(self, scope: Tiles, row: Axis, blocks: Axis) -> list[Tiles]:
        """The rows of a block, each with scratch memory of its own."""
        first = mul(scope.values[blocks], self.sizes.turns)
        found = []
        for k in range(self.sizes.turns):
            apart = replace(self.emission, memory=self._own_scratch(k)) if k else self.emission
            found.append(Tiles(apart, {row: add(first, k)}, (), scope))
            found[-1].hoist(self.nest.exprs.values())
        return found

    def _own_scratch(self, turn: int) -> Callable[[Home, Affine], tuple[Memory, int]]:
        """As `Emission.memory`, with other scratch memory."""
        shared, made = self.emission.memory, dict[int, Memory]()
        for root, at in self.nest.own.items():
            home = self.emission.homes.get(root)
            if home is not None and home.kind == "scratch":
                of, _ = shared(home, at)
                made[home.index] = self.b.alloc(f"{of.name}_{turn}", of.dtype, of.size)

        def memory(home: Home, offset: Affine) -> tuple[Memory, int]:
            if home.kind == "scratch":
                return made[home.index], 0
            return shared(home, offset)

        return memory

    def _passes(self, *rows: Tiles) -> None:
        """All passes, each over one row after the other."""
        for number in range(max(self.level.values()) + 1):
            here = [r for r in self.nest.own if self.level[r] == number]
            full = [r for r in here if self._in_loop(r)]
            for row in rows:
                row.hoist(self.nest.exprs[r] for r in full if r in self.nest.exprs)
                for root in (r for r in here if not self._in_loop(r)):
                    self._compute(row, root)
                if full:
                    self._pass(row, full)

    def _in_loop(self, root: Node) -> bool:
        """Whether the root is computed inside the loops over the row (a pure row has none)."""
        if root in self.picked:
            return False
        return root.op == "reduce" or self.space.is_full(root)

    def _compute(self, scope: Tiles, root: Node) -> None:
        picked = self.picked.get(root)
        if picked is None:
            scope.local[root] = scope.root(root, self.work)
        else:
            scope.hold(root, self._pick(scope, picked))
        scope.keep(root, self.work)

    def _with_phases(self, scope: Tiles) -> Tiles:
        if self.phases is None:
            return scope
        tile = TileAxis(self.phases, const(0, I64), self.phases.size)
        return Tiles(scope.emission, {}, (*scope.tile_axes, tile), scope)

    def _pass(self, row: Tiles, roots: list[Node]) -> None:
        sums = [r for r in roots if r.op == "reduce"]
        vector_reduced = self.vector is not None and not self.vector_parallel
        tiled = self._with_phases(row) if vector_reduced else row
        shape = (*tiled.shape, self.width) if vector_reduced else row.shape
        neutral = tuple(_neutral(r, shape) for r in sums)
        combine = tuple(COMBINE[r["kind"]] for r in sums)
        # Without masks the text is short.
        uncut = row.holding.issuperset(self._guards()) and self._are_windows()
        written = self._are_taps(INSIDE if uncut else TAPS)
        accumulators = Sums(neutral, combine, self._serial(sums), written=written)

        def block(scope: Tiles, acc: Sequence[Node]) -> list[Node]:
            return self._block(scope, roots, sums, acc)

        def over_vector(scope: Tiles, acc: Sequence[Node]) -> list[Node]:
            if not vector_reduced:
                return block(scope, acc)
            return self._over_vector(scope, block, acc, accumulators)

        total = self._over_inner(tiled, self.inner, over_vector, accumulators, neutral)
        for root, value in zip(sums, total, strict=True):
            for along in range(len(shape) - 1, len(row.shape) - 1, -1):
                value = reduce(root["kind"], value, along)
            row.hold(root, value)
            row.keep(root, self.work)

    def _are_taps(self, most: int) -> bool:
        """Whether sums are of a few elements in each lane, as those of a window: `most` at most."""
        count = prod(a.size for a in self.inner)
        simple = self.emission.loops.squares and self.vector_parallel and self.inner
        return bool(simple and is_fixed(count) and count <= most)

    def _serial(self, sums: list[Node]) -> int | None:
        """Elements that are added one after the other before pairs begin; None: all, where nothing
        is rounded, and where transfers follow a loop and not a nest of them."""
        rounded = [r for r in sums if r.dtype.is_float and r["kind"] in ("sum", "prod")]
        if not rounded or self.transfers:
            return None
        return SERIAL // max(hint(_terms(r)) for r in rounded)

    def _over_inner(
        self,
        scope: Tiles,
        axes: list[Axis],
        body: Callable[[Tiles, Sequence[Node]], list[Node]],
        sums: Sums,
        acc: Sequence[Node],
    ) -> list[Node]:
        if not axes:
            return body(scope, acc)

        def step(i: Node, *carried: Node) -> list[Node]:
            inner = Tiles(scope.emission, {axes[0]: i}, scope.tile_axes, scope)
            return self._over_inner(inner, axes[1:], body, sums, carried)

        terms = prod(a.size for a in axes[1:])
        return list(sums.over(self.b, axes[0].size, terms, step, acc))

    def _over_vector(
        self,
        scope: Tiles,
        body: Callable[[Tiles, Sequence[Node]], list[Node]],
        acc: Sequence[Node],
        sums: Sums,
    ) -> list[Node]:
        v = self.vector
        assert v is not None
        full = v.size - v.size % self.width
        if self.side is not None:  # fewer lanes have longer sums each
            row, blocks = self.side
            asked = self._far(self.nest.exprs.values(), row, v)
            following = binary("min", add(scope.values[blocks], 1), blocks.size - 1)
            down = TileAxis(row, mul(following, self.height), self.height)

            def block(i: Node, *carried: Node) -> list[Node]:
                across = TileAxis(v, mul(i, self.width), self.width)
                for r in asked:  # nothing uses them
                    Tiles(self.emission, {}, (down, across), scope).tile(r)
                return body(self._tiled(scope, v, mul(i, self.width), None), carried)

            steps = sums if sums.serial is None else replace(sums, serial=SIDE_SERIAL)
            return list(steps.over(self.b, v.size // self.width, 1, block, acc))

        def step(i: Node, *carried: Node) -> list[Node]:
            return body(self._tiled(scope, v, i, None), carried)

        out = (
            list(self.b.loop(0, full, self.width, step, acc))
            if may_be_positive(full)
            else list(acc)
        )
        if divides(self.width, v.size):
            return out

        def tail(i: Node, *carried: Node) -> list[Node]:
            return body(self._tiled(scope, v, i, const(v.size - full, I64)), carried)

        if not is_fixed(v.size):  # a loop of one step, or of none where there is no tail
            return list(self.b.loop(full, v.size, self.width, tail, out))
        return tail(const(full, I64), *out)

    def _block(
        self, scope: Tiles, roots: list[Node], sums: list[Node], acc: Sequence[Node]
    ) -> list[Node]:
        """One tile of every root of the pass, in order."""
        carried = dict(zip(sums, acc, strict=True))
        for root in roots:
            if root in carried:
                # The accumulator with this tile's elements in it; elements beyond the limit do not
                # count. Of a parallel axis they are of sums of their own, which nobody reads.
                held = carried[root]
                value = broadcast(scope.tile(self.nest.exprs[root]), scope.shape)
                for t in scope.tile_axes:
                    if t.limit is not None and t.axis in self.space.reduced:
                        neutral = const(identity(root["kind"], value.dtype), value.dtype)
                        value = where(scope.valid(t), value, neutral)
                carried[root] = binary(COMBINE[root["kind"]], held, value)
            else:
                self._compute(scope, root)
        return [carried[r] for r in sums]


def _along(r: Read, chosen: Axis, v: Axis) -> Read:
    """A read of neighbours in the place of one at a position that an index chooses."""
    if chosen is v:
        return r
    terms = tuple((v if a is chosen else a, c) for a, c in r.offset.terms)
    return Read(r.dtype, axes_of(offset := Affine(r.offset.const, terms)), r.root, offset, ())


def _as_picked(e: Expr, axis: Axis) -> _Picked | None:
    """The element that a sum of `where(position == index, value, 0)` along an axis has."""
    if not (isinstance(e, Apply) and e.node.op == "where" and e.dtype.is_float):
        return None
    hit, value, rest = e.args
    none = isinstance(rest, Constant) and rest.value == 0
    if not (none and isinstance(hit, Apply) and hit.node.op == "eq"):
        return None
    for place, index in (hit.args, hit.args[::-1]):
        if isinstance(place, Iota) and place.dtype.nbytes >= 4 and axis not in index.axes:
            at = place.value
            first = Affine(at.const, tuple(x for x in at.terms if x[0] is not axis))
            if place.dtype.is_int and at.coefficient(axis) == 1 and axis not in axes_of(first):
                return _Picked(value, index, Iota(I64, axes_of(first), first))
    return None


def _is_by_a_row(e: Expr) -> bool:
    """Whether an expression is of a matrix's elements times those of a row or a column."""
    if not (isinstance(e, Apply) and e.node.op == "mul"):
        return False
    factors = [uncast(x) for x in e.args]
    if not all(isinstance(x, Read) for x in factors):
        return False
    left, right = (x.axes for x in factors)
    return left < right or right < left


def _goes_down(at: Affine, row: Axis, v: Axis) -> bool:
    """Whether elements lie side by side along a row axis, and far apart along the vector axis."""
    return bool(at.coefficient(row) == 1 and at.coefficient(v) not in (0, 1))


def _is_long(axis: Axis) -> bool:
    return axis.source is None and hint(axis.size) >= LEAST


def _terms(root: Node) -> int:
    """The terms that each element of a reduction stands for: those of a sum of sums."""
    below = base(root.srcs[0])
    if below.op != "reduce" or below["kind"] != root["kind"]:
        return 1
    return below.srcs[0].type.size // below.type.size


def _neutral(root: Node, shape: tuple[int, ...]) -> Node:
    dtype = compute_dtype(root.dtype)
    return const(identity(root["kind"], dtype), dtype, shape)


def _width(size: int, lanes: int, unroll: int, long: float = inf) -> int:
    """Elements of a vector tile: as many registers as divide the axis, else a masked tail; so, too,
    from `long` elements on where fewer registers than `unroll` divide it."""
    if not is_fixed(size):
        return _unfilled(expected(size, HINTED), lanes, unroll)
    for width in (unroll * lanes, 2 * lanes, lanes):
        if size % width == 0 and (width == unroll * lanes or size < long):
            return width
    return _unfilled(size, lanes, unroll) if size >= lanes else size


def _unfilled(size: int, lanes: int, unroll: int) -> int:
    """Elements of a vector tile that does not divide the axis: a quarter of it at most."""
    return min(unroll * lanes, lanes * max(1, size // (4 * lanes)))


def _divisor(size: int, lanes: int, unroll: int) -> int:
    """As `_width`, of any number of elements that leaves no tail: the steps before a tail cannot
    share transfers with it."""
    fitting = (w for w in range(unroll * lanes, lanes - 1, -1) if size % w == 0)
    return next(fitting, _width(size, lanes, unroll))
