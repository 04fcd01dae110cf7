"""Products by a matrix unit that works on vector registers: its operands are words, each some
neighbours along k."""

from __future__ import annotations

from hal.core.description import MatrixUnit
from hal.core.dtypes import DType
from hal.tile.kernel import Access, Load
from hal.tile.node import Node
from stack.compiler.text.llvm.addresses import address, constant_of, proven
from stack.compiler.text.llvm.loads import swapped
from stack.compiler.text.llvm.tiles import Tiles
from stack.compiler.text.llvm.types import register, vector


def step(t: Tiles, unit: MatrixUnit, n: Node, k: int, sums: list[list[str]]) -> None:
    """Add the products of elements k, k + 1, ... that the unit takes at once to the sums."""
    a, b, _ = n.srcs
    kind = vector(register(n.dtype), unit.n)
    left_kind, right_kind = (_operand(unit, d) for d in (unit.inputs, unit.right_inputs))
    word = f"i{unit.k * unit.inputs.bits}"
    words = vector(word, unit.n)
    right = [
        t.out.put(f"bitcast {words} {_columns(t, unit, b, k, j)} to {right_kind}")
        for j in range(n.shape[1] // unit.n)
    ]
    for r, line in enumerate(sums):
        many = t.splat(word, _row(t, unit, a, r, k), unit.n)
        left = t.out.put(f"bitcast {words} {many} to {left_kind}")
        for j, total in enumerate(line):
            operands = ((kind, total), (left_kind, left), (right_kind, right[j]))
            line[j] = t.out.call(unit.call, kind, *operands)


def _operand(unit: MatrixUnit, dtype: DType) -> str:
    return vector("bfloat" if dtype is DType.BF16 else register(dtype), unit.n * unit.k)


def _row(t: Tiles, unit: MatrixUnit, a: Node, row: int, k: int) -> str:
    """The word of a row's elements from k on."""
    word = f"i{unit.k * unit.inputs.bits}"
    load = _untouched(t, a)
    if load is not None and constant_of(load.source.strides[1]) == 1:
        return _read(t, load.source, a.shape, word, (row, k))
    return _joined(t, unit, a.dtype, 1, [t.element(a, row, k + i) for i in range(unit.k)])


def _columns(t: Tiles, unit: MatrixUnit, b: Node, k: int, piece: int) -> str:
    """The words of a register's columns from row k on."""
    kind = vector(f"i{unit.k * unit.right_inputs.bits}", unit.n)
    load = _untouched(t, b)
    if load is not None and [constant_of(s) for s in load.source.strides] == [1, unit.k]:
        return _read(t, load.source, b.shape, kind, (k, piece * unit.n))
    found = [t.piece(b, k + i, piece) for i in range(unit.k)]
    return _joined(t, unit, b.dtype, unit.n, found)


def _read(t: Tiles, source: Access, shape: tuple[int, ...], kind: str, at: tuple[int, int]) -> str:
    pointer = address(t, source, shape, *at)
    return t.out.put(f"load {kind}, ptr {pointer}, align {source.memory.dtype.nbytes}")


def _untouched(t: Tiles, n: Node) -> Load | None:
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


def _joined(t: Tiles, unit: MatrixUnit, dtype: DType, width: int, parts: list[str]) -> str:
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
