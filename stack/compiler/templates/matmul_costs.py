"""The block sizes that a matmul may have, and a model of what each costs.

The model counts vector operations of the core that is ready last. It knows what the rules of
`stack.compiler.templates.blocking` leave out: the latency of chains of multiply-adds, spilled
registers and caches that overflow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from hal.core.description import DeviceInfo
from stack.compiler.templates.blocking import (
    IN_FLIGHT,
    LAUNCH_COST,
    PACK_COST,
    Blocks,
    MatmulShape,
    cache_nbytes,
    ceil_div,
    choose_blocks,
    even_sizes,
    lanes_of,
    most_results,
    register_tile,
    round_up,
    scratch_budget,
    scratch_of,
    turns,
    unit_rate,
)
from stack.compiler.templates.schedule import Schedule

TILE_ROWS = (1, 2, 3, 4, 6, 8, 12)
TILE_VECTORS = (1, 2, 4, 8)
STEPS = ((4, 1), (8, 1), (8, 4), (16, 4), (16, 8))
"""(kt, unroll)."""
DEPTHS = (64, 128, 256, 512, 1024)
"""kc."""
SIZES = 6
"""Sizes of an instance's block along each side."""
SPILL = 2
"""Operations that an accumulator without a register costs in each step."""
OVERFLOW = 1.2
"""How much slower a loop is whose operands do not fit the cache that is meant for them."""
ALIKE = 0.02
"""How much dearer each further candidate with an equal register tile counts, so that those tried
first differ."""


def costs(shape: MatmulShape, info: DeviceInfo) -> Mapping[Schedule, float]:
    """Every candidate with its cost; the rules' choice comes first."""
    default = choose_blocks(shape, info)
    found: dict[Schedule, float] = {default: cost(shape, info, default)}
    for tile in _tiles(shape, info):
        of_tile = {b: cost(shape, info, b) for b in _of_tile(shape, info, *tile)}
        for rank, blocks in enumerate(sorted(of_tile, key=of_tile.__getitem__)):
            found.setdefault(blocks, of_tile[blocks] * (1 + ALIKE * rank))
    return found


def cost(shape: MatmulShape, info: DeviceInfo, blocks: Blocks) -> float:
    """The time of the whole grid in vector operations, when instances take turns on the cores."""
    t, lanes = blocks, lanes_of(shape, info)
    tiles = ceil_div(t.mp, t.mr) * ceil_div(t.np, t.nr)
    partial = 2 * t.mr * (t.nr // lanes) * ceil_div(shape.k, t.kc) if shape.k > t.kc else 0
    # Vector operations of one step of the innermost loop.
    vectors = max(1, t.nr // lanes_of(shape, info))
    sums, loads = t.mr * vectors, t.mr + vectors
    spilled = max(0, sums + vectors + 1 - (info.limits.registers or 16))
    step = max(sums, loads, IN_FLIGHT) + SPILL * spilled + 1 / t.unroll
    if shape.tile:
        step = sums / unit_rate(shape, info)
    width = shape.packed.nbytes
    near, far = t.kc * t.nr * width, t.mc * t.kc * width
    step *= OVERFLOW if near > cache_nbytes(info, 0) else 1
    computed = tiles * (
        shape.k * (step * (OVERFLOW if far > cache_nbytes(info, 1) else 1)) + partial
    )
    rows = 0 if shape.in_place(t) else t.mp
    packed = PACK_COST * (rows + t.np) * shape.k / lanes
    one = computed + packed + LAUNCH_COST / lanes
    programs = ceil_div(shape.m, t.mp) * ceil_div(shape.n, t.np) * shape.batch
    return one * turns(programs, info)


def rules_cost(shape: MatmulShape, info: DeviceInfo) -> float:
    """What the rules' own choice costs."""
    return cost(shape, info, choose_blocks(shape, info))


def _tiles(shape: MatmulShape, info: DeviceInfo) -> Iterator[tuple[int, int]]:
    """Register tiles that are not much larger than the product or the registers."""
    if shape.tile:
        yield register_tile(shape, info)
        return
    lanes, registers = lanes_of(shape, info), info.limits.registers or 16
    for mr, vectors in product(TILE_ROWS, TILE_VECTORS):
        fits = mr * vectors <= 3 * registers // 2
        if fits and mr <= shape.m and (vectors - 1) * lanes < shape.n:
            yield mr, vectors * lanes


def _of_tile(shape: MatmulShape, info: DeviceInfo, mr: int, nr: int) -> Iterator[Blocks]:
    rows, columns = _sizes(shape.m, mr), _sizes(shape.n, nr)
    group = shape.together
    steps = [(kt * group, unroll * group) for kt, unroll in _steps(ceil_div(shape.k, group))]
    if shape.tile:
        steps = [(min(kt, shape.tile.k), shape.tile.k) for kt, _ in steps]
    for (kt, unroll), kc in product(dict.fromkeys(steps), DEPTHS):
        deep = min(kc, round_up(max(1, shape.k), max(kt, unroll)))
        if kc >= 2 * deep and kc != DEPTHS[0]:
            continue
        for mp, np in product(rows, columns):
            # The rows of packed A that take half of the second cache, spread evenly over the
            # block.
            most = max(mr, cache_nbytes(info, 1) // 2 // (deep * shape.packed.nbytes) // mr * mr)
            mc = round_up(ceil_div(mp, ceil_div(mp, most)), mr)
            blocks = Blocks(mr, nr, kt, unroll, deep, mc, mp, np)
            fits = scratch_of(shape, blocks)(mp, np) <= scratch_budget(info)
            if fits and mp * np <= most_results(shape):
                yield blocks


def _steps(depth: int) -> list[tuple[int, int]]:
    """Steps not deeper than twice the product; it may have none of the usual ones."""
    return [s for s in STEPS if s[0] <= 2 * depth] or [(1, 1)]


def _sizes(extent: int, tile: int) -> list[int]:
    """Block sizes from the whole extent down, spread over those that equal parts need."""
    every = list(even_sizes(extent, tile))
    stride = max(1, ceil_div(len(every), SIZES))
    return every[::stride]
