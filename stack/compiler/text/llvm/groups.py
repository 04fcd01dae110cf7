"""Operands in groups of neighbours along k, as a matrix unit reads them: each group is a word."""

from __future__ import annotations

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack.compiler.text.llvm.tiles import TileValues
from stack.compiler.text.llvm.turned import shuffle, square, straight, turned
from stack.compiler.text.llvm.types import register, vector
from stack.compiler.units import grouped

WORD = "i32"


def piece(t: TileValues, n: Node, row: int, number: int) -> str | None:
    """A piece of an operand in groups, moved by words; None where it is anything else."""
    found = grouped(n)
    if found is None or found[0].dtype.bits * found[1] != 32:
        return None
    x, together = straight(t, found[0]), found[1]
    below = turned(t, x)
    if below is None:
        made = _of_rows(t, n, x, together, row, number)
    else:
        made = _of_columns(t, n, below, together, row, number)
    return t.piece(n, row, number) if made else None


def _of_rows(t: TileValues, n: Node, x: Node, together: int, row: int, number: int) -> bool:
    """Define the pieces of a row whose words have an element of each of some rows."""
    j = number // together
    width, bits = t.widths(x)[j], x.dtype.bits
    if width == 1:
        return False
    words, total = vector(WORD, width), ""
    for i in range(together):
        part = _bits(t, x.dtype, t.beside(x, row * together + i, j), width)
        part = t.out.put(f"zext {vector(f'i{bits}', width)} {part} to {words}")
        if i:
            part = t.out.put(f"shl {words} {part}, splat ({WORD} {i * bits})")
        total = t.out.put(f"or {words} {total}, {part}") if total else part
    kind = vector(f"i{bits}", width * together)
    value = t.out.put(f"bitcast {words} {total} to {kind}")
    for k in range(j * together, min((j + 1) * together, len(t.widths(n)))):
        first, own = (k - j * together) * t.lanes, t.widths(n)[k]
        part = value
        if own < width * together:
            part = shuffle(t, kind, value, "poison", range(first, first + own))
        t.define(n, row, k, _of_bits(t, x.dtype, part, own))
    return True


def _of_columns(t: TileValues, n: Node, x: Node, together: int, row: int, number: int) -> bool:
    """Define the pieces of some rows whose words lie one after the other along rows of x."""
    side = t.lanes // together
    block = row // side
    width, bits = t.widths(x)[block], x.dtype.bits
    own = t.widths(n)[number]
    if side < 2 or width % together or own % together or width == together or own == together:
        return False
    given, wanted = width // together, own // together
    kind, words = vector(f"i{bits}", width), vector(WORD, given)
    source = []
    for i in range(side):
        if i >= wanted:
            source.append("poison")
            continue
        part = _bits(t, x.dtype, t.beside(x, number * side + i, block), width)
        part = t.out.put(f"bitcast {kind} {part} to {words}")
        if given < side:
            part = shuffle(t, words, part, "poison", [min(k, given - 1) for k in range(side)])
        source.append(part)
    for i, value in enumerate(square(t, WORD, source)[:given]):
        part = value
        if wanted < side:
            part = shuffle(t, vector(WORD, side), value, "poison", range(wanted))
        bitwise = vector(f"i{bits}", own)
        part = t.out.put(f"bitcast {vector(WORD, wanted)} {part} to {bitwise}")
        t.define(n, block * side + i, number, _of_bits(t, x.dtype, part, own))
    return True


def _bits(t: TileValues, dtype: DType, value: str, width: int) -> str:
    bits, kind = f"i{dtype.bits}", register(dtype)
    if kind == bits:
        return value
    return t.out.put(f"bitcast {vector(kind, width)} {value} to {vector(bits, width)}")


def _of_bits(t: TileValues, dtype: DType, value: str, width: int) -> str:
    bits, kind = f"i{dtype.bits}", register(dtype)
    if kind == bits:
        return value
    return t.out.put(f"bitcast {vector(bits, width)} {value} to {vector(kind, width)}")
