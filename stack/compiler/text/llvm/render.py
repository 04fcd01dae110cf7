"""A tile kernel as the text of an LLVM module, program format llvm-ir/1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.values import LLVM_IR, KernelSource, ParamKind
from hal.tile.kernel import For, Gather, If, Kernel, Load, Statement, Store
from hal.tile.node import Node
from stack.compiler.text.llvm import (
    ahead,
    arith,
    casts,
    contraction,
    elementwise,
    functions,
    indexed,
    loads,
    shapes,
    tile_registers,
)
from stack.compiler.text.llvm.control import Body
from stack.compiler.text.llvm.neighbours import once_for_neighbours
from stack.compiler.text.llvm.statements import STREAMED_MEANS, Pending
from stack.compiler.text.llvm.tiles import Rule, TileValues
from stack.compiler.text.llvm.types import memory as memory_type
from stack.compiler.text.llvm.writer import LlvmWriter
from stack.compiler.text.primitive import computed_in
from stack.compiler.text.streamed import found, instances
from stack.compiler.units import unit_of_dot

CHAINS = 4
"""Pieces that are computed side by side. Two units that take four steps for an operation want
eight, but a polynomial has some in itself, and more values than registers go to memory. Measured on
Zen 3 with 1, 2, 3, 4 and 8: 4 made softmax and GELU a tenth faster than 2, though registers
spill."""


def render(kernel: Kernel, info: DeviceInfo) -> KernelSource:
    """The kernel as LLVM IR for cores whose SIMD registers have `info.limits.vector_nbytes` bytes.

    `info` must describe such a device (`vector_nbytes` a power of two, at least 16).
    """
    out = LlvmWriter()
    # The elements of a register, by the widest type that is loaded, stored or carried. Narrow
    # floats are computed in f32; 64-bit integers count only if there is nothing else: they are
    # mostly indices.
    widths = {n.dtype.computed_in.nbytes: n.dtype for n in _values(kernel.body) if n.shape}
    if len(widths) > 1 and 8 in widths and widths[8].is_int:
        del widths[8]
    lanes = info.limits.vector_nbytes // max(widths, default=4)
    kernel = once_for_neighbours(kernel)
    kernel = computed_in(kernel, lambda n: unit_of_dot(n, lanes, info) is not None)
    registers = info.limits.registers
    tiles = TileValues(
        *(out, lanes, registers, min(CHAINS, max(registers // 4, 1)), _PIECES, _ELEMENTS),
        lambda n: unit_of_dot(n, lanes, info),
        (info.scale, info.limits.vector_nbytes // DType.F32.nbytes),
        max(info.limits.masked_nbytes, 2),  # bytes are truncated from words: see `store_some`
    )
    for i, p in enumerate(kernel.params):
        slot = tiles.out.put(f"getelementptr i64, ptr %args, i64 {i}")
        if p.kind is ParamKind.BUFFER:
            tiles.env.pointers[p.name] = tiles.out.put(f"load ptr, ptr {slot}, align 8")
        else:
            raw = tiles.out.put(f"load {memory_type(p.dtype)}, ptr {slot}, align 8")
            tiles.env.scalars[p.name] = casts.from_memory(tiles.out, raw, p.dtype, 1)
    sizes = []
    for axis in range(3):
        slot = tiles.out.put(f"getelementptr i64, ptr %grid, i64 {axis}")
        sizes.append(tiles.out.put(f"load i64, ptr {slot}, align 8"))
    tiles.env.grid = tuple(sizes)
    _streamed(tiles, kernel)
    tiles.env.ahead, tiles.env.asked = ahead.found(kernel), ahead.unused(kernel)
    _instances(tiles, kernel)
    if tiles.env.streamed:
        # Such stores are not ordered as others are: whoever is told that this is over sees them.
        out.do("fence seq_cst")
    out.do("ret void")
    text = [
        f"define void @{kernel.name}(ptr noalias readonly %args, ptr noalias readonly %grid, "
        # Registers that are kept in memory lie in one line each: across two pages, where an odd
        # stack may put them, they take ten times as long.
        f"i64 %begin, i64 %end) nounwind alignstack({_stack_nbytes(info)}) {{",
        "entry:",
        f"{loads.SCRATCH_ZERO} = alloca i64, align 8",
        f"{loads.SCRATCH_WASTE} = alloca i64, align 8",
        *out.allocas,
        f"store i64 0, ptr {loads.SCRATCH_ZERO}, align 8",
        *out.lines,
        "}",
        *out.declarations(),
        *([STREAMED_MEANS] if tiles.env.streamed else ()),
        "",
    ]
    return KernelSource(LLVM_IR, "\n".join(text), kernel.name, kernel.params)


# how wide


def _values(statements: tuple[Statement, ...]) -> Iterator[Node]:
    for s in statements:
        if isinstance(s, Load | Gather):
            yield s.result
        elif isinstance(s, Store):
            yield s.value
        elif isinstance(s, For):
            yield from (c.var for c in s.carried)
            yield from _values(s.body)
        elif isinstance(s, If):
            yield from _values(s.then)
            yield from _values(s.orelse)


# the function around the body


def _streamed(t: TileValues, kernel: Kernel) -> None:
    """Whether this launch writes enough for stores past the caches, and over nothing that it reads:
    lines that are in the caches anyway are best written there."""
    read = [t.env.pointers[p.name] for p in kernel.params if p.reads and p.name in t.env.pointers]
    for s, nbytes in found(kernel, lambda dtype: t.lanes * dtype.nbytes).items():
        flag = t.out.put(f"icmp sge i64 {t.env.grid[0]}, {instances(nbytes)}")
        for pointer in read:
            apart = t.out.put(f"icmp ne ptr {pointer}, {t.env.pointers[s.target.memory.name]}")
            flag = t.out.put(f"and i1 {flag}, {apart}")
        t.env.streamed[s] = flag


def _instances(t: TileValues, kernel: Kernel) -> None:
    """The loop over instances; x, y, z count along like an odometer."""
    out = t.out
    gx, gy, _ = t.env.grid
    start, body, done = out.label("start"), out.label("instance"), out.label("done")
    out.branch(out.put("icmp slt i64 %begin, %end"), start, done)
    out.begin(start)
    rest = out.put(f"udiv i64 %begin, {gx}")
    x = out.put(f"urem i64 %begin, {gx}")
    y, z = out.put(f"urem i64 {rest}, {gy}"), out.put(f"udiv i64 {rest}, {gy}")
    out.jump(body)
    out.begin(body)
    names, places = [out.name() for _ in range(4)], [out.hole() for _ in range(4)]
    t.env.program = tuple(names[1:])
    with t.scope():
        Body(t, Pending(t), set()).block(kernel.body)
    following = [out.put(f"add nsw i64 {names[0]}, 1"), *_odometer(out, names[1:], gx, gy)]
    for place, name, first, nxt in zip(places, names, ("%begin", x, y, z), following, strict=True):
        out.fill(place, f"{name} = phi i64 [{first}, %{start}], [{nxt}, %{out.block}]")
    out.branch(out.put(f"icmp slt i64 {following[0]}, %end"), body, done)
    out.begin(done)


def _odometer(out: LlvmWriter, place: list[str], gx: str, gy: str) -> Iterator[str]:
    """The next x, y, z."""
    x, y, z = place
    x1 = out.put(f"add nsw i64 {x}, 1")
    wraps = out.put(f"icmp eq i64 {x1}, {gx}")
    yield out.put(f"select i1 {wraps}, i64 0, i64 {x1}")
    y1 = out.put(f"add nsw i64 {y}, {out.put(f'zext i1 {wraps} to i64')}")
    wraps = out.put(f"icmp eq i64 {y1}, {gy}")
    yield out.put(f"select i1 {wraps}, i64 0, i64 {y1}")
    yield out.put(f"add nsw i64 {z}, {out.put(f'zext i1 {wraps} to i64')}")


# leaves that the environment knows


def _index_of(t: TileValues, n: Node, names: tuple[str, ...]) -> str:
    return arith.convert(t.out, names[n["axis"]], DType.I64, n.dtype, 1)


def _variable(t: TileValues, n: Node, row: int, piece: int) -> str:
    if n in t.env.tiled:
        return tile_registers.read(t, n, row, piece)
    alias = t.env.aliases.get(n)
    if alias is not None:
        return t.piece(alias, row, piece)
    s = t.env.loads[n]
    if isinstance(s, Load):
        return loads.load_piece(t, s, row, piece)
    return indexed.gather_piece(t, s, row, piece)


def _variable_element(t: TileValues, n: Node, row: int, column: int) -> str:
    alias = t.env.aliases.get(n)
    if alias is not None:
        return t.element(alias, row, column)
    s = t.env.loads.get(n)
    if s is None:
        return t.extract(n, row, column)
    if isinstance(s, Load):
        return loads.load_element(t, s, row, column)
    return indexed.gather_element(t, s, row, column)


_PIECES: Mapping[str, Rule] = {
    **elementwise.PIECES,
    **functions.PIECES,
    **shapes.PIECES,
    **contraction.PIECES,
    "scalar": lambda t, n, row, piece: t.env.scalars[n["name"]],
    "program_id": lambda t, n, row, piece: _index_of(t, n, t.env.program),
    "num_programs": lambda t, n, row, piece: _index_of(t, n, t.env.grid),
    "var": _variable,
}

_ELEMENTS: Mapping[str, Rule] = {
    **elementwise.ELEMENTS,
    **shapes.ELEMENTS,
    **contraction.ELEMENTS,
    "var": _variable_element,
}


def _stack_nbytes(info: DeviceInfo) -> int:
    """Where a kernel's own memory begins: at a multiple of what a register has."""
    return 1 << (max(info.limits.vector_nbytes, 16) - 1).bit_length()
