"""Every operation on every element type it takes, against Python's own arithmetic."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile import build
from hal.tile.build import Builder
from hal.tile.interpret import interpret
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from hal.tile.ops import BINARY, COMPARE, OPS, TRANSCENDENTAL, UNARY
from hal.tile.verify import verify
from tests.tile import truth


def run(make, *inputs: np.ndarray) -> np.ndarray:
    """The value of an expression of loaded inputs, through a kernel that keeps the rules."""
    b = Builder("one")
    memories = [b.buffer(f"x{i}", _dtype(x)) for i, x in enumerate(inputs)]
    tiles = [b.load(m, 0, (x.size,), (1,)) for m, x in zip(memories, inputs, strict=True)]
    value: Node = make(*tiles)
    value = build.reshape(value, (value.type.size,))
    b.store(b.buffer("out", value.dtype, writes=True), 0, value, (1,))
    out = np.zeros(value.type.size, NUMPY[value.dtype])
    verify(b.kernel())
    interpret(b.kernel(), (1,), {f"x{i}": x for i, x in enumerate(inputs)} | {"out": out}, {})
    return out


def _dtype(x: np.ndarray) -> DType:
    return next(d for d, n in NUMPY.items() if n == x.dtype)


def columns(dtype: DType, count: int) -> list[np.ndarray]:
    rows = list(itertools.product(truth.samples(dtype), repeat=count))
    return [np.array(column, NUMPY[dtype]) for column in zip(*rows, strict=True)]


def assert_same(found: np.ndarray, wanted: list[truth.Number], ulp: int = 0) -> None:
    expected = np.array(wanted, found.dtype)
    if found.dtype.kind not in "fV":
        np.testing.assert_array_equal(found, expected)
        return
    got, wide = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        near = np.abs(got - wide) <= np.spacing(np.abs(expected)).astype(np.float64) * ulp
    same = (got == wide) | (np.isnan(got) & np.isnan(wide)) | near
    assert same.all(), (found[~same], expected[~same])
    zero = (wide == 0) & (got == 0)
    assert (np.signbit(got[zero]) == np.signbit(wide[zero])).all()


@pytest.mark.parametrize("op", sorted(UNARY | BINARY | COMPARE))
def test_elementwise(op: str) -> None:
    for dtype in (d for d in DType if OPS[op].takes(d)):
        inputs = columns(dtype, OPS[op].arity)
        if op in ("min", "max") and dtype.is_float:
            inputs = [np.where(x == 0, np.abs(x), x) for x in inputs]  # a zero's sign is free
        make = build.unary if len(inputs) == 1 else build.binary
        with np.errstate(all="ignore"):
            found = run(lambda *xs, make=make: make(op, *xs), *inputs)
            numbers = zip(*([truth.from_numpy(v) for v in x] for x in inputs), strict=True)
            wanted = [truth.compute(op, dtype, *xs) for xs in numbers]
            assert_same(found, wanted, ulp=1 if op in (*TRANSCENDENTAL, "pow") else 0)


@pytest.mark.parametrize("dtype", [d for d in DType if OPS["fma"].takes(d)])
def test_fma_rounds_once(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    if dtype.is_float:
        a, b, c = (rng.standard_normal(300) for _ in range(3))
        inputs = [a.astype(NUMPY[dtype]), b.astype(NUMPY[dtype]), (-a * b).astype(NUMPY[dtype])]
        inputs[2][150:] = c[150:] * 1e3
        inputs[2][:5] = np.nan, np.inf, -np.inf, 0.0, -0.0
    else:
        low, high = truth.limits(dtype)
        inputs = [rng.integers(low, high, 300, NUMPY[dtype], endpoint=True) for _ in range(3)]
    found = run(build.fma, *inputs)
    numbers = zip(*([truth.from_numpy(v) for v in x] for x in inputs), strict=True)
    assert_same(found, [truth.multiply_add(dtype, *xs) for xs in numbers])


def test_fma_differs_from_two_roundings() -> None:
    x = np.array([1 + 2**-12], np.float32)
    c = np.array([-1.0], np.float32)
    assert run(build.fma, x, x, c)[0] == 2**-11 + 2**-24
    assert run(lambda a, b, c: build.add(build.mul(a, b), c), x, x, c)[0] == 2**-11


@pytest.mark.parametrize("source", list(DType))
def test_cast(source: DType) -> None:
    values = truth.samples(source)
    if source.is_float:
        values += [1e30, -1e30, 127.5, -128.5, 255.9, 65535.5, 2.0**31, 2.0**63, -(2.0**63), 1e-30]
    if source.is_int and source.bits >= 32:
        values += [2**24 + 1, 2**24 + 3, 2**30 + 2**7, 2**25 + 2**18 + 1]
    with np.errstate(all="ignore"):
        x = np.array(values, np.float64 if source.is_float else NUMPY[source]).astype(NUMPY[source])
        for to in DType:
            wanted = [truth.convert(truth.from_numpy(v), source, to) for v in x]
            assert_same(run(lambda x, to=to: build.cast(x, to), x), wanted)


@pytest.mark.parametrize("a", [d for d in DType if d is not DType.BOOL])
def test_bitcast(a: DType) -> None:
    data = np.frombuffer(np.random.default_rng(1).bytes(a.nbytes * 16), NUMPY[a])
    for b in (d for d in DType if d.bits == a.bits and d is not DType.BOOL):
        assert run(lambda x, b=b: build.bitcast(x, b), data).tobytes() == data.tobytes(), b


@pytest.mark.parametrize("dtype", list(DType))
def test_where(dtype: DType) -> None:
    a, b = columns(dtype, 2)
    condition = np.arange(a.size) % 3 == 0
    wanted = [x if c else y for c, x, y in zip(condition, a, b, strict=True)]
    assert run(build.where, condition, a, b).tobytes() == np.array(wanted, a.dtype).tobytes()


def test_movement() -> None:
    x = np.arange(24, dtype=np.int32)
    cube = x.reshape(2, 3, 4)

    def tile(t):
        return build.transpose(build.reshape(t, (2, 3, 4)), (2, 0, 1))

    np.testing.assert_array_equal(run(tile, x), cube.transpose(2, 0, 1).ravel())
    wide = run(lambda t: build.broadcast(build.reshape(t, (24, 1)), (2, 24, 3)), x)
    np.testing.assert_array_equal(wide, np.broadcast_to(x[:, None], (2, 24, 3)).ravel())


@pytest.mark.parametrize("kind", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.BOOL])
def test_reduce_and_scan(dtype: DType, kind: str) -> None:
    x = np.random.default_rng(2).integers(1, 4, 24).astype(NUMPY[dtype])
    whole = x.reshape(2, 3, 4).astype(np.int64)
    ufunc = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[kind]

    def wanted(found):
        """Whole numbers as the type holds them."""
        wide = found.ravel().astype(NUMPY[dtype.computed_in])
        return wide.astype(NUMPY[dtype]).astype(np.float64)

    for axis in range(3):
        for make, numbers in (
            (build.reduce, ufunc.reduce(whole, axis)),
            (build.scan, ufunc.accumulate(whole, axis)),
        ):
            found = run(
                lambda t, make=make, axis=axis: make(kind, build.reshape(t, (2, 3, 4)), axis), x
            )
            np.testing.assert_array_equal(found.astype(np.float64), wanted(numbers))


@pytest.mark.parametrize(("kind", "wanted"), [("min", [False, True]), ("max", [True, True])])
def test_reduce_of_bool(kind: str, wanted: list[bool]) -> None:
    x = np.array([True, False, True, True])
    found = run(lambda t: build.reduce(kind, build.reshape(t, (2, 2)), 1), x)
    np.testing.assert_array_equal(found, wanted)


def test_narrow_sums_are_rounded_once() -> None:
    x = np.full(300, 1.0, NUMPY[DType.BF16])
    assert float(run(lambda t: build.reduce("sum", t, 0), x)[0]) == truth.bf16(300.0)
    assert float(run(lambda t: build.scan("sum", t, 0), x)[-1]) == truth.bf16(300.0)


@pytest.mark.parametrize(
    ("inputs", "sums"),
    [(d, d) for d in DType if d is not DType.BOOL]
    + [
        (DType.BF16, DType.F32),
        (DType.F16, DType.F32),
        (DType.I8, DType.I32),
        (DType.F32, DType.F64),
    ],
)
def test_dot(inputs: DType, sums: DType) -> None:
    rng = np.random.default_rng(3)
    a, b, c = (rng.integers(0, 5, n).astype(NUMPY[inputs]) for n in (6, 12, 8))
    found = run(
        lambda a, b, c: build.dot(
            build.reshape(a, (2, 3)),
            build.reshape(b, (3, 4)),
            build.reshape(build.cast(c, sums), (2, 4)),
        ),
        a,
        b,
        c,
    )
    whole = [x.astype(np.int64) for x in (a, b, c)]
    exact = whole[0].reshape(2, 3) @ whole[1].reshape(3, 4) + whole[2].reshape(2, 4)
    np.testing.assert_array_equal(found.astype(np.int64), exact.ravel())


def test_integer_dot_wraps() -> None:
    x = np.array([100], np.int8)

    def square(t):
        one = build.reshape(t, (1, 1))
        return build.dot(one, one, one)

    assert run(square, x)[0] == truth.wrap(10100, DType.I8)


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.BOOL])
def test_arange(dtype: DType) -> None:
    found = run(lambda t: build.add(build.arange(5, dtype), t), np.zeros(5, NUMPY[dtype]))
    np.testing.assert_array_equal(found, np.arange(5))
