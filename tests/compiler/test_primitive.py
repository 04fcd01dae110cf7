"""Definitions of operations by what every machine has, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile import build as b
from hal.tile.evaluate import Instance, value_of
from hal.tile.node import Node, Type, node, rebuild, toposort
from hal.tile.numeric import NUMPY, Array, bounds, convert, quiet
from hal.tile.types import problem
from stack.compiler.text.primitive import HALVES, SATURATION, computed, definition

INTEGERS = [d for d in DType if d.is_int]
FLOATS = [d for d in DType if d.is_float]
NARROW = [d for d in DType if d.is_narrow]
EVERYTHING = frozenset({SATURATION, HALVES, "exp"})
rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _quiet():
    with quiet():
        yield


def lowered(root: Node, has: frozenset[str] = frozenset()) -> Node:
    """An expression of primitive nodes alone."""
    done: dict[Node, Node] = {}
    for n in toposort((root,)):
        same = rebuild(n, tuple(done[s] for s in n.srcs))
        new = computed(same)
        found = definition(new, has)
        done[n] = new if new is same and found is None else lowered(found or new, has)
    return done[root]


def data(dtype: DType) -> Array:
    """Values from the whole range of a type, and its edges, against each other."""
    if dtype.is_float:
        words = rng.integers(0, 256, (3000, dtype.nbytes), np.uint8)
        if dtype.bits <= 16:
            words = np.arange(1 << dtype.bits, dtype=f"u{dtype.nbytes}").view(np.uint8)
        edges = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0**31, -(2.0**31), 2.0**63, 0.5]
        edges += [float(e + s) for d in INTEGERS for e in bounds(d) for s in (-1, 0, 1)]
        found = [np.asarray(edges).astype(NUMPY[dtype]), words.reshape(-1).view(NUMPY[dtype])]
        return np.concatenate(found)
    if dtype is DType.BOOL:
        return np.array([False, True])
    low, high = bounds(dtype)
    small = [v for v in range(-9, 80) if low <= v <= high]
    whole = [int(low), low + 1, high - 1, high, *small]
    return np.concatenate(
        [np.array(whole, NUMPY[dtype]), rng.integers(low, high, 60, NUMPY[dtype], endpoint=True)]
    )


def agrees(
    make, *arrays: Array, has: frozenset[str] = frozenset(), dtypes: tuple[DType, ...]
) -> None:
    """What `make` makes of variables has the values of what it is lowered to."""
    given = {
        node("var", Type(a.shape, d), id=i): a
        for i, (a, d) in enumerate(zip(arrays, dtypes, strict=True))
    }
    root = make(*given)
    low = lowered(root, has)
    for n in toposort((low,)):
        assert problem(n) is None
        assert definition(n, has) is None, n
    if not has:
        assert not any(n.dtype.is_narrow and n.op not in _MOVES for n in toposort((low,)))
    want, got = (value_of(Instance("k", (), (), {}, {}, dict(given)), r) for r in (root, low))
    assert got.dtype == want.dtype
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
        zero = want.astype(np.float64) == 0
        np.testing.assert_array_equal(np.signbit(got)[zero], np.signbit(want)[zero])


_MOVES = ("var", "const", "bitcast", "where", "broadcast")


def pairs(dtype: DType) -> tuple[Array, Array]:
    x = data(dtype)
    if x.size > 500:
        return x, rng.permutation(x)
    return tuple(a.reshape(-1) for a in np.meshgrid(x, x))


@pytest.mark.parametrize("op", ["div", "rem", "shl", "shr", "min", "max"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_whole_numbers(op: str, dtype: DType) -> None:
    agrees(lambda x, y: b.binary(op, x, y), *pairs(dtype), dtypes=(dtype, dtype))
    for value in {0, 1, 3, dtype.bits - 1, dtype.bits, bounds(dtype)[0], bounds(dtype)[1]}:
        agrees(lambda x, v=value: b.binary(op, x, v), data(dtype), dtypes=(dtype,))
        agrees(lambda x, v=value: b.binary(op, b.const(v, dtype), x), data(dtype), dtypes=(dtype,))


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_one_operand(dtype: DType) -> None:
    agrees(lambda x: b.unary("abs", x), data(dtype), dtypes=(dtype,))
    agrees(lambda x: b.unary("neg", x), data(dtype), dtypes=(dtype,))
    if dtype.is_float:
        for op in ("recip", "sqrt", "floor", "round"):
            agrees(lambda x, op=op: b.unary(op, x), data(dtype), dtypes=(dtype,))
    else:
        agrees(lambda x, y: b.fma(x, y, x), *pairs(dtype), dtypes=(dtype, dtype))


@pytest.mark.parametrize("op", ["min", "max", "lt", "eq", "add"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_that_may_be_none(op: str, dtype: DType) -> None:
    x, y = pairs(dtype)
    # Of zeros with two signs either one may be the result.
    apart = (x.astype(np.float64) != 0) | (y.astype(np.float64) != 0)
    agrees(lambda a, c: b.binary(op, a, c), x[apart], y[apart], dtypes=(dtype, dtype))
    for value in (1.0, float("nan"), float("-inf")):
        agrees(lambda a, v=value: b.binary(op, a, v), data(dtype), dtypes=(dtype,))
        agrees(lambda a, v=value: b.binary(op, b.const(v, dtype), a), data(dtype), dtypes=(dtype,))


@pytest.mark.parametrize("has", [frozenset(), EVERYTHING], ids=["nothing", "everything"])
@pytest.mark.parametrize("source", DType)
def test_casts(source: DType, has: frozenset[str]) -> None:
    for target in DType:
        agrees(lambda x, t=target: b.cast(x, t), data(source), dtypes=(source,), has=has)


def test_bools() -> None:
    x, y = pairs(DType.BOOL)
    for op in ("min", "max"):
        agrees(lambda a, c, op=op: b.binary(op, a, c), x, y, dtypes=(DType.BOOL,) * 2)


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_floats_round_as_another_library_says(dtype: DType) -> None:
    """Between any two neighbours: just below, at, and just above the middle."""
    values = np.arange(1 << dtype.bits, dtype=f"u{dtype.nbytes}").view(NUMPY[dtype])
    wide = np.unique(values.astype(np.float32)[np.isfinite(values.astype(np.float32))])
    middle = (wide[1:] + (wide[:-1] - wide[1:]) / 2).astype(np.float32)
    beyond = np.float32(dtype.largest) * np.float32([1.01, 1.03, 1.04, 1.1, 2, 1e9])
    x = np.concatenate([wide, middle, np.nextafter(middle, np.float32(np.inf)), beyond, -beyond])
    x = np.concatenate([x, np.nextafter(middle, np.float32(-np.inf)), data(DType.F32)])
    want = x.astype(NUMPY[dtype])
    var = node("var", Type(x.shape, DType.F32), id=0)
    got = value_of(Instance("k", (), (), {}, {}, {var: x}), lowered(b.cast(var, dtype)))
    back = convert(want, DType.F32)
    np.testing.assert_array_equal(got.astype(np.float32), back)
    known = ~np.isnan(back)
    np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(want)[known])
