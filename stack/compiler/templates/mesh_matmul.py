"""Matrix multiplication as a template of tile IR for cores with scratchpads.

An instance computes a block of C, adding in its scratchpad, and then the epilogue for some rows at
a time:

    sums = zeros
    for k0 in steps of depth:
        sums += A[m0:, k0:] @ B[k0:, n0:]
    for rows of sums:
        epilogue(rows)

Where the instances of a mesh work together, their numbers say where they are: instance number
(block * rows + row) * columns + column. A row of the mesh has the same rows of A, a column the same
columns of B. That is all: what follows from it is up to the lowering
(`stack.compiler.lower.mesh.loop`), and each instance can be run alone.
"""

from __future__ import annotations

from hal.core.description import DeviceInfo
from hal.core.values import Grid
from hal.tile.build import Builder, add, cast, const, dot, index, mul, program_id, sub
from hal.tile.kernel import Memory
from hal.tile.node import Node
from stack.compiler.templates.blocking import ceil_div
from stack.compiler.templates.edges import Limits, left_of
from stack.compiler.templates.mesh_block import MeshBlock, choose_block
from stack.compiler.templates.product import ByPieces, LoadTile, Product, depth_of, divided


def mesh_matmul(b: Builder, p: Product, info: DeviceInfo, block: MeshBlock | None = None) -> Grid:
    """As `stack.compiler.templates.matmul.matmul`."""
    shape = p.shape
    if 0 in (shape.batch, shape.m, shape.n):
        return (0, 1, 1)
    t = block or choose_block(shape, p.elements, info)
    mesh = info.limits.mesh if t.together else (1, 1)
    # The number of an instance's block, and its row and column in the mesh
    rest, column = divided(program_id(0), mesh[1])
    number, row = divided(rest, mesh[0])
    down = ceil_div(shape.m, t.rows * mesh[0])
    across = ceil_div(shape.n, t.columns * mesh[1])
    rest, i = divided(number, down)
    batch, j = divided(rest, across)
    m0 = mul(add(mul(i, mesh[0]), row), t.rows)
    n0 = mul(add(mul(j, mesh[1]), column), t.columns)
    sums = _sum(b, p, t, mesh, (batch, m0, n0))

    def lines(r: Node) -> None:
        some = b.load(sums, mul(r, t.columns), (t.lines, t.columns), (t.columns, 1))
        m = add(m0, r)
        limits = _left(shape.m, m0, t.rows, mesh[0]), _left(shape.n, n0, t.columns, mesh[1])
        rows = None if limits[0] is None else sub(limits[0], r)
        p.epilogue(b, some, batch, m, n0, (rows, limits[1]))

    b.loop(0, t.rows, t.lines, lines)
    return down * across * shape.batch * mesh[0] * mesh[1], 1, 1


def _left(size: int, start: Node, step: int, cores: int) -> Node | None:
    """What is left of an axis from an instance's start on: a core may be beyond its end."""
    return None if size % (step * cores) == 0 else sub(size, start)


def _sum(
    b: Builder, p: Product, t: MeshBlock, mesh: tuple[int, int], at: tuple[Node, Node, Node]
) -> Memory:
    """The block's sums, in scratch memory."""
    shape, (batch, m0, n0) = p.shape, at
    tile = (t.rows, t.columns)
    sums = b.alloc("sums", shape.accumulate, t.rows * t.columns)
    b.store(sums, 0, const(0, shape.accumulate, tile), (t.columns, 1))
    rows = _left(shape.m, m0, t.rows, mesh[0])
    columns = _left(shape.n, n0, t.columns, mesh[1])

    def panel(name: str, pieces: ByPieces | None, size: int) -> Memory | None:
        return None if pieces is None else b.alloc(name, pieces.dtype, size)

    def operand(
        load: LoadTile,
        pieces: ByPieces | None,
        panel: Memory | None,
        starts: tuple[Node, Node],
        shape: tuple[int, int],
        limits: Limits,
    ) -> Node:
        if pieces is None or panel is None:
            return load(b, batch, *starts, shape, limits)
        return pieces.tile(panel, batch, starts, shape, limits)

    panels = (
        panel("panel_a", p.pieces_a, t.rows * t.depth),
        panel("panel_b", p.pieces_b, t.depth * t.columns),
    )

    def step(k0: Node) -> None:
        depth = left_of(shape.k, k0, t.depth)
        left = operand(p.load_a, p.pieces_a, panels[0], (m0, k0), (t.rows, t.depth), (rows, depth))
        right = operand(
            p.load_b, p.pieces_b, panels[1], (k0, n0), (t.depth, t.columns), (depth, columns)
        )
        a, c = (cast(x, shape.accumulate) for x in (left, right))
        before = b.load(sums, 0, tile, (t.columns, 1))
        b.store(sums, 0, dot(a, c, before), (t.columns, 1))

    b.loop(index(0), depth_of(p, batch), t.depth, step)
    return sums
