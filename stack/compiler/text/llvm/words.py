"""Words in the order in which blocks of four have them, from tiles of each block's first, second,
third and fourth word in 64 bits, as random blocks are made: pairs of words fill 64 bits, and move
together. To choose between each word repeated for a whole block would move each by itself."""

from __future__ import annotations

from collections.abc import Sequence

from hal.tile.node import Node
from stack.compiler.text.llvm.choices import BLOCK, words_of
from stack.compiler.text.llvm.tiles import TileValues
from stack.compiler.text.llvm.types import vector


def in_order(t: TileValues, n: Node, row: int, piece: int) -> str | None:
    """The piece of such a choice; None where the node is anything else."""
    words = words_of(n)
    if words is None or t.lanes % (2 * BLOCK) or n.shape[-1] % t.lanes:
        return None
    blocks = t.lanes // BLOCK
    j, first = divmod(piece * blocks, t.lanes)
    width = t.widths(words[0])[j]
    if first + blocks > width:
        return None
    kind = vector("i64", width)

    def halves(odd: int) -> str:
        """The words of each other block, where a pair of them fills 128 bits."""

        def make() -> str:
            one, other = (_pair(t, words[i : i + 2], row, j, width) for i in (0, 2))
            order = _order([k for i in range(odd, width, 2) for k in (i, width + i)])
            return t.out.put(f"shufflevector {kind} {one}, {kind} {other}, {order}")

        return t.once(("halves", odd, *words, row, j), make)

    even, odd = halves(0), halves(1)
    order = [
        k for i in range(first, first + blocks, 2) for k in (i, i + 1, width + i, width + i + 1)
    ]
    half = t.out.put(f"shufflevector {kind} {even}, {kind} {odd}, {_order(order)}")
    return t.out.put(f"bitcast {vector('i64', 2 * blocks)} {half} to {vector('i32', t.lanes)}")


def _pair(t: TileValues, words: Sequence[Node], row: int, piece: int, width: int) -> str:
    """Two words of each block beside one another: the lower halves of 64 bits each."""
    kind, halves = vector("i64", width), vector("i32", 2 * width)

    def make() -> str:
        a, b = (t.out.put(f"bitcast {kind} {t.beside(n, row, piece)} to {halves}") for n in words)
        order = _order([k for i in range(0, 2 * width, 2) for k in (i, 2 * width + i)])
        pair = t.out.put(f"shufflevector {halves} {a}, {halves} {b}, {order}")
        return t.out.put(f"bitcast {halves} {pair} to {kind}")

    return t.once(("pair", *words, row, piece), make)


def _order(places: Sequence[int]) -> str:
    return f"<{len(places)} x i32> <{', '.join(f'i32 {k}' for k in places)}>"
