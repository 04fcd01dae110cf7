"""Products by a matrix unit that works on vector registers: its operands are words, each some
neighbours along k."""

from __future__ import annotations

from hal.core.description import MatrixUnit
from hal.core.dtypes import DType
from hal.tile.kernel import Access, Load
from hal.tile.node import Node
from stack.compiler.text.indices import constant_of
from stack.compiler.text.llvm.addresses import address, proven
from stack.compiler.text.llvm.loads import swapped
from stack.compiler.text.llvm.tiles import TileValues
from stack.compiler.text.llvm.turned import shuffle
from stack.compiler.text.llvm.types import register, vector


def step(t: TileValues, unit: MatrixUnit, n: Node, k: int, sums: list[list[str]]) -> None:
    """Add the products of elements k, k + 1, ... that the unit takes at once to the sums."""
    a, b, _ = n.srcs
    right = [columns_of(t, unit, b, k, j) for j in range(n.shape[1] // unit.n)]
    for r, line in enumerate(sums):
        left = t.splat(word_of(unit), _row(t, unit, a, r, k), unit.n)
        for j, total in enumerate(line):
            line[j] = call(t, unit, n.dtype, left, right[j], total)


def word_of(unit: MatrixUnit) -> str:
    """The type of the elements that lie together."""
    return f"i{unit.k * unit.inputs.bits}"


def call(t: TileValues, unit: MatrixUnit, sums: DType, left: str, right: str, total: str) -> str:
    """The sums of the unit for vectors of words."""
    words, kind = vector(word_of(unit), unit.n), vector(register(sums), unit.n)
    operands = [(kind, total)]
    for value, dtype in ((left, unit.inputs), (right, unit.right_inputs)):
        wanted = vector("bfloat" if dtype is DType.BF16 else register(dtype), unit.n * unit.k)
        operands.append((wanted, t.out.put(f"bitcast {words} {value} to {wanted}")))
    if unit.call:
        return t.out.call(unit.call, kind, *operands)
    return _neighbours(t, unit, sums, operands)


def _neighbours(
    t: TileValues, unit: MatrixUnit, sums: DType, operands: list[tuple[str, str]]
) -> str:
    """The sums with the products of neighbours, as instruction selection knows them."""
    (_, total), *pair = operands
    wide, kind = vector(register(sums), unit.n * unit.k), vector(register(sums), unit.n)
    a, b = (t.out.put(f"sext {narrow} {value} to {wide}") for narrow, value in pair)
    products = t.out.put(f"mul nsw {wide} {a}, {b}")
    each = [
        shuffle(t, wide, products, "poison", range(i, unit.n * unit.k, unit.k))
        for i in range(unit.k)
    ]
    for one in each[1:]:
        each[0] = t.out.put(f"add {kind} {each[0]}, {one}")
    return t.out.put(f"add {kind} {each[0]}, {total}")


def _row(t: TileValues, unit: MatrixUnit, a: Node, row: int, k: int) -> str:
    """The word of a row's elements from k on."""
    word = word_of(unit)
    load = _untouched(t, a)
    if load is not None and constant_of(load.source.strides[1]) == 1:
        return _read(t, load.source, a.shape, word, (row, k))
    return _joined(t, unit, a.dtype, 1, [t.element(a, row, k + i) for i in range(unit.k)])


def columns_of(t: TileValues, unit: MatrixUnit, b: Node, k: int, piece: int) -> str:
    """The words of a register's columns from row k on."""
    kind = vector(word_of(unit), unit.n)
    load = _untouched(t, b)
    if load is not None and [constant_of(s) for s in load.source.strides] == [1, unit.k]:
        return _read(t, load.source, b.shape, kind, (k, piece * unit.n))
    found = [t.piece(b, k + i, piece) for i in range(unit.k)]
    return _joined(t, unit, b.dtype, unit.n, found)


def _read(
    t: TileValues, source: Access, shape: tuple[int, ...], kind: str, at: tuple[int, int]
) -> str:
    pointer = address(t, source, shape, *at)
    return t.out.put(f"load {kind}, ptr {pointer}, align {source.memory.dtype.nbytes}")


def _untouched(t: TileValues, n: Node) -> Load | None:
    """The load behind a variable, if all of it is inside and none of it has happened yet: it may be
    read in any form now."""
    if n.op != "var":
        return None
    alias = t.env.aliases.get(n)
    read = n if alias is None else alias.srcs[0]
    found = t.env.loads.get(read)
    if not isinstance(found, Load) or t.has_piece(read, 0, 0):
        return None
    source = found.source
    limits = zip(source.limits, found.result.shape, strict=True)
    if not all(limit is None or proven(t, limit, size) for limit, size in limits):
        return None
    return found if alias is None else Load(n, swapped(source))


def _joined(t: TileValues, unit: MatrixUnit, dtype: DType, width: int, parts: list[str]) -> str:
    """Words of elements that are apart, the first one lowest."""
    bits = dtype.bits
    small, word = vector(f"i{bits}", width), vector(f"i{bits * unit.k}", width)
    total = ""
    for i, part in enumerate(parts):
        if register(dtype) != f"i{bits}":
            part = t.out.put(f"bitcast {vector(register(dtype), width)} {part} to {small}")
        part = t.out.put(f"zext {small} {part} to {word}")
        if i:
            shift = str(i * bits) if width == 1 else f"splat (i{bits * unit.k} {i * bits})"
            part = t.out.put(f"shl {word} {part}, {shift}")
        total = t.out.put(f"or {word} {total}, {part}") if total else part
    return total
