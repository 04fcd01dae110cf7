"""Corners of meaning that libraries leave open or choose otherwise, by hand-written values."""

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.node import Type
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.ir.interpret import interpret
from stack.ops import OPS

NAN, INF = float("nan"), float("inf")


def computed(build, *operands):
    """The values of a graph of operands that are given as (values, dtype)."""
    arrays = [np.array(values, NUMPY[dtype]) for values, dtype in operands]
    pairs = zip(arrays, operands, strict=True)
    inputs = {g.input(i, Type(a.shape, d)): a for i, (a, (_, d)) in enumerate(pairs)}
    return interpret([build(*inputs)], inputs)[0].tolist()


@pytest.mark.parametrize(
    ("into", "expected"),
    [
        (DType.I8, [0, 127, -128, 127, -128, -1, 127]),
        (DType.U8, [0, 255, 0, 255, 0, 0, 200]),
        (DType.I64, [0, 2**63 - 1, -(2**63), 2**63 - 1, -(2**63), -1, 200]),
        (DType.U64, [0, 2**64 - 1, 0, 2**64 - 1, 0, 0, 200]),
        (DType.BOOL, [True] * 7),
    ],
)
def test_casts_of_floats_truncate_and_saturate(into, expected):
    values = [NAN, INF, -INF, 1e30, -1e30, -1.9, 200.7]
    assert computed(lambda x: g.cast(x, into), (values, DType.F64)) == expected


def test_casts_of_integers_wrap():
    assert computed(lambda x: g.cast(x, DType.I8), ([128, 255, -129], DType.I32)) == [-128, -1, 127]
    assert computed(lambda x: g.cast(x, DType.U16), ([-1], DType.I64)) == [65535]


@pytest.mark.parametrize("op", ["floordiv", "mod"])
def test_integer_division_by_zero_gives_zero(op):
    pair = ([7, -7, 0], DType.I32), ([0, 0, 0], DType.I32)
    assert computed(OPS[op], *pair) == [0, 0, 0]


def test_division_rounds_down_and_the_remainder_has_the_divisors_sign():
    pair = ([7, -7, 7, -7, -128], DType.I8), ([2, 2, -2, -2, -1], DType.I8)
    assert computed(g.floordiv, *pair) == [3, -4, -4, 3, -128]
    assert computed(g.mod, *pair) == [1, 1, -1, -1, 0]
    floats = ([7.5, -7.5, 1.0, -1.0], DType.F32), ([2, 2, -INF, INF], DType.F32)
    assert computed(g.floordiv, *floats) == [3, -4, -1, -1]
    assert computed(g.mod, *floats) == [1.5, 0.5, -INF, INF]


def test_shifts_by_the_width_or_more_leave_only_the_sign():
    pair = ([5, -5, 5, -5], DType.I8), ([8, 8, 100, 7], DType.I8)
    assert computed(g.shl, *pair) == [0, 0, 0, -128]
    assert computed(g.shr, *pair) == [0, -1, 0, -1]
    assert computed(g.shr, ([200], DType.U8), ([8], DType.U8)) == [0]


def test_extremes_keep_nan():
    x = ([[1.0, NAN, 3.0]], DType.F32)
    assert np.isnan(computed(lambda x: g.reduce("max", x), x))
    assert np.isnan(computed(lambda x: g.reduce("min", x), x))
    assert computed(lambda x: g.argmax(x, 1), x) == [[1]]
    assert computed(lambda x: g.argmin(x, 1), x) == [[1]]


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [
        ("sum", DType.F32, 0),
        ("prod", DType.I8, 1),
        ("max", DType.F16, -INF),
        ("min", DType.F32, INF),
        ("max", DType.I8, -128),
        ("min", DType.U8, 255),
        ("max", DType.BOOL, False),
        ("min", DType.BOOL, True),
    ],
)
def test_a_reduction_of_nothing_gives_the_identity(kind, dtype, expected):
    assert computed(lambda x: g.reduce(kind, x), ([], dtype)) == [expected]


def test_half_precision_sums_and_products_round_once():
    ones = ([1.0] * 3000, DType.F16)
    assert computed(lambda x: g.reduce("sum", x), ones) == [3000.0]
    assert computed(lambda x: g.scan("sum", x, 0), ones)[2999] == 3000.0


def test_indices_out_of_range_read_zero_and_write_nothing():
    x, index = ([1.0, 2.0], DType.F32), ([0, -1, 2, 1, 1], DType.I64)
    assert computed(lambda x, i: g.gather(x, i, 0), x, index) == [1, 0, 0, 2, 2]
    updates = ([1.0, 10.0, 100.0, 2.0, 3.0], DType.F32)
    added = computed(lambda x, i, u: g.scatter("sum", x, i, u, 0), x, index, updates)
    assert added == [2, 7]
