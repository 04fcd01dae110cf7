"""The choice of a matmul's block sizes: a pure function of the shape and of the device's limits.

Costs are counted in multiply-adds: what an element costs to pack is what the core could have
computed meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from hal.core.description import DeviceInfo, MatrixUnit, SpaceKind
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.size import divides, hint, is_fixed, known_divisor
from stack.compiler.pairs import halved, levels

PACK_COST = 16
"""Multiply-adds in the time that one element takes to be packed: fewer where it comes from a cache,
more where it comes from memory."""

LAUNCH_COST = 20_000
"""The same for starting one program instance."""

HINTED_ROWS, HINTED_DEPTH = 256, 1024
"""Rows or columns, and depth, for which blocks are chosen at least where they are data."""

LEAST_PART = 3
"""A register tile that is less than this part of what the registers hold is not worth that its
rows lie evenly."""

BEYOND = 1 / 8
"""The part of a run that is computed in vain at most, so that nothing of it need be packed."""

IN_FLIGHT = 8
"""Multiply-adds of vectors that must be independent to keep a core busy: four cycles, two in
each."""

STEP_COST = 1
"""Multiply-adds of vectors in the time that a step of the innermost loop takes beside its own."""

FAR_REUSE = 8
"""Multiply-adds for each element that a register tile reads, from which on panels may come from the
second cache."""

FAR_PART = 1 / 8
"""The part of the second cache that such a panel takes at most, which is 1024 rows of 32 floats for
1 MiB: the deeper panels are, the fewer sums wait in memory; what is deeper leaves the second cache,
too, and sums more terms one after the other. (With 3/32 products of 1024 to 4096 took 1.01 to 1.03
of the time on a Zen 4.)"""

TILE_RATE = 16
"""Multiply-adds of a unit of tile registers in the time of one of vector registers, where a device
does not say its rates: AMX has 512 products of bfloat16 in a cycle where AVX-512 has 32 of
float32."""

LONGEST = 1 << 32
"""The most multiply-adds of an instance, where smaller ones can do the work: a tenth of a second of
a core with registers of 32 bytes. What makes no progress for `Limits.progress_s` is taken for a
hang."""

LEAST_EVEN = 4
"""Runs along k that no tile of this depth divides are packed one after another."""

DEFAULT_CACHES = (32 << 10, 256 << 10, 32 << 20)
"""The bytes of the caches where the device does not say."""


@dataclass(frozen=True, slots=True)
class MatmulShape:
    """C[batch, m, n] = A[batch, m, k] @ B[batch, k, n]: the sizes, the axis along which each
    operand's elements are neighbours in memory, the operands' element type and the type of
    products and sums."""

    batch: int
    m: int
    n: int
    k: int
    a_contiguous: str
    b_contiguous: str
    dtype: DType
    accumulate: DType
    m_run: int = 0
    """Elements along m that lie evenly in memory at a time, where those of A do not all; 0: they
    do, or are not loaded along m."""
    n_run: int = 0
    """The same of B along n."""
    k_run: int = 0
    """The same of A along k."""
    together: int = 1
    """Neighbours along k that lie side by side in packed operands, in the operands' type, as a
    matrix unit takes them; 1: packed operands are of the type of products and sums."""
    right: DType | None = None
    """B's element type where it is another than A's."""
    moved: int = 0
    """What packed A's integers are more than A's: a unit that takes none below zero has them from
    the least one on. Sums are less by so many times B's."""
    tile: MatrixUnit | None = None
    """The matrix unit, if it works on tile registers."""
    apart: bool = False
    """Whether rows of A lie farther apart than what k counts: those of several images, whose
    channels k counts."""

    taps: int = 0
    """What the depth of blocks is a multiple of where windows of A, whose edges lie in memory, are
    read in place; 0: A is packed."""
    beyond: int = 0
    """How many rows behind those of a run are read so, to fill its last register tile."""

    def run_of(self, mr: int) -> int:
        """The rows of a run, each of which register tiles of so many rows begin anew, as they do
        not divide it; 0: they follow one another."""
        return self.m_run if self.beyond and (self.m_run + self.beyond) % mr == 0 else 0

    def is_in_place(self, mr: int) -> bool:
        """Whether A is not packed for register tiles of so many rows, if blocks are whole."""
        return self.taps > 0 and (divides(mr, self.m_run) or self.run_of(mr) > 0)

    def in_place(self, blocks: Blocks) -> bool:
        """Whether A is not packed: blocks are of whole windows, and of whole runs where these are
        no whole register tiles."""
        rows = self.run_of(blocks.mr) or blocks.mr
        whole = blocks.mc % rows == blocks.mp % rows == 0
        deep = self.taps > 0 and (self.k <= blocks.kc or blocks.kc % self.taps == 0)
        return self.is_in_place(blocks.mr) and deep and whole

    @property
    def packed(self) -> DType:
        """The type of packed A; they are equally wide."""
        return self.dtype if self.together > 1 else self.accumulate

    @property
    def packed_right(self) -> DType:
        """The type of packed B."""
        return self.right or self.packed

    def hinted(self) -> MatmulShape:
        """A shape for which to choose a schedule: with numbers for sizes that are none, large
        enough that blocks for it are good ones for more."""

        def number(size: int, least: int) -> int:
            return size if is_fixed(size) else max(hint(size), least)

        return replace(
            self,
            batch=hint(self.batch),
            m=number(self.m, HINTED_ROWS),
            n=number(self.n, HINTED_ROWS),
            k=number(self.k, HINTED_DEPTH),
            m_run=known_divisor(self.m_run),
            n_run=known_divisor(self.n_run),
            k_run=self.k_run if is_fixed(self.k_run) else 0,
        )

    def pitch(self, mr: int) -> int:
        """The elements from a column of a panel of A of `mr` rows to the next: what lies in runs is
        packed by vectors and masks of a power of two, which registers hold."""
        return 1 << (mr - 1).bit_length() if self.m_run and self.together == 1 else mr

    @property
    def over_rows(self) -> bool:
        """Whether k counts the rows of both operands, as in the gradient of a weight, and the order
        of sums matters: those of integers are the same in all."""
        return (
            self.accumulate.is_float
            and not self.apart
            and (self.a_contiguous, self.b_contiguous) == ("m", "n")
        )

    @property
    def in_pairs(self) -> bool:
        """Whether the sums of blocks of k are added in pairs (`pairs`): those over rows, of which
        ranks may have parts. Others are added one after the other: they wait in less memory, so
        that blocks of C may be larger."""
        return self.over_rows and is_fixed(self.k)

    def waiting(self, kc: int) -> int:
        """The partial sums of an element of C that wait at once, where blocks of k are so deep."""
        if not is_fixed(self.k):
            return 1
        blocks = ceil_div(self.k, kc)
        return levels(blocks) if self.in_pairs else int(blocks > 1)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Sizes of the levels of a blocked matmul, in elements.

    A register tile is `mr` by `nr`; `kt` is the depth that is packed at once, `unroll` the depth of
    one step of the innermost loop (one of both divides the other). Panels of packed operands are
    `kc` deep (a multiple of both). A program instance computes `mp` by `np` results, packing A `mc`
    rows at a time; `mc` and `mp` are multiples of `mr`, `np` of `nr`.
    """

    mr: int
    nr: int
    kt: int
    unroll: int
    kc: int
    mc: int
    mp: int
    np: int

    @property
    def whole(self) -> int:
        """What the depth of panels is a multiple of."""
        return max(self.kt, self.unroll)


def ceil_div(a: int, b: int) -> int:
    """The least q with q * b >= a."""
    return (a + b - 1) // b


def round_up(a: int, b: int) -> int:
    """The least multiple of b that is at least a."""
    return ceil_div(a, b) * b


def choose_blocks(shape: MatmulShape, info: DeviceInfo) -> Blocks:
    """Block sizes for a shape with no empty axis but perhaps k."""
    mr, nr = register_tile(shape, info)
    lanes = lanes_of(shape, info)
    groups = ceil_div(shape.k, shape.together)
    steps = min(8, 1 << (groups - 1).bit_length()) if groups > 1 else 1
    if shape.k_run and (even := _divisor(shape.k_run // shape.together, steps)) >= LEAST_EVEN:
        steps = even
    # Sums of integers over several steps are added in another order, which takes more registers.
    written = 4 if shape.accumulate.is_float else 1
    kt, unroll = steps * shape.together, _divisor(steps, written) * shape.together
    if shape.tile:
        kt, unroll = min(kt, shape.tile.k), shape.tile.k
    whole = max(kt, unroll)
    in_place = shape.is_in_place(mr)
    if in_place:
        # Neighbours along the last axis see the same elements, which stay in registers then.
        if mr * (ceil_div(nr, lanes) + 1) > (info.limits.registers or 16) - 4:
            unroll = shape.together
        whole = math.lcm(kt, shape.taps)
    # The depth whose panel of B takes at most 3/4 of the nearest cache: for sums over rows k halved
    # as often as that needs, so that sums are those of its halves; equal parts for others, and
    # where k is too odd for that.
    # And a panel of A fits beside it, of tall tiles with narrow rows. Panels that need not be there
    # may be deeper, but for sums over rows that wait in the second cache: with fewer levels of them
    # what it loads and stores takes less than what leaves the registers at each stop (Zen 4, 128 by
    # 4096 to 128: 1.02 of the time of float32; where they would not fit it 0.98 to 1.0, and of
    # bfloat16 0.99 to 1.0).
    budget = scratch_budget(info)
    near = min(cache_nbytes(info, 0) * 3 // 4, budget // 4)
    deep = min(near // nr, budget // (mr + nr)) // shape.packed.nbytes
    if (in_place or mr * nr >= FAR_REUSE * (mr + nr)) and not shape.tile:
        far = min(int(cache_nbytes(info, 1) * FAR_PART), budget // 4) // nr // shape.packed.nbytes
        waits_far = shape.m * shape.n * shape.accumulate.nbytes >= cache_nbytes(info, 1)
        if not shape.over_rows or waits_far:
            deep = max(deep, far)
    most = max(whole, deep // whole * whole)
    half = halved(shape.k, most, whole) if shape.over_rows else shape.k
    if half and half <= most and half % whole == 0:
        kc = half
    else:
        parts = max(1, ceil_div(shape.k, most))
        kc = max(whole, round_up(ceil_div(shape.k, parts), whole))
    if in_place and shape.k <= kc:
        kc = round_up(shape.k, max(kt, unroll))
    # The rows of packed A that take half of the second cache, and of scratch memory a quarter: the
    # wider B's part, the fewer instances pack the same rows.
    nbytes = min(cache_nbytes(info, 1) // 2, budget // 4)
    mc = nbytes // (kc * shape.packed.nbytes) // shape.pitch(mr) * mr
    if in_place:
        mc = nbytes * shape.taps // (kc * shape.packed.nbytes)
    rows = shape.run_of(mr) or mr
    mc = max(rows, mc // rows * rows)
    # The block of one instance with the least estimated time that is not too large
    blocks = Blocks(mr, nr, kt, unroll, kc, mc, rows, max(nr, lanes))
    down, across = (list(even_sizes(*side)) for side in ((shape.m, rows), (shape.n, nr)))
    room, most = scratch_of(shape, blocks), most_results(shape)
    fitting = [
        (mp, np) for mp in down for np in across if mp * np <= most and room(mp, np) <= budget
    ]
    mp, np = min(fitting or [(rows, nr)], key=_estimated_time(shape, info))
    mc = round_up(ceil_div(mp, ceil_div(mp, mc)), rows)
    return Blocks(mr, nr, kt, unroll, kc, mc, mp, np)


def _divisor(n: int, most: int) -> int:
    """The greatest divisor of n that is at most `most`."""
    return next(d for d in range(most, 0, -1) if n % d == 0)


def register_tile(shape: MatmulShape, info: DeviceInfo) -> tuple[int, int]:
    """Rows and columns of accumulators: two vectors wide, and as many rows as leave registers for a
    row of B and one element of A, or a few less where tiles reach less far beyond m then; rows are
    spread evenly over the tiles that m needs. Tiles are within runs of elements that lie evenly
    where these have parts that are large enough. Of tile registers, the most sums that leave some
    for the operands."""
    if shape.tile:
        return sums_in_tiles(shape.tile, shape.m, shape.n)
    lanes = lanes_of(shape, info)
    nr = lanes if shape.n <= lanes else 2 * lanes
    part = part_of_run(shape.m_run, shape.n, lanes, info)
    if not part and shape.beyond:
        part = part_beyond(shape.m_run, shape.n, lanes, info)
    if part:
        return part, nr
    most, vectors = _most_rows(info), ceil_div(nr, lanes)
    rows = min(
        range(most, ceil_div(3 * most, 4) - 1, -1),
        key=lambda r: ceil_div(shape.m, r) * (r * vectors + STEP_COST),
    )
    return ceil_div(shape.m, ceil_div(shape.m, rows)), nr


def part_of_run(run: int, columns: int, lanes: int, info: DeviceInfo) -> int:
    """The rows of a register tile that divide runs of so many (0: there are none), where that fills
    enough of the registers; else 0."""
    most, vectors = _most_rows(info), 1 if columns <= lanes else 2
    part = _divisor(run, most) if run else 0
    return part if part >= most // LEAST_PART and part * vectors >= IN_FLIGHT else 0


def part_beyond(run: int, columns: int, lanes: int, info: DeviceInfo) -> int:
    """The rows of a register tile for runs that none divides, the last one of which reaches a
    little beyond; 0: there are none that fill enough of the registers."""
    most, vectors = _most_rows(info), 1 if columns <= lanes else 2
    least = max(most // LEAST_PART, ceil_div(IN_FLIGHT, vectors))
    parts = range(most, least - 1, -1)
    fitting = (r for r in parts if round_up(run, r) - run <= run * BEYOND)
    return min(fitting, key=lambda r: ceil_div(run, r) * (r * vectors + STEP_COST), default=0)


def _most_rows(info: DeviceInfo) -> int:
    """Rows of two vectors of sums, beside a row of B and an element of A."""
    return max(1, ((info.limits.registers or 16) - 3) // 2)


def sums_in_tiles(unit: MatrixUnit, m: int, n: int) -> tuple[int, int]:
    """Rows and columns of sums in tile registers, the most that leave some for the operands of a
    step: one for each tile of rows and one for each of columns."""
    down, across = max(
        (
            (down, across)
            for down in range(1, min(unit.registers, ceil_div(m, unit.m)) + 1)
            for across in range(1, min(unit.registers, ceil_div(n, unit.n)) + 1)
            if down * across + down + across <= unit.registers
        ),
        key=lambda sums: (sums[0] * sums[1], -abs(sums[0] - sums[1])),
    )
    return down * unit.m, across * unit.n


def lanes_of(shape: MatmulShape, info: DeviceInfo) -> int:
    """Sums that a vector register holds."""
    return max(1, info.limits.vector_nbytes // shape.accumulate.nbytes)


def unit_rate(shape: MatmulShape, info: DeviceInfo) -> float:
    """Multiply-adds of what the shape is computed by in the time of one of vector registers.
    Packing and starting cost so much more beside a unit of tile registers. Rates are measured, so
    that the nearest power of two is what does not differ from one start to the next."""
    if not shape.tile:
        return 1.0
    by_vectors = info.dtypes.get(shape.accumulate, 0.0)
    if not (by_vectors and shape.tile.rate):
        return float(TILE_RATE)
    return float(2 ** max(0, round(math.log2(shape.tile.rate / by_vectors))))


def cache_nbytes(info: DeviceInfo, level: int) -> int:
    """The size of the nearest (0) or second (1) cache."""
    return (info.limits.caches + DEFAULT_CACHES[len(info.limits.caches) :])[level]


def last_cache_nbytes(info: DeviceInfo) -> int:
    """The size of the farthest cache: more than that comes from memory."""
    return (info.limits.caches + DEFAULT_CACHES[len(info.limits.caches) :])[-1]


def near_nbytes(info: DeviceInfo) -> int:
    """Scratch memory that the second cache holds: at most half of what there is, since a lowering
    may need some for itself."""
    space = info.space(SpaceKind.SCRATCHPAD)
    return min(cache_nbytes(info, 1), space.nbytes // 2) if space is not None else 0


def even_sizes(extent: int, tile: int) -> Iterator[int]:
    """Multiples of the tile that equal parts of the extent need, for numbers of parts that grow
    ever faster."""
    tiles, parts, last = ceil_div(extent, tile), 1, 0
    while last != tile:
        size = ceil_div(tiles, parts) * tile
        if size != last:
            yield size
        last = size
        parts += 1 + parts // 8


def scratch_budget(info: DeviceInfo) -> int:
    """The bytes of scratch memory that an instance may use: three quarters of what there is, and of
    the farthest cache where there are three."""
    space, caches = info.space(SpaceKind.SCRATCHPAD), info.limits.caches
    most = space.nbytes * 3 // 4 if space else 1 << 20
    return min(most, caches[2] * 3 // 4) if len(caches) > 2 else most


def most_results(shape: MatmulShape) -> int:
    """How many results an instance computes at most, where smaller blocks can do the work."""
    return LONGEST // max(shape.k, 1)


def scratch_of(shape: MatmulShape, blocks: Blocks) -> Callable[[int, int], int]:
    """The bytes of scratch memory of an instance that computes `mp` by `np` results."""
    held, pitch = shape.waiting(blocks.kc) * shape.accumulate.nbytes, shape.pitch(blocks.mr)
    mc, mr, deep = blocks.mc, blocks.mr, blocks.kc * shape.packed.nbytes
    if shape.in_place(blocks):
        run = shape.run_of(mr) or mr
        return lambda mp, np: np * deep + mp // run * round_up(run, mr) * np * held
    return lambda mp, np: (min(mp, mc) // mr * pitch + np) * deep + mp * np * held


def _estimated_time(shape: MatmulShape, info: DeviceInfo) -> Callable[[tuple[int, int]], float]:
    """Time of the whole grid when instances that compute `mp` by `np` results take turns on the
    device's cores."""
    m, n, k, rate = shape.m, shape.n, shape.k, unit_rate(shape, info)

    def time(block: tuple[int, int]) -> float:
        mp, np = block
        one = (mp * np / rate + PACK_COST * (mp + np)) * k + LAUNCH_COST
        programs = ceil_div(m, mp) * ceil_div(n, np) * shape.batch
        return one * turns(programs, info)

    return time


def turns(programs: int, info: DeviceInfo) -> float:
    """How long a grid takes in times of one instance. Where several run at a time, all others wait
    for one that starts late or is interrupted."""
    cores = info.limits.instances
    return ceil_div(programs, cores) + 0.1 if cores > 1 else programs
