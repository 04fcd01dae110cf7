"""Products by a matrix unit that works on tile registers: sums stay in such registers over a loop,
and go to memory when something else needs them. Which register is which is the compiler's choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

from hal.core.description import MatrixUnit
from hal.core.dtypes import DType
from hal.tile.kernel import Access, Carried, Load
from hal.tile.node import Node
from stack.compiler.text.indices import constant_of
from stack.compiler.text.llvm import casts
from stack.compiler.text.llvm.addresses import address
from stack.compiler.text.llvm.tiles import TileValues, columns, rows
from stack.compiler.text.llvm.types import memory, vector
from stack.compiler.units import in_groups


def mark(t: TileValues, c: Carried) -> None:
    """Say that what a loop carries is in tile registers, if each step does nothing but add products
    to it that a unit of such registers computes."""
    unit = _unit(t, c.next)
    chain, n = [c.var, c.result], c.next
    while n.op == "dot" and _unit(t, n) == unit:
        chain.append(n)
        n = n.srcs[2]
    if n is c.var and unit is not None:
        t.env.tiled.update(dict.fromkeys(chain, unit))


def dot(t: TileValues, n: Node, unit: MatrixUnit, row: int, piece: int) -> str:
    """A piece of a product, whose sums are in tile registers before they are in memory."""
    t.env.tiled[n] = unit
    return read(t, n, row, piece)


def values(t: TileValues, n: Node) -> list[str]:
    """The operands of a node's tile registers, row by row, or of its pieces."""
    unit = t.env.tiled.get(n)
    if unit is None:
        return t.pieces(n)
    return [_sums(t, unit, n, i, j) for i, j in _places(unit, n)]


def types(t: TileValues, n: Node) -> list[str]:
    """The LLVM types of `values`."""
    unit = t.env.tiled.get(n)
    return t.piece_types(n) if unit is None else [unit.register] * len(_places(unit, n))


def define(t: TileValues, n: Node, found: Sequence[str]) -> None:
    """Say what `values` are."""
    unit = t.env.tiled.get(n)
    if unit is None:
        t.define_all(n, list(found))
        return
    for place, value in zip(_places(unit, n), found, strict=True):
        t.once(("tile", n, *place), partial(str, value))


def begun(t: TileValues, c: Carried) -> list[str]:
    """The values with which a loop begins what it carries."""
    unit = t.env.tiled.get(c.var)
    if unit is None:
        return t.pieces(c.init)
    return [_first(t, unit, c.init, i, j) for i, j in _places(unit, c.init)]


def read(t: TileValues, n: Node, row: int, piece: int) -> str:
    """A piece of what is in tile registers, by way of the stack."""
    width = t.widths(n)[piece]
    pointer = _stacked(t, n)
    far = row * columns(n.shape) + piece * t.lanes
    kind = memory(n.dtype)
    place = t.out.put(f"getelementptr {kind}, ptr {pointer}, i64 {far}")
    raw = t.out.put(f"load {vector(kind, width)}, ptr {place}, align {n.dtype.nbytes}")
    return casts.from_memory(t.out, raw, n.dtype, width)


def store(t: TileValues, target: Access, n: Node) -> bool:
    """Write what is in tile registers to a block whose rows are whole; False where it is not so."""
    unit, step = t.env.tiled.get(n), constant_of(target.strides[0]) if n.shape else None
    if unit is None or step is None or constant_of(target.strides[1]) != 1:
        return False
    if any(limit is not None for limit in target.limits):
        return False
    for i, j in _places(unit, n):
        pointer = address(t, target, n.shape, i * unit.m, j * unit.n)
        _put(t, unit, n.dtype, pointer, step, _sums(t, unit, n, i, j))
    return True


def _unit(t: TileValues, n: Node) -> MatrixUnit | None:
    unit = t.unit_of(n) if n.op == "dot" else None
    return unit if unit is not None and unit.register else None


def _places(unit: MatrixUnit, n: Node) -> list[tuple[int, int]]:
    """Where a node's tiles are, row by row."""
    return list(product(range(n.shape[0] // unit.m), range(n.shape[1] // unit.n)))


def _sums(t: TileValues, unit: MatrixUnit, n: Node, i: int, j: int) -> str:
    """A tile of sums: one that is defined, or a product added to one."""

    def make() -> str:
        if n.op != "dot" or n not in t.env.tiled:
            return _first(t, unit, n, i, j)
        a, b, acc = n.srcs
        groups = in_groups(b, unit.together)
        assert groups is not None
        wide = unit.n * unit.together
        left = _operand(t, unit, a, (i * unit.m, 0), (unit.m, unit.k))
        right = _operand(t, unit, groups, (0, j * wide), (unit.k // unit.together, wide))
        lines = unit.n * n.dtype.nbytes, unit.k * unit.inputs.nbytes
        sizes = (("i16", str(x)) for x in (unit.m, *lines))
        tiles = ((unit.register, x) for x in (_sums(t, unit, acc, i, j), left, right))
        return t.out.call(unit.call, unit.register, *sizes, *tiles)

    return t.once(("tile", n, i, j), make)


def _first(t: TileValues, unit: MatrixUnit, n: Node, i: int, j: int) -> str:
    """A tile of what is in vector registers or is a constant."""
    size = ("i16", str(unit.m)), ("i16", str(unit.n * n.dtype.nbytes))
    if constant_of(n) == 0:
        return t.out.call(unit.clear, unit.register, *size)
    pointer = _stacked(t, n)
    far = i * unit.m * columns(n.shape) + j * unit.n
    place = t.out.put(f"getelementptr {memory(n.dtype)}, ptr {pointer}, i64 {far}")
    step = "i64", str(columns(n.shape) * n.dtype.nbytes)
    return t.out.call(unit.load, unit.register, *size, ("ptr", place), step)


def _operand(
    t: TileValues, unit: MatrixUnit, n: Node, at: tuple[int, int], shape: tuple[int, int]
) -> str:
    """The register of an operand's elements from a place on."""

    def make() -> str:
        size = ("i16", str(shape[0])), ("i16", str(shape[1] * n.dtype.nbytes))
        load = t.env.loads.get(n)
        step = constant_of(load.source.strides[0]) if isinstance(load, Load) else None
        if step is None or not _in_place(t, n):
            step, pointer = columns(n.shape), _stacked(t, n)
            far = at[0] * step + at[1]
            place = t.out.put(f"getelementptr {memory(n.dtype)}, ptr {pointer}, i64 {far}")
        else:
            assert isinstance(load, Load)
            place = address(t, load.source, n.shape, *at)
        nbytes = "i64", str(step * n.dtype.nbytes)
        return t.out.call(unit.load, unit.register, *size, ("ptr", place), nbytes)

    return t.once(("operand", n, *at), make)


def _in_place(t: TileValues, n: Node) -> bool:
    """Whether a load has rows of neighbours, all of them inside, and has not happened yet."""
    load = t.env.loads.get(n)
    if not isinstance(load, Load) or n in t.env.aliases or t.has_piece(n, 0, 0):
        return False
    source = load.source
    return constant_of(source.strides[1]) == 1 and not any(x is not None for x in source.limits)


def _stacked(t: TileValues, n: Node) -> str:
    """The pointer to a node's elements, which are put on the stack, row after row."""

    def make() -> str:
        kind, wide = memory(n.dtype), columns(n.shape)
        base = t.out.alloca(kind, rows(n.shape) * wide, 64)
        unit = t.env.tiled.get(n)
        if unit is not None:
            for i, j in _places(unit, n):
                far = i * unit.m * wide + j * unit.n
                place = t.out.put(f"getelementptr {kind}, ptr {base}, i64 {far}")
                _put(t, unit, n.dtype, place, wide, _sums(t, unit, n, i, j))
            return base
        for row, piece in t.places(n):
            width = t.widths(n)[piece]
            raw = casts.to_memory(t.out, t.piece(n, row, piece), n.dtype, width)
            far = row * wide + piece * t.lanes
            place = t.out.put(f"getelementptr {kind}, ptr {base}, i64 {far}")
            align = n.dtype.nbytes
            t.out.do(f"store {vector(kind, width)} {raw}, ptr {place}, align {align}")
        return base

    return t.once(("stacked", n), make)


def _put(
    t: TileValues, unit: MatrixUnit, dtype: DType, pointer: str, step: int, value: str
) -> None:
    """Write a tile of sums."""
    size = ("i16", str(unit.m)), ("i16", str(unit.n * dtype.nbytes))
    far = "i64", str(step * dtype.nbytes)
    t.out.call(unit.store, "void", *size, ("ptr", pointer), far, (unit.register, value))
