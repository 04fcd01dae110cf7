"""What products of few rows have in common: an instance has all rows and some columns of C. It
packs all rows of A, sums up its columns in scratch memory, and gives the sums to the epilogue."""

from __future__ import annotations

from collections.abc import Callable

from hal.core.description import DeviceInfo
from hal.core.facts import dataclass
from hal.core.values import Grid
from hal.tile.build import Builder, Operand, add, cast, mul, program_id, sub
from hal.tile.kernel import Memory
from hal.tile.node import Node
from hal.tile.size import divides, is_fixed
from stack.compiler.templates.blocking import cache_nbytes, ceil_div, round_up, scratch_budget
from stack.compiler.templates.edges import least, left_of
from stack.compiler.templates.product import Product, divided

MOST = 16
"""Rows up to which a matrix is not packed: for each element that takes the time of about so many
multiply-adds (PACK_COST)."""

Fill = Callable[[Node, Node, Operand], None]
"""Sum up the columns of an instance: which product of the batch, the first column, their number."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The scratch memory of an instance."""

    b: Builder
    p: Product
    lanes: int
    width: int
    """Columns of an instance."""
    a: Memory
    """The packed rows of A, in the type of the sums."""
    c: Memory
    """The sums."""
    pitches: tuple[int, int]
    """From one packed row of A to the next, and from one of the sums."""

    def emit(self, fill: Fill) -> Grid:
        """All of an instance, and the launch grid."""
        b, s, lanes = self.b, self.p.shape, self.lanes
        strips = ceil_div(s.n, self.width)
        batch, part = divided(program_id(0), strips)
        n0 = mul(part, self.width)
        columns = least(self.width, sub(s.n, n0), divides(self.width, s.n))
        b.loop(0, s.m, 1, lambda row: b.loop(0, s.k, lanes, lambda k: self._pack(batch, row, k)))
        fill(batch, n0, columns)

        def finish(row: Node, j: Node) -> None:
            n, pitch = add(n0, j), self.pitches[1]
            total = b.load(self.c, add(mul(row, pitch), j), (1, lanes), (pitch, 1))
            self.p.epilogue(b, total, batch, row, n, (None, left_of(s.n, n, lanes)))

        b.loop(0, s.m, 1, lambda row: b.loop(0, columns, lanes, lambda j: finish(row, j)))
        return strips * s.batch, 1, 1

    def _pack(self, batch: Node, row: Node, k: Node) -> None:
        s, lanes, pitch = self.p.shape, self.lanes, self.pitches[0]
        loaded = self.p.load_a(self.b, batch, row, k, (1, lanes), (None, left_of(s.k, k, lanes)))
        self.b.store(self.a, add(mul(row, pitch), k), cast(loaded, s.accumulate), (pitch, 1))


def frame(b: Builder, p: Product, lanes: int, width: int, pitch: int) -> Frame:
    """With scratch memory for so many columns, `pitch` from one row of sums to the next."""
    s, depth, most = p.shape, padded(p.shape.k, lanes), most_rows(p.shape.m)
    few = "" if is_fixed(s.m) else "few_"  # beside the memory of the same product of many rows
    a = b.alloc(f"{few}packed_a", s.accumulate, most * depth)
    c = b.alloc(f"{few}c", s.accumulate, most * pitch)
    return Frame(b, p, lanes, width, a, c, (depth, pitch))


def most_rows(m: int) -> int:
    """For how many rows there is scratch memory: where their number is data, for as many as are
    few."""
    return m if is_fixed(m) else MOST


def packed_nbytes(info: DeviceInfo) -> int:
    """What packed rows may take: the second cache holds them beside what is read meanwhile."""
    return min(cache_nbytes(info, 1) // 2, scratch_budget(info) // 2)


def padded(size: int, lanes: int) -> int:
    """From one row in scratch memory to the next: whole vectors and one more, so that rows whose
    length is a power of two do not meet in the cache."""
    return round_up(size, lanes) + lanes
