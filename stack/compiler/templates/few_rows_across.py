"""Products of few rows, or of one, by a matrix that lies along n, as a batch of a few has with
weights that are stored by inputs, or the weights of a few queries with the values that they attend:
nothing of the matrix is packed, as in `few_rows`, and it is read along its rows, which are long.

    pack all rows of A
    C = 0, of the columns of an instance
    for k, a few rows of B at a time:
        for each vector of columns:
            ask for the next rows of B there
            for each group of rows of A: C's vectors += A's elements * B's vectors
    epilogue(C)
"""

from __future__ import annotations

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
    fma,
    index,
    mul,
)
from hal.tile.node import Node
from hal.tile.size import hint, is_fixed
from stack.compiler.graph.prepare import Across
from stack.compiler.templates.blocking import (
    LAUNCH_COST,
    MatmulShape,
    cache_nbytes,
    ceil_div,
    lanes_of,
    round_up,
    scratch_budget,
)
from stack.compiler.templates.edges import left_of
from stack.compiler.templates.few_rows import DEEPEST
from stack.compiler.templates.few_rows_frame import Frame, frame, most_rows, packed_nbytes, padded
from stack.compiler.templates.product import Product

PART = 4
"""The part of the registers that holds vectors of B, of as many rows: with more, C is loaded and
stored less often; processors fetch ahead along eight rows by themselves. A product of 8 rows by
4096 by 4096 takes 0.88 of the time with 8 rows of B that it takes with 4, and with 16 the time of
those 8 times 1.2 (one thread, Zen 4, 32 registers)."""


SOME = 4
"""Rows of A of a group where their number is data: those that are not there are computed, too."""

LEAST = 128
"""Columns for each core from which on a row by a matrix is such a product: of fewer a core reads
short runs, and a reduction may divide the depth among cores, too. One thread of Zen 4 takes 0.4 to
0.9 of the time of a reduction with 128 columns and more of bfloat16 (768 squared 0.26 to 0.3), with
float32 0.5 to 0.97, and with 64 columns 0.95 to 1.2."""


def across(info: DeviceInfo) -> Across:
    """By which matrices a row is multiplied so: those for which its elements fit."""
    widest = DType.F64.nbytes
    deepest = packed_nbytes(info) // widest - 2 * info.limits.vector_nbytes // widest
    return Across(min(DEEPEST, deepest), LEAST * max(1, info.limits.instances))


def few_rows_across(b: Builder, p: Product, info: DeviceInfo, width: int | None = None) -> Grid:
    """Emit the product and give its launch grid (with a 0 where C is empty). `width`: the columns
    of an instance, else as many as are best."""
    s, lanes = p.shape, lanes_of(p.shape, info)
    if 0 in (s.batch, s.n):
        return (0, 1, 1)
    registers, width = info.limits.registers or 16, width or _width(s, info)
    depth = min(registers // PART, s.k)
    own = frame(b, p, lanes, width, padded(width, lanes))
    return own.emit(_FewRowsAcross(own, depth, registers - depth - 1).fill)


@dataclass(frozen=True, slots=True)
class _FewRowsAcross:
    frame: Frame
    depth: int
    """Rows of B at a time."""
    most: int
    """Rows of A of a group."""

    def fill(self, batch: Node, n0: Node, columns: Operand) -> None:
        """The sums of all columns of an instance."""
        b, s, lanes = self.frame.b, self.frame.p.shape, self.frame.lanes
        zero, pitch = const(0, s.accumulate, (1, lanes)), self.frame.pitches[1]

        def clear(row: Node, j: Node) -> None:
            b.store(self.frame.c, add(mul(row, pitch), j), zero, (pitch, 1))

        b.loop(0, s.m, 1, lambda row: b.loop(0, columns, lanes, lambda j: clear(row, j)))
        whole = s.k // self.depth * self.depth

        def down(k: Node, rows: int) -> None:
            b.loop(0, columns, lanes, lambda j: self._add(batch, k, n0, j, rows))

        b.loop(0, whole, self.depth, lambda k: down(k, self.depth))
        if whole < s.k:
            down(index(whole), s.k - whole)

    def _add(self, batch: Node, k: Node, n0: Node, j: Node, depth: int) -> None:
        """Add to a vector of columns of each row of C what so many rows of B give."""
        b, p, lanes = self.frame.b, self.frame.p, self.frame.lanes
        down, across = self.frame.pitches
        s, n, shape = p.shape, add(n0, j), (1, lanes)
        limits = (None, left_of(s.n, n, lanes))
        right = [
            cast(p.load_b(b, batch, add(k, i), n, shape, limits), s.accumulate)
            for i in range(depth)
        ]
        for i in range(depth):  # nothing uses these: they are asked for
            following = binary("min", add(k, self.depth + i), s.k - 1)
            p.load_b(b, batch, following, n, shape, limits)

        def group(first: Node, count: int) -> None:
            rows = [add(first, r) for r in range(count)]
            places = [add(j, mul(row, across)) for row in rows]
            sums = [b.load(self.frame.c, at, shape, (across, 1)) for at in places]
            for i, vector in enumerate(right):
                for r, row in enumerate(rows):
                    element = b.load(self.frame.a, add(k, add(mul(row, down), i)))
                    sums[r] = fma(broadcast(element, shape), vector, sums[r])
            for at, total in zip(places, sums, strict=True):
                b.store(self.frame.c, at, total, (across, 1))

        if is_fixed(s.m):
            for first in range(0, s.m, self.most):
                group(index(first), min(self.most, s.m - first))
        else:
            b.loop(0, s.m, SOME, lambda first: group(first, SOME))


def _width(s: MatmulShape, info: DeviceInfo) -> int:
    """The columns of an instance: long runs of rows, which are read faster than short ones, so that
    each core has as many, but enough for a launch, and no more than the second cache holds sums
    of."""
    lanes, n = lanes_of(s, info), max(1, hint(s.n))
    fair = ceil_div(n * max(1, hint(s.batch)), max(1, info.limits.instances))
    most = most_rows(s.m)
    worth = ceil_div(LAUNCH_COST, hint(s.m) * s.k)
    near = min(cache_nbytes(info, 1) // 2, scratch_budget(info) // 4)
    room = near // (most * s.accumulate.nbytes)
    return round_up(min(n, max(fair, worth), max(lanes, room // lanes * lanes)), lanes)
