"""What every choice of block sizes must satisfy, whatever the shape and the device."""

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from hal.core.description import MatrixUnit, SpaceKind
from hal.core.dtypes import DType
from stack.compiler.templates.blocking import (
    FAR_PART,
    FAR_REUSE,
    TILE_RATE,
    Blocks,
    MatmulShape,
    cache_nbytes,
    ceil_div,
    choose_blocks,
    most_results,
    register_tile,
    scratch_of,
    unit_rate,
)
from tests.compiler.test_matmul import vector_device

SIZES = st.one_of(st.integers(1, 70), st.integers(1, 20_000))
SHAPES = st.builds(
    MatmulShape,
    st.integers(1, 50),
    SIZES,
    SIZES,
    st.one_of(st.just(0), SIZES),
    st.sampled_from("mk"),
    st.sampled_from("nk"),
    st.just(DType.F32),
    st.sampled_from([DType.F32, DType.F64]),
)
DEVICES = st.builds(
    vector_device,
    st.sampled_from([16, 32, 64]),
    st.sampled_from([16, 32]),
    st.sampled_from([(), (32 << 10,), (48 << 10, 2 << 20), (32 << 10, 512 << 10, 32 << 20)]),
    st.sampled_from([64 << 10, 4 << 20]),
    st.integers(1, 256),
)


def programs(shape: MatmulShape, blocks: Blocks) -> int:
    """How many instances the grid has."""
    return ceil_div(shape.m, blocks.mp) * ceil_div(shape.n, blocks.np) * shape.batch


@given(SHAPES, DEVICES)
def test_levels_nest(shape, info):
    t = choose_blocks(shape, info)
    assert t.kt % t.unroll == 0
    assert t.kc % t.kt == 0
    assert t.mc % t.mr == 0
    assert t.mp % t.mr == 0
    assert t.np % t.nr == 0
    assert t.mc <= t.mp
    assert t.mp < shape.m + t.mr
    assert t.np < shape.n + t.nr


@given(SHAPES, DEVICES)
def test_a_register_tile_fits_the_registers(shape, info):
    t = choose_blocks(shape, info)
    vectors = ceil_div(t.nr * shape.accumulate.nbytes, info.limits.vector_nbytes)
    assert (t.mr + 1) * vectors + 1 <= info.limits.registers


@given(st.integers(1, 3000))
@example(384)
def test_tiles_reach_no_further_beyond_the_product_than_the_highest_that_fit(rows):
    info, highest = vector_device(64, 32), 14
    shape = MatmulShape(1, rows, 512, 512, "m", "n", DType.F32, DType.F32)
    height, _ = register_tile(shape, info)
    tiles = ceil_div(rows, highest)
    assert ceil_div(rows, height) * height <= tiles * ceil_div(rows, tiles)
    assert height >= min(rows / tiles, highest * 3 / 4)
    if rows == 384:
        assert rows % height == 0


@given(SHAPES, DEVICES)
@example(
    MatmulShape(1, 11, 1, 625, "m", "n", DType.F32, DType.F64), vector_device(16, 32, (), 1 << 16)
)
def test_scratch_memory_fits(shape, info):
    t = choose_blocks(shape, info)
    partial = t.mp * t.np if shape.k > t.kc else 0
    elements = (t.mc + t.np) * t.kc + partial + t.mr * t.nr
    assert elements * shape.accumulate.nbytes <= info.space(SpaceKind.SCRATCHPAD).nbytes


@given(SHAPES, DEVICES)
@example(MatmulShape(1, 1024, 1024, 1024, "k", "n", DType.F32, DType.F32), vector_device(64, 32))
@example(MatmulShape(1, 1024, 1024, 1024, "m", "n", DType.F32, DType.F32), vector_device(64, 32))
def test_panels_beyond_the_nearest_cache_are_of_tiles_that_read_little(shape, info):
    t = choose_blocks(shape, info)
    if t.kc > t.kt and t.kc * t.nr * shape.packed.nbytes > cache_nbytes(info, 0) * 3 // 4:
        assert t.mr * t.nr >= FAR_REUSE * (t.mr + t.nr)
        assert t.kc * t.nr * shape.packed.nbytes <= cache_nbytes(info, 1) * FAR_PART
        results = shape.m * shape.n * shape.accumulate.nbytes
        assert not shape.over_rows or results >= cache_nbytes(info, 1)


@given(st.integers(2, 64))
def test_a_large_product_keeps_every_core_busy(instances):
    shape = MatmulShape(1, 4096, 4096, 1024, "k", "n", DType.F32, DType.F32)
    count = programs(shape, choose_blocks(shape, vector_device(instances=instances)))
    turns = ceil_div(count, instances)
    assert count / (turns * instances) > 0.8


def test_a_small_product_is_not_cut_up():
    shape = MatmulShape(48, 64, 64, 64, "k", "n", DType.F32, DType.F32)
    assert programs(shape, choose_blocks(shape, vector_device())) == 48


def test_a_unit_is_as_fast_as_the_device_says():
    """Beside vectors; where it does not say, as fast as one that is known."""
    unit = MatrixUnit(16, 16, 32, DType.BF16, DType.F32, rate=7e12)
    shape = MatmulShape(1, 64, 64, 64, "k", "n", DType.BF16, DType.F32, together=2, tile=unit)
    device = vector_device(32, 16, (32 << 10,), 4 << 20, 2)
    measured = replace(device, dtypes={**device.dtypes, DType.F32: 9e11})
    assert unit_rate(shape, measured) == 8
    assert unit_rate(replace(shape, tile=replace(unit, rate=50e12)), measured) == 64
    assert unit_rate(shape, device) == TILE_RATE
    assert unit_rate(replace(shape, tile=None), measured) == 1


@given(SHAPES, DEVICES)
@example(MatmulShape(1, 20_000, 20_000, 100_000, "k", "n", DType.F32, DType.F32), vector_device())
def test_an_instance_ends_before_it_is_taken_for_one_that_hangs(shape, info):
    """But one of a single tile, as deep as the product is."""
    t = choose_blocks(shape, info)
    assert t.mp * t.np <= most_results(shape) or (t.mp, t.np) == (t.mr, t.nr)


def test_what_an_instance_keeps_is_within_its_part_of_the_farthest_cache():
    shape = MatmulShape(1, 4096, 4096, 4096, "k", "n", DType.F32, DType.F32)
    for farthest in (32 << 20, 2 << 20):
        info = vector_device(caches=(32 << 10, 512 << 10, farthest), scratch_nbytes=8 << 20)
        t = choose_blocks(shape, info)
        taken = scratch_of(shape, t)(t.mp, t.np)
        most = min(farthest, 8 << 20) * 3 // 4
        assert most // 2 < taken <= most
