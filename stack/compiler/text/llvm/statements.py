"""Statements that touch memory, and when pending loads must happen.

A load is written where its pieces are first used. What may change the memory in between forces it
to happen before. A store forces all pending loads but those that it reads element by element in
place: contract and producers allow a read parameter to be the memory of a written one only for
accesses at identical indices.
"""

from __future__ import annotations

from collections.abc import Iterator

from hal.core.dtypes import DType
from hal.tile.build import transpose
from hal.tile.kernel import GLOBAL, Access, Gather, Load, Store
from hal.tile.node import Node, toposort
from hal.tile.ops import ELEMENTWISE
from stack.compiler.text.indices import constant_of
from stack.compiler.text.llvm import casts, tile_registers
from stack.compiler.text.llvm.addresses import address, piece_mask, valid
from stack.compiler.text.llvm.guards import either, guarded
from stack.compiler.text.llvm.loads import (
    SCRATCH_WASTE,
    copy_elements,
    is_interleaved,
    is_transposed,
    run_mask,
    store_some,
    swapped,
    transposed_load,
)
from stack.compiler.text.llvm.tiles import TileValues, columns, rows
from stack.compiler.text.llvm.turned import interleaved, resized
from stack.compiler.text.llvm.types import memory, vector

STREAMED, STREAMED_MEANS = ", !nontemporal !0", "!0 = !{i32 1}"
"""Behind a store: it goes past the caches; at the end of a module that has such stores."""


class Pending:
    """Loads that are declared and have perhaps not happened."""

    def __init__(self, tiles: TileValues) -> None:
        self.tiles = tiles
        self.variables: list[Node] = []

    def force(self, keep: frozenset[Node] = frozenset()) -> None:
        """Make all pending loads happen but those to keep."""
        kept = []
        # A gather whose places are words from memory reads these one by one, unless they are there.
        for v in sorted(self.variables, key=self._is_loaded):
            if v in keep:
                kept.append(v)
            else:
                alias = self.tiles.env.aliases.get(v)
                self.tiles.pieces(v if alias is None else alias.srcs[0])
        self.variables = kept

    def _is_loaded(self, v: Node) -> bool:
        return not isinstance(self.tiles.env.loads.get(v), Gather)

    def force_used(self, used: frozenset[Node]) -> None:
        """Make these loads happen."""
        self.force(frozenset(v for v in self.variables if v not in used))

    def add(self, s: Load | Gather) -> None:
        """Declare a load."""
        self.variables.append(s.result)
        env = self.tiles.env
        apart = isinstance(s, Load) and not is_interleaved(self.tiles, s.source, s.result.shape)
        if isinstance(s, Load) and apart and is_transposed(s.source, s.result.shape):
            by_columns, alias = transposed_load(s)
            env.loads[by_columns.result] = by_columns
            env.aliases[s.result] = alias
        else:
            env.loads[s.result] = s


def in_place(t: TileValues, value: Node, target: Access) -> frozenset[Node]:
    """The loaded variables that a store of `value` reads only at the position that it writes."""
    inside = set(_walk(value))
    outside: set[Node] = set()
    for n in inside:
        if n.op not in ELEMENTWISE:
            for s in n.srcs:
                outside.update(toposort([s]))
    found = (n for n in inside if n.op == "var" and n not in outside)
    return frozenset(n for n in found if _same_place(t, n, value, target))


def _same_place(t: TileValues, variable: Node, value: Node, target: Access) -> bool:
    load = t.env.loads.get(variable)
    if not isinstance(load, Load) or variable.shape != value.shape:
        return False
    return load.source.memory.name != target.memory.name or (
        load.source.offset is target.offset and load.source.strides == target.strides
    )


def _walk(root: Node) -> Iterator[Node]:
    """The nodes that are reached through elementwise operations alone."""
    seen, stack = {root}, [root]
    while stack:
        n = stack.pop()
        yield n
        if n.op in ELEMENTWISE:
            fresh = [s for s in n.srcs if s not in seen]
            seen.update(fresh)
            stack.extend(fresh)


def store(t: TileValues, pending: Pending, s: Store) -> None:
    """Write a tile, piece by piece as its values are computed."""
    target, value = s.target, s.value
    one_run = is_interleaved(t, target, value.shape)
    if not one_run and is_transposed(target, value.shape):
        target = swapped(target)
        value = value.srcs[0] if value.op == "transpose" else transpose(value, (1, 0))
    pending.force(in_place(t, value, target))
    pending.variables.clear()
    if tile_registers.store(t, target, value):
        return
    if one_run:
        for j in range(len(t.widths(value))):
            _store_run(t, target, value, j)
        return
    places, per_row = t.places(value), len(t.widths(value))
    if s in t.env.streamed:
        t.together(value, places)
        # Write whole rows past the caches where the launch writes enough and the first of them is
        # aligned, and so are the others
        first = t.out.put(f"ptrtoint ptr {address(t, target, value.shape, 0, 0)} to i64")
        apart = t.out.put(f"and i64 {first}, {t.lanes * value.dtype.nbytes - 1}")
        aligned = t.out.put(f"icmp eq i64 {apart}, 0")

        def write(past: bool) -> None:
            for row, j in t.places(value):
                pointer = address(t, target, value.shape, row, j * t.lanes)
                _write(t, value, t.piece(value, row, j), pointer, t.lanes, past)

        both = t.out.put(f"and i1 {t.env.streamed[s]}, {aligned}")
        either(t, both, lambda: write(True), lambda: write(False))
        return
    group, last = max(t.interleave // per_row, 1), rows(value.shape) - 1
    over = _is_over_next(t, target, value)
    for row in range(last + 1):
        if group > 1 and row % group == 0:
            t.together(value, places[row * per_row : (row + group) * per_row])
        if over and row < last:
            _store_over_next(t, target, value, row)
        else:
            _store_row(t, target, value, row)


def _is_over_next(t: TileValues, target: Access, value: Node) -> bool:
    """Whether each row is a piece whose width is no power of two, behind which the next one lies,
    in memory of the instance alone: so written are packed panels of thirteen or six rows. Nothing
    may read there what is not written yet."""
    if len(value.shape) != 2 or target.limits != (None, None) or target.memory.space == GLOBAL:
        return False
    width, (far, near) = value.shape[1], target.strides
    if width >= t.lanes or not width & (width - 1):
        return False
    if (constant_of(far), constant_of(near)) != (width, 1):
        return False
    given = [t.env.aliases.get(n, n) for n in toposort([value]) if n.op == "var"]
    loads = [t.env.loads.get(n.srcs[0] if n.op == "transpose" else n) for n in given]
    read = [s.source.memory if isinstance(s, Load) else s.memory for s in loads if s is not None]
    return target.memory not in read


def _store_over_next(t: TileValues, target: Access, value: Node, row: int) -> None:
    """Write a row with one store, where its own width takes two or three: what it writes of the
    next row is written again with that."""
    width = value.shape[1]
    wide = 1 << width.bit_length()
    kind, raw = memory(value.dtype), t.piece(value, row, 0)
    raw = casts.to_memory(t.out, raw, value.dtype, width)
    raw = resized(t, kind, raw, width, wide)
    pointer = address(t, target, value.shape, row, 0)
    t.out.do(f"store {vector(kind, wide)} {raw}, ptr {pointer}, align {value.dtype.nbytes}")


def _store_run(t: TileValues, target: Access, value: Node, piece: int) -> None:
    """The same piece of all rows, whose elements lie between each other's."""
    dtype, width, first = value.dtype, t.widths(value)[piece], piece * t.lanes
    count, places = rows(value.shape), [(r, piece) for r in range(rows(value.shape))]
    valid_count = valid(t, target, value.shape, 0).count
    t.together(value, places)
    if width == 1:
        for row in range(count):
            _store_element(t, target, value, row, first, valid_count)
        return
    scalar, wide = memory(dtype), width * count
    kind = vector(scalar, wide)
    raw = [casts.to_memory(t.out, t.piece(value, r, j), dtype, width) for r, j in places]
    run = interleaved(t, scalar, raw, width)
    pointer = address(t, target, value.shape, 0, first)
    if valid_count is None:
        t.out.do(f"store {kind} {run}, ptr {pointer}, align {dtype.nbytes}")
        return
    store_some(t, dtype, pointer, run_mask(t, valid_count, first, width, count), wide, run)


def _store_row(t: TileValues, target: Access, value: Node, row: int) -> None:
    v = valid(t, target, value.shape, row)
    places = [(row, j) for j in range(len(t.widths(value)))]
    contiguous = not value.shape or constant_of(target.strides[-1]) == 1
    staged = v.count is not None and contiguous and value.dtype.nbytes < t.masked
    if v.row is not None or staged:
        t.together(value, places)

    def write() -> None:
        if staged and v.count is not None and columns(value.shape) > 1:
            _store_staged(t, target, value, row, v.count)
            return
        for i in range(0, len(places), t.interleave):
            group = places[i : i + t.interleave]
            t.together(value, group)
            for _, j in group:
                _store_piece(t, target, value, row, j, v.count)

    guarded(t, v.row, write)


def _store_staged(t: TileValues, target: Access, value: Node, row: int, count: str) -> None:
    """Bytes go through the stack, and halves where hardware has no masked access for them."""
    kind = memory(value.dtype)
    buffer = t.out.alloca(kind, columns(value.shape), 64)
    for j, width in enumerate(t.widths(value)):
        place = t.out.put(f"getelementptr {kind}, ptr {buffer}, i64 {j * t.lanes}")
        _write(t, value, t.piece(value, row, j), place, width)
    copy_elements(t, address(t, target, value.shape, row, 0), buffer, count, value.dtype)


def _store_piece(
    t: TileValues, target: Access, value: Node, row: int, piece: int, count: str | None
) -> None:
    dtype, width = value.dtype, t.widths(value)[piece]
    first = piece * t.lanes
    stride = constant_of(target.strides[-1]) if value.shape else 1
    operand = t.piece(value, row, piece)
    if width > 1 and stride != 1:
        for i in range(width):
            _store_element(t, target, value, row, first + i, count)
    elif count is None:
        pointer = address(t, target, value.shape, row, first)
        _write(t, value, operand, pointer, width)
    elif width == 1:
        _store_element(t, target, value, row, first, count)
    else:
        raw = casts.to_memory(t.out, operand, dtype, width)
        pointer = address(t, target, value.shape, row, first)
        store_some(t, dtype, pointer, piece_mask(t, count, first, width), width, raw)


def _write(
    t: TileValues, value: Node, operand: str, pointer: str, width: int, past: bool = False
) -> None:
    raw = casts.to_memory(t.out, operand, value.dtype, width)
    kind = vector(memory(value.dtype), width)
    if past and value.dtype is DType.F16:
        # LLVM 22 writes vectors of halves into the caches; still so what it has just rounded to it.
        raw, kind = t.out.put(f"bitcast {kind} {raw} to <{width} x i16>"), f"<{width} x i16>"
    align = value.dtype.nbytes * (width if past else 1)
    t.out.do(f"store {kind} {raw}, ptr {pointer}, align {align}{STREAMED if past else ''}")


def _store_element(
    t: TileValues, target: Access, value: Node, row: int, column: int, count: str | None
) -> None:
    operand = t.element(value, row, column)
    pointer = address(t, target, value.shape, row, column)
    if count is not None:
        guard = t.out.put(f"icmp sgt i32 {count}, {column}")
        pointer = t.out.put(f"select i1 {guard}, ptr {pointer}, ptr {SCRATCH_WASTE}")
    _write(t, value, operand, pointer, 1)
