"""How a product is cut for cores with scratchpads, which may pass tiles along a mesh: a pure
function of its shape and of the device's facts.

The cut is the one with the least estimated time among those that fit. Either a program instance
works alone, or the instances of a mesh share what they read: then each reads a part of a row's
operand and of a column's, and hands it on.
"""

from __future__ import annotations

from collections.abc import Iterator

from hal.core.description import DeviceInfo, SpaceKind
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from stack.compiler.templates.blocking import MatmulShape, ceil_div, round_up
from stack.compiler.templates.product import Elements

ROWS = 8
"""Rows of sums in registers."""
VECTORS = 2
"""Vectors in a row of sums: with ROWS it takes ten accesses to a scratchpad for sixteen
multiply-adds, so that computing takes longer."""
RESERVE_NBYTES = 32 << 10
"""What is left in a scratchpad for the tiles of an epilogue, and for the stack."""
TILES = 6
"""Tiles that an epilogue of few operations has in the scratchpad at once."""
SMALL = 8
"""Rows, columns and steps that are enough to work on at once."""
CORE_RATE = 1e9
"""Operations/s of a core, and bytes/s of a memory, whose device tells none."""
COPIED = 0.94
"""What copies of all cores get of a memory's bandwidth."""
PART = 0.1
"""What memory takes to change a line in part, one after the other, of its latency."""
STEP, PASS = 0.53, 1.6
"""For how much of memory's latency a step waits: of a core alone, and of cores that wait for each
other to pass pieces on."""
SHORT = 2
"""In how many steps a last one is made that is shorter than the others."""
FIRST = 10.6
"""In how many latencies the first pieces come to all cores, and nothing is computed."""

_ROWS = (*range(1, 8), 8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)
_COLUMNS = (4, 8, 16, 32, 48, 64, 80, 96, 128, 160, 192, 256)
_DEPTHS = (4, 8, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class MeshBlock:
    """What an instance computes, rows by columns, in steps of `depth` along k, and whether the
    instances of a mesh work `together`. What follows the product is computed for `lines` rows at a
    time; they divide `rows`."""

    rows: int
    columns: int
    depth: int
    together: bool
    lines: int


@dataclass(frozen=True, slots=True)
class Cores:
    """The facts of a device that a cut depends on, for operands of some elements: the mesh, the
    operations/s of a core; of main memory the bytes/s, the latency in s and the bytes of a line,
    of which a shorter piece costs as much; the elements of a vector, the bytes of an element in
    memory, whether it is converted before it is multiplied, the bytes for pieces and sums, and the
    tiles of an epilogue."""

    mesh: tuple[int, int]
    rate: float
    bandwidth: float
    latency: float
    line_nbytes: int
    lanes: int
    nbytes: int
    converted: bool
    room: int
    tiles: int = TILES

    @property
    def count(self) -> int:
        return self.mesh[0] * self.mesh[1]


def cores_of(info: DeviceInfo, elements: Elements, accumulate: DType) -> Cores:
    """The cores of a device with a mesh, for operands of such elements and sums of a type."""
    space, memory = info.space(SpaceKind.SCRATCHPAD), info.space(SpaceKind.GLOBAL)
    rows, columns = info.limits.mesh
    each = info.dtypes.get(elements.multiplied, 0.0) / (rows * columns) or CORE_RATE
    lanes = max(1, info.limits.vector_nbytes // elements.multiplied.nbytes)
    converted = (elements.stored, elements.multiplied) != (accumulate, accumulate)
    room = max(0, (space.nbytes if space else 0) - RESERVE_NBYTES)
    return Cores(
        info.limits.mesh,
        each,
        COPIED * ((memory.bandwidth if memory else 0.0) or CORE_RATE),
        memory.latency if memory else 0.0,
        memory.granularity if memory else 1,  # allocations begin at lines
        lanes,
        elements.stored.nbytes,
        converted,
        room,
        TILES + elements.values,
    )


def choose_block(shape: MatmulShape, elements: Elements, info: DeviceInfo) -> MeshBlock:
    """The cut with the least estimated time."""
    cores = cores_of(info, elements, shape.accumulate)
    fitting = list(fitting_blocks(shape, cores))
    return min(
        fitting or [MeshBlock(1, _COLUMNS[0], _DEPTHS[0], together=False, lines=1)],
        key=lambda b: (estimated_s(shape, cores, b), b.depth),
    )


def fitting_blocks(shape: MatmulShape, cores: Cores) -> Iterator[MeshBlock]:
    """The cuts whose sums and pieces fit into a scratchpad."""
    for together in (True, False):
        down, across = cores.mesh if together else (1, 1)
        for rows in _up_to(_ROWS, ceil_div(shape.m, down)):
            for columns in _up_to(_COLUMNS, ceil_div(shape.n, across)):
                for depth in _up_to(_DEPTHS, shape.k):
                    block = MeshBlock(
                        rows, columns, depth, together, _lines(shape, cores, rows, columns)
                    )
                    if scratch_nbytes(shape, cores, block) <= cores.room:
                        yield block


def _up_to(sizes: tuple[int, ...], extent: int) -> Iterator[int]:
    """The sizes that are less than an extent, and the first that is not; small ones only where the
    extent is small."""
    for size in sizes:
        if size >= min(extent, SMALL):
            yield size
        if size >= extent:
            return


def _lines(shape: MatmulShape, cores: Cores, rows: int, columns: int) -> int:
    """The most rows whose tiles fit into what the product leaves."""
    most = max(1, RESERVE_NBYTES // cores.tiles // (columns * shape.accumulate.nbytes))
    return next(n for n in range(min(rows, most), 0, -1) if rows % n == 0)


def scratch_nbytes(shape: MatmulShape, cores: Cores, b: MeshBlock) -> int:
    """The bytes of the sums; of pieces of both operands, those that come and those in use, once
    more where they are passed on, and once more where they are turned; and of narrow ones as they
    are multiplied."""
    left, right = b.rows * b.depth, b.depth * b.columns
    copies = 4 if b.together else 2
    turned = right if shape.b_contiguous == "k" else 0
    wide = left + right if cores.converted else 0
    pieces = (copies * (left + right) + turned) * cores.nbytes
    return pieces + (wide + b.rows * b.columns) * shape.accumulate.nbytes


def estimated_s(shape: MatmulShape, cores: Cores, b: MeshBlock) -> float:
    """Seconds of the whole product, where the next pieces come while cores multiply."""
    # A step of one core: whole vectors, each of which is loaded for some rows of sums.
    columns = round_up(b.columns, cores.lanes)
    # An odd number of vectors is computed one by one.
    rows, vectors = min(ROWS, b.rows), 1 if columns // cores.lanes % VECTORS else VECTORS
    slower = max(1.0, (rows + vectors) / (rows * vectors))
    wait = cores.latency * (PASS if b.together else STEP)
    # The pieces of a step of all cores, in lines of memory
    down, across = cores.mesh if b.together else (cores.count, cores.count)
    left = down * _lines_nbytes(cores, shape.a_contiguous == "k", b.depth, b.rows)
    right = across * _lines_nbytes(cores, shape.b_contiguous == "k", b.depth, b.columns)
    step = max(
        2 * b.rows * columns * b.depth * slower / cores.rate + wait,
        (left + right) / cores.bandwidth,
    )
    # The sums of all cores on their way to memory, where those of a core end within lines
    width = shape.accumulate.nbytes
    runs, nbytes = b.rows, width * min(b.columns, shape.n)
    if b.columns >= shape.n:
        runs, nbytes = b.rows // b.lines, nbytes * b.lines
    line = cores.line_nbytes
    whole = nbytes % line == 0 and shape.n * width % line == 0
    parts = 0 if whole else 1 if nbytes < line else 2
    one = (
        FIRST * cores.latency
        + (ceil_div(shape.k, b.depth) + (SHORT - 1 if shape.k % b.depth else 0)) * step
        + (cores.count * runs * (nbytes / cores.bandwidth + parts * PART * cores.latency))
    )
    # How often all cores compute a block.
    down, across = cores.mesh if b.together else (1, 1)
    blocks = ceil_div(shape.m, b.rows * down) * ceil_div(shape.n, b.columns * across) * shape.batch
    return (blocks if b.together else ceil_div(blocks, cores.count)) * one


def _lines_nbytes(cores: Cores, along_depth: bool, depth: int, other: int) -> int:
    run, count = (depth, other) if along_depth else (other, depth)
    return count * max(cores.line_nbytes, run * cores.nbytes)
