"""Matrix multiplication as a template of tile IR for devices on which a group runs an instance.

An instance computes a block of C and goes along k in steps. Nothing is packed: how the operands of
a step get to the lanes, and which sums a lane keeps in registers, is up to the lowering.

    sums = zeros
    for k0 in steps of bk:
        sums += A[m0:, k0:] @ B[k0:, n0:]
    epilogue(sums)
"""

from __future__ import annotations

from collections.abc import Iterator

from hal.core.description import DeviceInfo, SpaceKind
from hal.core.values import Grid
from hal.tile.build import Builder, const, dot, index, mul, program_id
from hal.tile.node import Node
from stack.compiler.templates.blocking import MatmulShape, ceil_div
from stack.compiler.templates.edges import left_of
from stack.compiler.templates.product import Product, depth_of, divided, kept
from stack.compiler.templates.schedule import Block

LANE_SUMS = 64
"""Sums that a lane can keep in registers beside what it multiplies."""
LOAD_COST = 32
"""Multiply-adds in the time that one element takes to be loaded."""
DEPTH = 16
"""Steps of k at a time: enough to hide two barriers, few enough for scratch memory."""
PADDING = 4
"""Elements by which the lowering may lengthen rows in scratch memory."""


def choose_block(shape: MatmulShape, info: DeviceInfo) -> Block:
    """The block with the least estimated time whose sums fit into registers and whose operands fit
    into scratch memory; sizes are powers of two."""
    depth = min(DEPTH * shape.together, _power(max(1, shape.k)))
    smallest = Block(min(shape.m, 16), min(shape.n, 16), depth)
    fitting = list(fitting_blocks(shape, info, depth))
    return min(fitting or [smallest], key=lambda b: estimated_time(shape, info, b))


def fitting_blocks(shape: MatmulShape, info: DeviceInfo, depth: int) -> Iterator[Block]:
    """The blocks of one depth that fit into registers and scratch memory."""
    for m in _sizes(shape.m):
        for n in _sizes(shape.n):
            block = Block(m, n, depth)
            if m * n <= LANE_SUMS * info.limits.lanes and _fits(shape, info, block):
                yield block


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _sizes(extent: int) -> Iterator[int]:
    most = min(_power(extent), 128)
    size = min(16, most)
    while size <= most:
        yield size
        size *= 2


def _fits(shape: MatmulShape, info: DeviceInfo, b: Block) -> bool:
    """Whether scratch memory holds the operands of a step, and afterwards the sums, which go
    through it if they are stored by columns."""
    space = info.space(SpaceKind.SCRATCHPAD)
    operands = (b.rows + b.columns + 2 * PADDING) * b.depth * shape.accumulate.nbytes
    if shape.together > 1:  # for a matrix unit, with the summed axis inside
        operands = (b.rows + b.columns) * (b.depth + 2 * PADDING) * shape.packed.nbytes
    most = max(operands, b.rows * b.columns * shape.accumulate.nbytes)
    return most <= (space.nbytes if space else 0)


def estimated_time(shape: MatmulShape, info: DeviceInfo, b: Block) -> tuple[float, int]:
    """The time of the whole grid when instances take turns on the device's units; of equals the
    smallest block."""
    one = b.rows * b.columns + LOAD_COST * (b.rows + b.columns)
    programs = ceil_div(shape.m, b.rows) * ceil_div(shape.n, b.columns) * shape.batch
    waves = ceil_div(programs, max(1, info.limits.instances))
    return one * waves, b.rows * b.columns


def group_matmul(b: Builder, p: Product, info: DeviceInfo, block: Block | None = None) -> Grid:
    """As `stack.compiler.templates.matmul.matmul`; the epilogue is called once, for the whole
    block."""
    shape = p.shape
    if 0 in (shape.batch, shape.m, shape.n):
        return (0, 1, 1)
    t = block or choose_block(shape.hinted(), info)
    down, across = ceil_div(shape.m, t.rows), ceil_div(shape.n, t.columns)
    rest, i = divided(program_id(0), down)
    batch, j = divided(rest, across)
    m0, n0 = mul(i, t.rows), mul(j, t.columns)
    rows, columns = left_of(shape.m, m0, t.rows), left_of(shape.n, n0, t.columns)

    def step(k0: Node, sums: Node) -> tuple[Node]:
        depth = left_of(shape.k, k0, t.depth)
        left = p.load_a(b, batch, m0, k0, (t.rows, t.depth), (rows, depth))
        right = p.load_b(b, batch, k0, n0, (t.depth, t.columns), (depth, columns))
        return (dot(kept(left, shape.packed), kept(right, shape.packed), sums),)

    zeros = const(0, shape.accumulate, (t.rows, t.columns))
    (sums,) = b.loop(index(0), depth_of(p, batch), t.depth, step, (zeros,))
    p.epilogue(b, sums, batch, m0, n0, (rows, columns))
    return down * across * shape.batch, 1, 1
