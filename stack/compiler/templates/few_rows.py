"""Products of few rows by a matrix that lies along k, as a batch of a few has with the weights of a
linear layer: nothing of the matrix is packed, since each of its elements is used for a few
multiply-adds alone.

    pack all rows of A, of whole vectors along k
    for each strip of columns:
        for each group of rows of A, of nearly equal sizes:
            sums[row][column] = vectors of zeros
            for k, a vector at a time:
                ask for B's vectors of some columns of the next strip
                sums += A's vector of each row * B's vector of each column
            C[row][column] = the sum of a vector's elements
    epilogue(C)
"""

from __future__ import annotations

from itertools import pairwise
from math import inf

from hal.core.description import DeviceInfo
from hal.core.facts import dataclass
from hal.core.values import Grid
from hal.tile.build import (
    Builder,
    Operand,
    add,
    binary,
    cast,
    const,
    fma,
    index,
    mul,
    reduce,
    reshape,
    sub,
    transpose,
)
from hal.tile.node import Node
from hal.tile.size import hint, is_fixed
from stack.compiler.templates.blocking import (
    LAUNCH_COST,
    Blocks,
    MatmulShape,
    ceil_div,
    lanes_of,
    round_up,
    scratch_budget,
)
from stack.compiler.templates.few_rows_frame import (
    MOST,
    Frame,
    frame,
    most_rows,
    packed_nbytes,
    padded,
)
from stack.compiler.templates.product import Product

DEEPEST = 1 << 14
"""k up to which a sum's elements are added one vector after the other: what is longer is better
summed in blocks, as packed products do."""

FOLDED = 8
"""Vector operations in the time that the elements of a vector take to be added up and stored: for
each column of a row that has to be less than packing the column takes."""

PER_CORE = 4
"""Instances for each core, so that none waits long for the last one."""


def are_few(m: int, k: int) -> bool:
    """Whether so many rows of so many elements take less time than packing the matrix would, also
    for a matrix unit of floats; integers take more without one."""
    return is_fixed(m) and is_fixed(k) and m <= MOST and FOLDED * m <= k <= DEEPEST


def suits(p: Product, info: DeviceInfo) -> bool:
    """Whether a product is not to be packed: both operands lie evenly, in memory, A along k."""
    s = p.shape
    if not are_few(s.m, s.k):
        return False
    fits = _scratch_nbytes(s, info) <= packed_nbytes(info)
    return s.together == 1 and _lie_well(p) and fits


def may_suit(p: Product, blocks: Blocks, info: DeviceInfo) -> bool:
    """Whether a product whose rows are data is not to be packed where they are few: there is room
    for them beside what is packed, and an instance has all of them."""
    s = p.shape
    if is_fixed(s.m) or not is_fixed(s.k) or not FOLDED * MOST <= s.k <= DEEPEST:
        return False
    sums = MOST * padded(blocks.np, lanes_of(s, info)) * s.accumulate.nbytes
    fits = _scratch_nbytes(s, info) + sums <= scratch_budget(info) // 8
    return s.accumulate.is_float and blocks.mp >= MOST and _lie_well(p) and fits


def _lie_well(p: Product) -> bool:
    s = p.shape
    apart = p.a_uneven or p.b_uneven or p.pieces_a or p.pieces_b or p.is_there or p.b_panels
    return s.a_contiguous == "k" and not s.k_run and not apart


def _scratch_nbytes(s: MatmulShape, info: DeviceInfo) -> int:
    """What the packed rows take."""
    return most_rows(s.m) * padded(s.k, lanes_of(s, info)) * s.accumulate.nbytes


def few_rows(b: Builder, p: Product, info: DeviceInfo, width: int | None = None) -> Grid:
    """Emit the product and give its launch grid (with a 0 where C is empty). `width`: the columns
    of an instance, else as many as are best."""
    s, lanes = p.shape, lanes_of(p.shape, info)
    if 0 in (s.batch, s.n):
        return (0, 1, 1)
    width = width or _width(s, info)
    own = frame(b, p, lanes, width, width)
    return own.emit(_FewRows(own, *grouped(most_rows(s.m), info.limits.registers or 16)).fill)


@dataclass(frozen=True, slots=True)
class _FewRows:
    frame: Frame
    together: int
    """Columns whose sums are in registers at once."""
    groups: list[tuple[int, int]]
    """The first row and the number of rows of each group."""

    def fill(self, batch: Node, n0: Node, columns: Operand) -> None:
        """The sums of all columns of an instance."""
        b, together = self.frame.b, self.together
        last = sub(columns, binary("rem", index(columns), together))
        b.loop(0, last, together, lambda j: self._strip(batch, n0, j, together))
        b.loop(last, columns, 1, lambda j: self._strip(batch, n0, j, 1))

    def _strip(self, batch: Node, n0: Node, j: Node, count: int) -> None:
        """C of all rows and of `count` columns from j on."""
        b, m, n, last = self.frame.b, self.frame.p.shape.m, add(n0, j), len(self.groups)

        def group(first: Node, rows: int, asked: range) -> None:
            pitch = self.frame.pitches[1]
            sums = self._sums(batch, n, count, (first, rows), self._asked(n, count, asked))
            for i, total in enumerate(sums):
                row, column = add(first, i // count), i % count
                at = add(j, add(mul(row, pitch), column))
                b.store(self.frame.c, at, reshape(reduce("sum", total, 1), (1, 1)), (1, 1))

        if is_fixed(m):
            for i, (first, rows) in enumerate(self.groups):
                group(index(first), rows, range(count * i // last, count * (i + 1) // last))
        else:
            rows = max(rows for _, rows in self.groups)
            b.loop(0, m, rows, lambda first: group(first, rows, range(count)))

    def _sums(
        self, batch: Node, n: Node, count: int, group: tuple[Node, int], asked: list[Node]
    ) -> tuple[Node, ...]:
        """A vector of sums for each row of a group and each of `count` columns; some columns are
        asked for meanwhile."""
        b, p, lanes, (depth, _) = self.frame.b, self.frame.p, self.frame.lanes, self.frame.pitches
        s, (first, rows) = p.shape, group

        def step(k: Node, limit: Node | None, *sums: Node) -> tuple[Node, ...]:
            right = [
                cast(
                    transpose(p.load_b(b, batch, k, add(n, c), (lanes, 1), (limit, None)), (1, 0)),
                    s.accumulate,
                )
                for c in range(count)
            ]
            left = [
                b.load(self.frame.a, add(k, mul(add(first, r), depth)), (1, lanes), (depth, 1))
                for r in range(rows)
            ]
            for column in asked:
                p.load_b(b, batch, k, column, (lanes, 1), (limit, None))
            pairs = [(x, y) for x in left for y in right]
            return tuple(fma(x, y, z) for (x, y), z in zip(pairs, sums, strict=True))

        zeros = (const(0, s.accumulate, (1, lanes)),) * (rows * count)
        whole = s.k // lanes * lanes
        sums = zeros
        if whole:
            sums = b.loop(0, whole, lanes, lambda k, *sums: step(k, None, *sums), zeros)
        if whole < s.k:
            sums = step(index(whole), index(s.k - whole), *sums)
        return sums

    def _asked(self, n: Node, count: int, some: range) -> list[Node]:
        """Columns of the next strip, of `count`, that are asked for along with a group of rows:
        equally many with each, so that memory has as much to do while each is computed. What
        processors fetch by themselves comes too late where there is much to compute, and ends with
        a page. On Zen 4 a matrix of 4096 squared in memory takes 0.87 of the time with 2 rows, 0.9
        with 4 and 0.68 with 8; one of 768 squared in the third cache takes 1.2 times as long with 2
        rows, and no longer from 4 on: it is taken to be in memory, as the weights of a model
        are."""
        last = sub(index(self.frame.p.shape.n), 1)
        return [binary("min", add(n, count + c), last) for c in some]


def grouped(rows: int, registers: int) -> tuple[int, list[tuple[int, int]]]:
    """The columns whose sums are in registers at once, and the first row and the number of rows of
    each group: those for which the fewest vectors are read for each of a column. With small groups
    a column is read again and again, with large ones there are few columns for what is read of A.
    Of 8 rows two groups of 4 by 6 columns read as much as one of 8 by 3 does, or a tenth less, and
    of 5 one of 5 by 5 a quarter less than groups of 3 and 2 by 7."""

    def read(parts: int) -> tuple[float, int]:
        columns = _columns(ceil_div(rows, parts), registers)
        return rows / columns + parts if columns else inf, -parts

    parts = min(range(1, rows + 1), key=read)
    ends = [ceil_div(rows * i, parts) for i in range(parts + 1)]
    columns = max(1, _columns(ceil_div(rows, parts), registers))
    return columns, [(x, y - x) for x, y in pairwise(ends)]


def _columns(rows: int, registers: int) -> int:
    """The columns whose sums with so many rows leave registers for a vector of each of them and
    one of A."""
    return (registers - 1) // (rows + 1)


def _width(s: MatmulShape, info: DeviceInfo) -> int:
    """The columns of an instance: as few as give each core several, but enough for a launch."""
    lanes, n = lanes_of(s, info), max(1, hint(s.n))
    instances = max(1, info.limits.instances) * PER_CORE
    fair = ceil_div(n * max(1, hint(s.batch)), instances)
    most = most_rows(s.m)
    worth = ceil_div(LAUNCH_COST, hint(s.m) * s.k)
    room = scratch_budget(info) // 4 // (most * s.accumulate.nbytes)
    return round_up(min(n, max(fair, worth), max(lanes, room // lanes * lanes)), lanes)
