"""Layouts as values: who holds which element."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.compiler.lower.simt.layout import (
    Layout,
    bits,
    blocked,
    coalesced,
    element,
    fragments,
    in_line,
    registers,
    without,
)

LANES = st.sampled_from((1, 4, 32, 64))
SHAPES = st.lists(st.integers(1, 12), min_size=0, max_size=3).map(tuple)


def holders(layout: Layout, lanes: int) -> Counter[tuple[int, ...]]:
    """How often each element is held."""
    held = list(product(*map(range, registers(layout))))
    found = (element(layout, lane, at) for lane in range(lanes) for at in held)
    return Counter(at for at in found if at is not None)


def assert_shared_out(layout: Layout, shape: tuple[int, ...], lanes: int) -> None:
    """Every element is held equally often: by the lanes that differ in bits that nothing uses."""
    assert tuple(s.size for s in layout) == shape
    copies = lanes >> bits(layout).bit_count()
    assert holders(layout, lanes) == dict.fromkeys(product(*map(range, shape)), copies)


@given(SHAPES, LANES)
def test_coalesced_tiles_are_shared_out(shape: tuple[int, ...], lanes: int) -> None:
    assert_shared_out(coalesced(shape, lanes), shape, lanes)
    assert_shared_out(coalesced(shape, lanes, range(len(shape))), shape, lanes)


@given(SHAPES.filter(bool), LANES, st.data())
def test_a_lane_has_a_run_of_neighbours_in_line(
    shape: tuple[int, ...], lanes: int, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    layout = in_line(shape, lanes, axis)
    assert_shared_out(layout, shape, lanes)
    for lane in range(lanes):
        run = [layout[axis].position(lane, r) for r in range(layout[axis].registers)]
        assert run == list(range(run[0], run[0] + len(run)))


@given(st.integers(1, 70), st.integers(1, 70), LANES)
def test_sums_are_shared_out_in_blocks(rows: int, columns: int, lanes: int) -> None:
    assert_shared_out(blocked((rows, columns), lanes), (rows, columns), lanes)


@pytest.mark.parametrize("whole_rows", [False, True])
@pytest.mark.parametrize(("shape", "lanes"), [((16, 64), 128), ((48, 24), 64), ((32, 32), 256)])
def test_fragments_are_shared_out(shape: tuple[int, int], lanes: int, whole_rows: bool) -> None:
    layout = fragments(shape, lanes, whole_rows=whole_rows)
    assert_shared_out(layout, shape, lanes)
    assert layout[1].sets == 1 or not whole_rows
    assert bits(layout) == lanes - 1 or whole_rows or shape == (48, 24)
    subgroup = [element(layout, lane, (0, 0)) for lane in range(32)]
    assert subgroup == [(lane // 4, lane % 4 * 2) for lane in range(32)]


def test_subgroups_read_as_few_rows_and_columns_as_can_be() -> None:
    def reads(whole_rows: bool) -> int:
        layout = fragments((128, 128), 256, whole_rows=whole_rows)
        return 8 * sum(s.share for s in layout)

    assert (reads(whole_rows=True), reads(whole_rows=False)) == (1152, 768)


@pytest.mark.parametrize(("shape", "block"), [((64, 64), (8, 8)), ((128, 64), (8, 16))])
def test_blocks_of_sums_are_nearly_square(shape: tuple[int, int], block: tuple[int, int]) -> None:
    high, wide = registers(blocked(shape, prod(shape) // prod(block)))
    assert high * wide == prod(block)
    assert high + wide == sum(block)


@given(SHAPES.filter(lambda s: len(s) > 1), LANES)
def test_neighbouring_lanes_hold_neighbours(shape: tuple[int, ...], lanes: int) -> None:
    layout = coalesced(shape, lanes)
    first = (0,) * len(shape)
    row = [element(layout, lane, first) for lane in range(layout[-1].lanes)]
    inside = [at for at in row if at is not None]
    assert inside == [(*first[1:], i) for i in range(len(inside))]


def test_what_has_lost_an_axis_is_held_by_every_lane_that_held_a_part() -> None:
    layout = without(coalesced((4, 16), 64), 1)
    assert holders(layout, 64) == {(i,): 16 for i in range(4)}
