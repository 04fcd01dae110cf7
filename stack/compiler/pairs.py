"""Sums of many terms in pairs of pairs (pairwise summation: Higham, "The accuracy of floating point
summation", 1993).

An axis is halved until what is left is short. The terms of such a block are added one after the
other, and blocks in pairs, pairs of pairs and so on. The error grows with the logarithm of the
number of blocks. And a half, a quarter, ... of the axis on its own is a node of the whole's tree:
ranks that have equal parts of a batch make the sums that one process makes of the whole of it, bit
for bit, where their number is a power of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.build import Builder, add, binary, cast, index, mul
from hal.tile.node import Node
from hal.tile.size import hint, is_fixed

SERIAL = 32
"""Terms of a reduction that are added one after the other."""

BLOCK = 256
"""Steps of a loop, and blocks of them, that are added one after the other where its size is
data."""

SERIAL_PRODUCTS = 96
"""Terms of a matmul over the rows of a batch that are added one after the other at most: few, so
that small batches have such halves too; fewer take more time. Of powers of two these are 64, of
three times those 96, since with 48 a product takes 1.07 of the time. (Here 64 take a tenth more
than all, and 32 a fifth.)"""


def halved(size: int, most: int, step: int = 1) -> int:
    """The size halved as often as it takes to be at most `most`, but only while it is even and its
    half a multiple of `step`."""
    while size > most and size % (2 * step) == 0:
        size //= 2
    return size


def levels(blocks: int) -> int:
    """The sums of 1, 2, 4, ... blocks that wait for their other half at once."""
    return (blocks - 1).bit_length()


def waiting(blocks: int) -> list[int]:
    """The levels whose sums wait beside that of the last block and all that it completed."""
    return [n for n in range(blocks.bit_length()) if blocks >> n & 1][1:]


def completed(number: Node, blocks: int) -> Node:
    """How many waiting sums, from level 0 on, a block's completes: the ones at the end of its
    number in binary."""
    following = add(number, 1)
    total = index(0)
    for level in range(1, levels(blocks) + 1):
        ends = binary("eq", binary("rem", following, 1 << level), 0)
        total = add(total, cast(ends, DType.I64))
    return total


@dataclass(frozen=True, slots=True)
class Sums:
    """Accumulators of one loop: the value that each begins with, the operation that combines two,
    and the terms that are combined one after the other; None: all."""

    neutral: tuple[Node, ...]
    combine: tuple[str, ...]
    serial: int | None
    apart: bool = False
    """Whether halves are written one after the other: the text of the innermost loop as often as
    there are, and one addition where a loop over two halves makes two, the first to nothing."""
    written: bool = False
    """Whether steps that are added one after the other are written so, and not as a loop."""

    def over(
        self,
        b: Builder,
        size: int,
        terms: int,
        step: Callable[..., Sequence[Node]],
        start: Sequence[Node],
    ) -> Sequence[Node]:
        """`start` with step(i, *sums) for every i in range(size), each of which adds `terms`."""
        if self.serial is not None and not is_fixed(size):
            # Of a size that is data, which cannot be halved here: blocks one after the other
            def add_block(first: Node, *sums: Node) -> list[Node]:
                stop = binary("min", add(first, BLOCK), size)
                found = b.loop(first, stop, 1, step, self.neutral)
                pairs = zip(self.combine, sums, found, strict=True)
                return [binary(op, x, y) for op, x, y in pairs]

            return b.loop(0, size, BLOCK, add_block, start)
        short = size if self.serial is None else halved(size, max(1, self.serial // hint(terms)))
        return self._part(b, index(0), size, short, step, start)

    def _part(
        self,
        b: Builder,
        first: Node,
        size: int,
        short: int,
        step: Callable[..., Sequence[Node]],
        start: Sequence[Node],
    ) -> Sequence[Node]:
        if size == short and self.written:
            for i in range(size):
                start = step(add(first, i), *start)
            return start
        if size == short:
            return b.loop(0, size, 1, lambda i, *sums: step(add(first, i), *sums), start)
        half = size // 2
        if self.apart and start is self.neutral:
            found = self._part(b, first, half, short, step, self.neutral)
            other = self._part(b, add(first, half), half, short, step, self.neutral)
            return [binary(op, x, y) for op, x, y in zip(self.combine, found, other, strict=True)]

        def add_half(i: Node, *sums: Node) -> list[Node]:
            at = add(first, mul(i, half))
            found = self._part(b, at, half, short, step, self.neutral)
            pairs = zip(self.combine, sums, found, strict=True)
            return [binary(op, x, y) for op, x, y in pairs]

        return b.loop(0, 2, 1, add_half, start)
