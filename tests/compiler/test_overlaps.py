"""Windows that are added up by strides, and sums along axes that do not fill a vector."""

from __future__ import annotations

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.kernel import Gather, Load
from hal.tile.node import Node, Type
from hal.tile.numeric import NUMPY
from hal.tile.walk import defines, statements
from stack import ops as g
from stack.compiler.kernels import TileProgram
from stack.ir.interpret import interpret
from tests.compiler.lowered import run_lowered
from tests.draw import sample


def _drawn(shape: tuple[int, ...], dtype: DType = DType.F32) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(-4, 5, shape).astype(NUMPY[dtype])


def _same(outputs: list[Node], inputs: list[Node]) -> TileProgram:
    """Exact on small integers."""
    arrays = [_drawn(n.shape, n.dtype) for n in inputs]
    found, program = run_lowered(outputs, inputs, arrays)
    for one, other in zip(
        found, interpret(outputs, dict(zip(inputs, arrays, strict=True))), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    return program


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I32], ids=lambda d: d.short)
@pytest.mark.parametrize(
    ("windows", "taps", "stride", "length"),
    [(5, 3, 2, 11), (5, 3, 2, 12), (4, 2, 2, 8), (3, 5, 3, 11), (3, 2, 4, 13), (1, 3, 2, 3)],
)
def test_windows_of_a_stride_are_added_whole_or_in_part(
    windows: int, taps: int, stride: int, length: int, dtype: DType
) -> None:
    x = g.input(0, Type((3, windows, taps, 2), dtype))
    whole = g.overlap_add(x, 1, length, stride)
    parts = [(0, length), (1, length - 1), (2, length), (0, 1)]
    outputs = [whole, *(g.slice(whole, (1, lo, 0), (3, hi, 1)) for lo, hi in parts if lo < hi)]
    _same(outputs, [x])


def test_only_what_is_wanted_of_windows_on_two_axes_is_computed() -> None:
    x = g.input(0, Type((2, 9, 10, 3, 3), DType.F32))
    rows = g.overlap_add(g.permute(x, (0, 1, 3, 2, 4)), 1, 20, 2)
    both = g.overlap_add(rows, 2, 22, 2)
    wanted = g.slice(both, (0, 1, 1), (2, 19, 21))
    assert len(_same([wanted], [x]).calls) == 1


@pytest.mark.parametrize("size", [17, 33])
@pytest.mark.parametrize("taps", [2, 3, 5])
def test_extremes_and_sums_of_windows_in_lanes_along_windows(taps: int, size: int) -> None:
    """Two passes over a window's elements: the greatest one, and which that is."""
    x = g.input(0, Type((6, size), DType.F32))
    v = g.window(g.pad(x, (0, 1), (0, 1), -9), 1, taps, 2)
    best = g.extreme("max", v, 2)
    hit = g.eq(v, g.expand(best, v.shape))
    _same(
        [best, g.reduce("sum", v, 2), g.argmax(v, 2), g.reduce("max", g.cast(hit, DType.I32), 2)],
        [x],
    )


@pytest.mark.parametrize("size", [8, 19, 33])
@pytest.mark.parametrize("taps", [3, 5, 7, 9])
def test_windows_with_edges_on_two_axes_that_cut_some_blocks_of_lanes(taps: int, size: int) -> None:
    x, w = g.input(0, Type((1, 3, size), DType.F32)), g.input(1, Type((taps, taps), DType.F32))
    edge = taps // 2
    v = g.pad(x, (0, edge, edge), (0, edge, edge))
    v = g.window(g.window(v, 2, taps, 1, 1), 1, taps, 1, 1)
    rows, columns = v.shape[1], v.shape[3]
    weights = g.reshape(w, (1, 1, taps, 1, taps))
    product = g.mul(v, g.expand(weights, (1, rows, taps, columns, taps)))
    lowest = g.pad(x, (0, edge, edge), (0, edge, edge), -9)
    lowest = g.window(g.window(lowest, 2, taps, 1, 1), 1, taps, 1, 1)
    _same([g.reduce("sum", product, (2, 4)), g.reduce("max", lowest, (2, 4))], [x, w])


def test_the_edges_of_large_windows_alone_are_laid_in_memory() -> None:
    def kernels(taps: int) -> int:
        x = g.input(0, Type((2, 12, 16), DType.F32))
        edge = taps // 2
        v = g.pad(x, (0, edge, edge), (0, edge, edge))
        v = g.window(g.window(v, 2, taps, 1, 1), 1, taps, 1, 1)
        return len(_same([g.reduce("sum", v, (2, 4))], [x]).calls)

    assert (kernels(3), kernels(5)) == (1, 2)


def test_both_passes_over_windows_share_what_they_read() -> None:
    x = g.input(0, Type((6, 256), DType.F32))
    v = g.window(g.pad(x, (0, 1), (0, 1), -9), 1, 3, 2)
    (call,) = _same([g.argmax(v, 2)], [x]).calls
    reads = [s for s in statements(call.kernel.body) if isinstance(s, Gather | Load)]
    # By loads where no edge cuts the block, else by gathers.
    assert [type(s) for s in reads] == [Load] * 3 + [Gather] * 3


@pytest.mark.parametrize(
    ("rows", "columns", "side_by_side"),
    sample(
        "side by side",
        [
            *((512, 1024, True), (514, 1024, True)),
            *((511, 1024, False), (514, 1032, False), (512, 960, False)),
        ],
        2,
    ),
)
def test_sums_along_rows_side_by_side(rows: int, columns: int, side_by_side: bool) -> None:
    """Several rows at a time where there are many long ones, with all that follows from them."""
    x, w = (g.input(i, Type(s, DType.F32)) for i, s in enumerate(((rows, columns), (1, columns))))
    total = g.reduce("sum", g.mul(x, g.expand(w, x.shape)), 1)
    outputs = [g.neg(total), g.reduce("max", x, 1)]
    program = _same(outputs, [x, w])
    values = [n for c in program.calls for s in statements(c.kernel.body) for n in defines(s)]
    assert any(len(n.shape) == 2 and min(n.shape) > 1 for n in values) == side_by_side


@pytest.mark.parametrize("size", [8, 21])
@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_sums_for_each_tap_of_windows_in_lanes_along_the_windows(
    taps: int, size: int, stride: int
) -> None:
    """Taps are too few for a vector, and every sum is over all windows: those of all taps are added
    side by side."""
    x, d = (g.input(i, Type((3, 2, n), DType.F32)) for i, n in enumerate((stride * size, size)))
    v = g.window(g.pad(x, (0, 0, 1), (0, 0, taps - 1 - stride)), 2, taps, stride)
    weighted = g.mul(v, g.expand(g.reshape(d, (*d.shape, 1)), v.shape))
    program = _same([g.reduce("sum", weighted, (0, 2))], [x, d])
    values = [n for c in program.calls for s in statements(c.kernel.body) for n in defines(s)]
    found = {n.shape for n in values if n.dtype is DType.F32 and len(n.shape) > 1}
    assert found == {(taps, 8), (1, 8)}


@pytest.mark.parametrize(("channels", "shape"), [(6, (3, 3, 8)), (1, (1, 1, 8))])
@pytest.mark.parametrize("size", [8, 13])
def test_sums_for_taps_on_two_axes_are_side_by_side_where_cores_have_enough(
    channels: int, shape: tuple[int, ...], size: int
) -> None:
    x, d = (g.input(i, Type((3, channels, size, size), DType.F32)) for i in range(2))
    v = g.pad(x, (0, 0, 1, 1), (0, 0, 1, 1))
    v = g.window(g.window(v, 3, 3, 1), 2, 3, 1)
    weighted = g.mul(v, g.expand(g.reshape(d, (3, channels, size, 1, size, 1)), v.shape))
    program = _same([g.reduce("sum", weighted, (0, 2, 4))], [x, d])
    values = [n for c in program.calls for s in statements(c.kernel.body) for n in defines(s)]
    found = {n.shape for n in values if n.dtype is DType.F32}
    assert ((3, 3, 8) in found) == (shape == (3, 3, 8))


@pytest.mark.parametrize("taps", [2, 4])
def test_sums_of_taps_that_divide_a_vector_are_in_lanes_along_the_windows(taps: int) -> None:
    x = g.input(0, Type((6, 16 * taps), DType.F32))
    program = _same([g.reduce("sum", g.window(x, 1, taps, taps), 2)], [x])
    values = [n for c in program.calls for s in statements(c.kernel.body) for n in defines(s)]
    assert {n.shape[-1] for n in values if n.dtype is DType.F32 and n.shape} <= {8, 16}


def test_what_is_the_same_along_a_padded_axis_is_read_once_for_all_of_it() -> None:
    """A channel's own numbers, where an image's edges are zero: no element asks whether it is one
    of them."""
    x, scale = g.input(0, Type((4, 30, 30), DType.F32)), g.input(1, Type((4,), DType.F32))
    scaled = g.mul(x, g.sqrt(g.expand(g.reshape(scale, (4, 1, 1)), x.shape)))
    padded = g.pad(scaled, (0, 1, 1), (0, 1, 1))
    seen = g.window(g.window(padded, 2, 3), 1, 3)
    given = [np.ones((4, 30, 30), np.float32), np.array([1, 4, 9, 16], np.float32)]
    (found,), program = run_lowered([g.reduce("sum", seen, (2, 4))], [x, scale], given)
    counts = np.pad(np.full((28, 28), 9.0), 1, constant_values=6.0)
    counts[::29, ::29] = 4
    wanted = counts * np.sqrt(given[1]).reshape(4, 1, 1)
    np.testing.assert_array_equal(found.reshape(4, 30, 30), wanted)
    every = [s for call in program.calls for s in statements(call.kernel.body)]
    assert len({s.memory for s in every if isinstance(s, Gather)}) <= 1, "the image alone"


@pytest.mark.parametrize("place", [2, -1, 3, 1 << 40])
def test_an_edge_does_not_hide_that_a_place_is_out_of_range(place: int) -> None:
    """It is one number for all elements, and lies along no axis."""
    x, at = g.input(0, Type((3, 6), DType.F32)), g.input(1, Type((), DType.I64))
    row = g.gather(x, g.reshape(at, (1,)), 0)
    out = g.contiguous(g.pad(row, (0, 2), (0, 5)))
    given = [np.arange(1, 19, dtype=np.float32).reshape(3, 6), np.array(place)]
    (found,), _ = run_lowered([out], [x, at], given)
    wanted = given[0][place] if place == 2 else np.zeros(6)
    np.testing.assert_array_equal(found[0], np.pad(wanted, (2, 5)))


@pytest.mark.parametrize("columns", [2, 8])
def test_what_sums_of_neighbours_have_on_their_own_is_of_all_lanes(columns: int) -> None:
    """A row by a matrix all of whose rows are alike: its columns depend on nothing that is summed,
    and their sums are made side by side."""
    x = g.input(0, Type((3, 2, 1, 9), DType.F32))
    y = g.input(1, Type((1, 3, 1, columns), DType.F32))
    rows = g.permute(x, (1, 0, 2, 3))
    _same([g.matmul(rows, g.expand(y, (2, 3, 9, columns)))], [x, y])
