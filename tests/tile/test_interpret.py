"""Statements in the interpreter: memory, order, control, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.tile import build
from hal.tile.build import Builder, const
from hal.tile.errors import TileError
from hal.tile.evaluate import evaluate
from hal.tile.interpret import interpret
from hal.tile.kernel import Alloc, If, Kernel
from hal.tile.numeric import NUMPY
from hal.tile.verify import verify

F32, I64, I32 = DType.F32, DType.I64, DType.I32


def run(b: Builder, grid=(1,), seed=None, **arguments) -> None:
    """Verify and run; arrays are buffers, numbers are scalars."""
    kernel = b.kernel()
    verify(kernel)
    arrays = {n: a for n, a in arguments.items() if isinstance(a, np.ndarray)}
    interpret(kernel, grid, arrays, {n: a for n, a in arguments.items() if n not in arrays}, seed)


@given(st.integers(0, 40), st.sampled_from([1, 4, 8]), st.none() | st.integers(0, 9))
@settings(deadline=None, max_examples=40)
def test_masked_map_over_a_grid(n: int, width: int, seed: int | None) -> None:
    b = Builder("axpy")
    x, y, size = b.buffer("x", F32), b.buffer("y", F32, writes=True), b.scalar("n", I64)
    start = build.mul(build.program_id(), width)
    left = build.sub(size, start)
    block = ((width,), (1,), (left,))
    value = build.fma(b.load(x, start, *block), 2.0, b.load(y, start, *block))
    b.store(y, start, value, (1,), (left,))
    xs, ys = np.arange(n, dtype=np.float32), np.full(n, 3, np.float32)
    run(b, (-(-n // width),), seed, x=xs, y=ys, n=n)
    np.testing.assert_array_equal(ys, xs * 2 + 3)


def test_strides_and_other() -> None:
    b = Builder("k")
    x, y = b.buffer("x", I32), b.buffer("y", I32, writes=True)
    b.store(y, 0, b.load(x, 0, (3, 4), (5, -1), (2, None), const(-7, I32)), (4, 1))
    xs, ys = np.arange(30, dtype=np.int32), np.zeros(12, np.int32)
    with pytest.raises(TileError, match="index -1 is outside of x, which has 30 elements"):
        run(b, x=xs, y=ys)
    b = Builder("k")
    x, y = b.buffer("x", I32), b.buffer("y", I32, writes=True)
    b.store(y, 0, b.load(x, 9, (3, 4), (5, -1), (2, None), const(-7, I32)), (4, 1))
    run(b, x=xs, y=ys)
    wanted = [[9 + 5 * i - j if i < 2 else -7 for j in range(4)] for i in range(3)]
    np.testing.assert_array_equal(ys.reshape(3, 4), wanted)


def test_a_load_without_other_gives_zero_where_it_is_not_valid() -> None:
    b = Builder("k")
    x = b.buffer("x", F32, writes=True)
    b.store(x, 0, b.load(x, 0, (4,), (1,), (1,)), (1,))
    xs = np.full(4, 5, np.float32)
    run(b, x=xs)
    np.testing.assert_array_equal(xs, [5, 0, 0, 0])


@pytest.mark.parametrize("at", [-1, 4])
@pytest.mark.parametrize("what", ["load", "store", "gather", "scatter", "atomic", "copy"])
def test_out_of_bounds_is_an_error(what: str, at: int) -> None:
    b = Builder("k")
    x, i = b.buffer("x", F32, writes=True), const(at, I64)
    one = const(1.0, F32)
    {
        "load": lambda: b.load(x, i),
        "store": lambda: b.store(x, i, one),
        "gather": lambda: b.gather(x, i),
        "scatter": lambda: b.scatter(x, i, one),
        "atomic": lambda: b.atomic("add", x, i, one),
        "copy": lambda: (b.copy(b.access(x, 0, ()), b.access(x, i, ()), ()), b.wait()),
    }[what]()
    with pytest.raises(TileError, match=f"kernel k, program instance .0, 0, 0.: index {at} is out"):
        run(b, x=np.zeros(4, np.float32))


def test_masked_elements_are_not_touched() -> None:
    b = Builder("k")
    x = b.buffer("x", F32, writes=True)
    index = build.sub(build.arange(4), 1)
    mask = build.binary("le", 0, index)
    got = b.gather(x, index, mask, const(9.0, F32))
    b.scatter(x, index, build.add(got, 1.0), mask)
    b.atomic("add", x, index, build.broadcast(const(10.0, F32), (4,)), mask)
    xs = np.arange(3, dtype=np.float32)
    run(b, x=xs)
    np.testing.assert_array_equal(xs, [11, 12, 13])


@pytest.mark.parametrize("dtype", [F32, DType.F16, DType.BF16, I32, DType.U8])
def test_atomics_see_each_other(dtype: DType) -> None:
    b = Builder("k")
    x = b.buffer("x", dtype, writes=True)
    values = build.add(build.arange(4, dtype), 1)
    for i, kind in enumerate(("add", "min", "max", "exchange")):
        b.atomic(kind, x, const(i, I64, (4,)), values)
    xs = np.full(4, 3, NUMPY[dtype])
    run(b, x=xs)
    np.testing.assert_array_equal(xs, [13, 1, 4, 4])


def test_histogram_over_instances() -> None:
    b = Builder("k")
    x, h = b.buffer("x", I32), b.buffer("h", I64, writes=True)
    values = b.load(x, build.mul(build.program_id(), 5), (5,), (1,))
    b.atomic("add", h, values, const(1, I64, (5,)))
    xs, hs = np.random.default_rng(0).integers(0, 7, 50, np.int32), np.zeros(7, np.int64)
    run(b, (10,), 4, x=xs, h=hs)
    np.testing.assert_array_equal(hs, np.bincount(xs, minlength=7))


def test_program_ids_cover_the_grid() -> None:
    b = Builder("k")
    x = b.buffer("x", I64, writes=True)
    where = build.program_id(2)
    for axis in (1, 0):
        where = build.add(build.mul(where, build.num_programs(axis)), build.program_id(axis))
    b.store(x, where, build.add(b.load(x, where), build.add(where, 1)))
    xs = np.zeros(24, np.int64)
    run(b, (2, 3, 4), 7, x=xs)
    np.testing.assert_array_equal(xs, np.arange(24) + 1)


def test_a_zero_in_the_grid_runs_nothing() -> None:
    b = Builder("k")
    b.store(b.buffer("x", F32, writes=True), 99, const(1.0, F32))
    run(b, (3, 0), x=np.zeros(1, np.float32))


@pytest.mark.parametrize("dtype", list(DType))
def test_scratch_is_undefined_at_first(dtype: DType) -> None:
    b = Builder("k")
    x, s = b.buffer("x", dtype, writes=True), b.alloc("s", dtype, 3)
    b.store(x, 0, b.load(s, 0, (3,), (1,)), (1,))
    xs = np.zeros(3, NUMPY[dtype])
    run(b, x=xs)
    if dtype.is_float:
        assert np.isnan(xs.astype(np.float64)).all()
    else:
        assert xs.tobytes() == (b"\x01" if dtype is DType.BOOL else b"\xab") * xs.nbytes


def _copied(wait_first: bool) -> np.ndarray:
    b = Builder("k")
    x, y = b.buffer("x", F32), b.buffer("y", F32, writes=True)
    s = b.alloc("s", F32, 4)
    b.store(s, 0, const(7.0, F32, (4,)), (1,))
    b.copy(b.access(s, 0, (1,), (3,)), b.access(x, 1, (2,)), (4,), channel=5)
    if wait_first:
        b.wait(5)
    b.store(y, 0, b.load(s, 0, (4,), (1,)), (1,))
    if not wait_first:
        b.wait(5)
    ys = np.zeros(4, np.float32)
    run(b, x=np.arange(9, dtype=np.float32), y=ys)
    return ys


def test_a_copy_is_seen_after_the_wait_and_not_before() -> None:
    np.testing.assert_array_equal(_copied(wait_first=True), [1, 3, 5, 7])
    np.testing.assert_array_equal(_copied(wait_first=False), [7, 7, 7, 7])


def test_a_wait_finishes_its_own_channel_only() -> None:
    b = Builder("k")
    x, y = b.buffer("x", F32), b.buffer("y", F32, writes=True)
    b.copy(b.access(y, 0, (1,)), b.access(x, 0, (1,)), (2,), channel=0)
    b.copy(b.access(y, 2, (1,)), b.access(x, 2, (1,)), (2,), channel=1)
    b.wait(1)
    b.store(y, 4, b.load(y, 0, (4,), (1,)), (1,))
    b.wait(0)
    ys = np.zeros(8, np.float32)
    run(b, x=np.arange(1, 5, dtype=np.float32), y=ys)
    np.testing.assert_array_equal(ys, [1, 2, 3, 4, 0, 0, 3, 4])


def test_a_copy_without_a_wait_is_an_error() -> None:
    b = Builder("k")
    x = b.buffer("x", F32, writes=True)
    n = b.scalar("n", I64)
    b.copy(b.access(x, 0, ()), b.access(x, 1, ()), ())
    with b.when(build.binary("lt", 0, n)):
        b.wait()
    run(b, x=np.zeros(2, np.float32), n=1)
    with pytest.raises(TileError, match=r"ends without a Wait for the copies of channels \[0\]"):
        run(b, x=np.zeros(2, np.float32), n=0)


@given(st.integers(-3, 9), st.integers(-3, 9), st.integers(1, 4))
@settings(deadline=None)
def test_loops_carry_values(start: int, stop: int, step: int) -> None:
    b = Builder("k")
    x, n = b.buffer("x", I64, writes=True), b.scalar("n", I64)

    def body(i, total, last):
        return [build.add(total, i), total]

    for k, v in enumerate(b.loop(start, n, step, body, [const(0, I64), const(-1, I64)])):
        b.store(x, k, v)
    xs = np.zeros(2, np.int64)
    run(b, x=xs, n=stop)
    indices = list(range(start, stop, step))
    assert list(xs) == [sum(indices), sum(indices[:-1]) if indices else -1]


def test_values_of_a_loop_are_computed_anew_in_each_iteration() -> None:
    b = Builder("k")
    x = b.buffer("x", I64, writes=True)

    def inner(i):
        def body(j):
            v = b.load(x, j)
            b.store(x, j, build.add(v, build.mul(build.add(i, 1), build.add(j, 1))))

        b.loop(0, 3, 1, body)

    b.loop(0, 2, 1, inner)
    xs = np.zeros(3, np.int64)
    run(b, x=xs)
    np.testing.assert_array_equal(xs, [3, 6, 9])


@pytest.mark.parametrize("n", [0, 1])
def test_if_takes_one_branch(n: int) -> None:
    b = Builder("k")
    x, size = b.buffer("x", F32, writes=True), b.scalar("n", I64)
    condition = build.binary("lt", 0, size)
    with b.when(condition):
        b.store(x, 0, const(1.0, F32))
    b.store(x, 1, const(2.0, F32))
    then, other = b.kernel().body
    kernel = Kernel("k", b.kernel().params, (If(condition, then.then, (other,)),))
    verify(kernel)
    xs = np.zeros(2, np.float32)
    interpret(kernel, (1,), {"x": xs}, {"n": n})
    np.testing.assert_array_equal(xs, [1, 0] if n else [0, 2])


def test_a_step_below_one_is_an_error() -> None:
    b = Builder("k")
    n = b.scalar("n", I64)
    b.loop(0, 1, n, lambda i: None)
    with pytest.raises(TileError, match="a loop's step is 0; it must be positive"):
        run(b, n=0)


def test_instances_do_not_share_scratch() -> None:
    b = Builder("k")
    x, s = b.buffer("x", F32, writes=True), b.alloc("s", F32, 1)
    b.store(x, build.program_id(), b.load(s, 0))
    b.store(s, 0, const(1.0, F32))
    xs = np.zeros(3, np.float32)
    run(b, (3,), x=xs)
    assert np.isnan(xs).all()


@pytest.mark.parametrize(
    ("arrays", "scalars", "message"),
    [
        ({}, {"n": 1}, r"takes buffers \['x'\], not \[\]"),
        ({"x": np.zeros(1, np.float32)}, {}, r"takes scalars \['n'\], not \[\]"),
        ({"x": np.zeros(1)}, {"n": 1}, "give a one-dimensional float32 array, not float64"),
        ({"x": np.zeros((1, 1), np.float32)}, {"n": 1}, r"of shape \(1, 1\)"),
        (
            {"x": np.zeros(1, np.float32)},
            {"n": 2**63},
            "scalar n: 9223372036854775808 does not fit i64",
        ),
        ({"x": np.zeros(1, np.float32)}, {"n": 1.5}, r"scalar n: 1.5 does not fit i64"),
        ({"x": np.zeros(1, np.float32)}, {"n": np.nan}, r"scalar n: nan does not fit i64"),
    ],
)
def test_arguments_must_fit(arrays, scalars, message: str) -> None:
    b = Builder("k")
    b.buffer("x", F32)
    b.scalar("n", I64)
    with pytest.raises(TileError, match=message):
        interpret(b.kernel(), (1,), arrays, scalars)


def test_a_kernel_that_was_not_verified_fails_with_words() -> None:
    b = Builder("k")
    x = b.buffer("x", F32, writes=True)
    b.store(x, 0, b.var(build.Type((), F32)))
    with pytest.raises(TileError, match=r"reads var.* before any statement defined it"):
        interpret(b.kernel(), (1,), {"x": np.zeros(1, np.float32)}, {})
    scratch = Builder("k")
    scratch.load(scratch.alloc("s", F32, 1), 0)
    body = tuple(s for s in scratch.kernel().body if not isinstance(s, Alloc))
    with pytest.raises(TileError, match="uses memory s, which nothing declares here"):
        interpret(Kernel("k", (), body), (1,), {}, {})


def test_evaluate_gives_the_value_of_an_expression() -> None:
    found = evaluate(build.scan("sum", build.mul(build.arange(4), 3), 0))
    np.testing.assert_array_equal(found, [0, 3, 9, 18])
