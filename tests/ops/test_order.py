"""The order of elements, all of it and its beginning, against numpy's stable sort."""

import math

import numpy as np
import pytest

import hal
from hal.core.dtypes import DType
from hal.tile.node import Type
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.ir.interpret import interpret
from stack.runtime import engine_of
from tests.draw import sample, stream

SPECIAL = (math.nan, -math.nan, 0.0, -0.0, math.inf, -math.inf, 5e-324, 1e-45)
DTYPES = (DType.F32, DType.F64, DType.BF16, DType.F16, DType.I64, DType.U64, DType.I8, DType.BOOL)
DEVICES = ("cpu:0", "opencl:0", "sunway:0")
"""Of which a run draws one: the kernels of all take 15 s of a processor to compile."""


def drawn(shape, dtype, *what):
    """Numbers of the whole range, many of them equal, and few that no other is equal to."""
    rng = np.random.default_rng(stream(f"{shape} {dtype} {what}").randrange(2**32))
    if not dtype.is_float:
        bits = rng.integers(0, 256, (*shape, 8), np.uint8).view(np.uint64)[..., 0]
        x = bits & 1 if dtype is DType.BOOL else bits
        x = np.where(rng.random(shape) < 0.5, rng.choice(x.ravel()[:3], shape), x)
        return x.astype(NUMPY[dtype])
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 5, shape)
    with np.errstate(all="ignore"):
        return np.where(rng.random(shape) < 0.3, rng.choice(SPECIAL, shape), x).astype(NUMPY[dtype])


def ordered(x, axis, descending):
    """By Python's sort, which is stable, of ranks, of which NaN has the greatest."""

    def line(row):
        rank = {v: i for i, v in enumerate(sorted({v for v in row if v == v}))}
        keys = [rank[v] if v == v else len(rank) for v in row]
        return sorted(range(len(row)), key=lambda i: -keys[i] if descending else keys[i])

    return np.apply_along_axis(lambda row: np.array(line(row.tolist())), axis, x)


def argument(x, dtype):
    return g.input(0, Type(x.shape, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "count"), [(4096, 3), (1037, 16), (257, 16), (255, 16), (7, 7)])
def test_the_first_elements_are_those_of_the_whole_order(size, count, dtype):
    for axis, shape in ((1, (2, size)), (0, (size, 2))):
        for descending in (False, True):
            x = drawn(shape, dtype, count)
            n = argument(x, dtype)
            (first,) = interpret([g.argsort_first(n, axis, count, descending)], {n: x})
            expected = np.take(ordered(x, axis, descending), range(count), axis)
            np.testing.assert_array_equal(first, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 64, 65, 300])
def test_elements_of_given_ranks_are_those_of_the_whole_order(size, dtype):
    for axis, shape in ((1, (3, size)), (0, (size, 3))):
        for count in (1, 3, 9):
            x = drawn(shape, dtype, "ranks", count)
            at = tuple(count if i == axis else n for i, n in enumerate(shape))
            ranks = np.random.default_rng(size).integers(0, size, at)
            ranks.flat[:2] = 0, size - 1
            n, r = argument(x, dtype), g.input(1, Type(at, DType.I64))
            (places,) = interpret([g.argsort_at(n, axis, r)], {n: x, r: ranks})
            expected = np.take_along_axis(ordered(x, axis, False), ranks, axis)
            np.testing.assert_array_equal(places, expected)


@pytest.mark.parametrize("count", [0, 1])
def test_of_nothing_the_first_elements_are_none(count):
    n = g.input(0, Type((0, 3), DType.F32))
    (first,) = interpret([g.argsort_first(n, 1, count)], {n: np.zeros((0, 3), np.float32)})
    assert first.shape == (0, count)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("device", sample("order on a device", DEVICES, 1))
def test_runs_are_merged_and_some_elements_are_found_on_a_device(device):
    """Runs are merged, and rows do not fill the last one."""
    x = drawn((2, 140), DType.F32, device)
    ranks = np.array([[69, 70], [139, 3]])
    n, r = argument(x, DType.F32), g.input(1, Type((2, 2), DType.I64))
    with engine_of(hal.open(device)) as engine:
        nodes = (
            g.argsort(g.slice_axis(n, 1, 0, 70), 1),
            g.argsort_first(n, 1, 2, descending=True),
            g.argsort_at(n, 1, r),
        )
        plan = engine.plan(GraphRequest(nodes, (n, r)))
        given = [engine.put(x, DType.F32), engine.put(ranks, DType.I64)]
        every, first, middle = (engine.get(a) for a in plan.run(given))
    np.testing.assert_array_equal(every, ordered(x[:, :70], 1, False))
    np.testing.assert_array_equal(first, ordered(x, 1, True)[:, :2])
    expected = np.take_along_axis(ordered(x, 1, False), ranks, 1)
    np.testing.assert_array_equal(middle, expected)
