"""Sums over the rows of a batch: those of its halves are parts of them, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stack.framework as ht
from hal.core.dtypes import DType
from hal.tile.build import Builder, add, const, mul
from hal.tile.interpret import interpret
from hal.tile.kernel import For, Load
from hal.tile.node import Node, Type
from hal.tile.walk import statements
from stack import ops as g
from stack.compiler.graph import prepare
from stack.compiler.pairs import SERIAL, SERIAL_PRODUCTS, Sums, completed, halved, levels, waiting
from stack.compiler.program import GraphRequest
from stack.compiler.text.llvm.ahead import unused
from stack.compiler.text.llvm.render import render
from tests.compiler.lowered import SIMD, lowered, run_lowered
from tests.draw import sample

RNG = np.random.default_rng(8)


@given(st.integers(0, 10**6), st.integers(1, 10**4), st.sampled_from([1, 4, 8]))
def test_a_size_is_halved_until_it_is_short_or_odd(size, most, step):
    short = halved(size, most, step)
    parts = size // short if short else 1
    assert short * parts == size
    assert parts & (parts - 1) == 0
    assert short <= most or short % (2 * step)
    assert parts == 1 or (short % step == 0 and 2 * short > most)


def blocks_completed(blocks: int) -> list[int]:
    """For each block the number of waiting sums that it completes, computed by a kernel."""
    b = Builder("counts")
    out = b.buffer("out", DType.I64, reads=False, writes=True)
    b.loop(0, blocks, 1, lambda i: b.store(out, i, completed(i, blocks)) and None)
    found = np.zeros(blocks, np.int64)
    interpret(b.kernel(), (1, 1, 1), {"out": found}, {})
    return found.tolist()


@pytest.mark.parametrize("blocks", range(1, 34))
def test_the_counter_adds_each_block_once_and_equal_numbers_of_blocks(blocks):
    held: dict[int, range] = {}
    for number, done in enumerate(blocks_completed(blocks)):
        total = range(number, number + 1)
        for level in range(done):
            other = held.pop(level)
            assert other.stop == total.start
            assert len(other) == len(total) == 1 << level
            total = range(other.start, total.stop)
        held[done] = total
    last = held.pop(done)
    assert done not in waiting(blocks)
    for level in waiting(blocks):
        last = range(held.pop(level).start, last.stop)
    assert (last, held) == (range(blocks), {})
    assert max(waiting(blocks), default=0) < max(1, levels(blocks))


def in_pairs(parts: list[np.ndarray]) -> np.ndarray:
    """Neighbours first, then pairs of pairs."""
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


COMPUTED = {
    "product": (2 * SERIAL_PRODUCTS, lambda x, y: ht.matmul(x.T, y)),
    "rows": (2 * SERIAL, lambda x, y: (x * y.sum(1, keepdim=True)).sum(0)),
    "batch and place": (2 * SERIAL, lambda x, y: (x.reshape(-1, 8, x.shape[1]) * 0.3).sum((0, 1))),
}


SIZES = [(1, 5), (2, 64), (3, 24), (8, 130), (64, 40)]


@pytest.mark.parametrize(
    ("computed", "rows", "columns"),
    sample("parts of rows", [(name, *size) for name in COMPUTED for size in SIZES], 6),
)
def test_parts_of_the_rows_make_the_sum_of_all(computed, rows, columns):
    unit, function = COMPUTED[computed]
    x, y = (RNG.standard_normal((8 * unit * rows, n), np.float32) for n in (columns, 17))
    step = ht.jit(function, dynamic=False)
    whole = step(x, y).numpy()
    for ranks in (2, 4, 8):
        pieces = zip(np.split(x, ranks), np.split(y, ranks), strict=True)
        parts = [step(*(np.ascontiguousarray(p) for p in piece)).numpy() for piece in pieces]
        np.testing.assert_array_equal(in_pairs(parts), whole, f"{ranks} parts")


SMALL = replace(SIMD, limits=replace(SIMD.limits, caches=(32 << 10, 512 << 10, 1 << 10)))
"""A device whose last cache holds 256 floats."""


@pytest.mark.parametrize("info", [SIMD, SMALL], ids=["in a cache", "in memory"])
@pytest.mark.parametrize(("rows", "columns"), [(16, 17), (37, 65), (64, 100), (96, 33)])
def test_sums_down_columns_go_along_rows_in_the_order_of_pairs(rows, columns, info):
    """What no cache holds is asked for."""
    x = RNG.standard_normal((rows, columns), np.float32)
    y = RNG.standard_normal(columns, np.float32)
    a, b = (g.input(i, Type(v.shape, DType.F32)) for i, v in enumerate((x, y)))
    total = g.reduce("sum", a, 0)
    outputs = [
        total,
        g.reduce("max", a, 0),
        g.reduce("sum", g.mul(a, g.expand(g.reshape(b, (1, columns)), x.shape)), 0),
        g.mul(g.reshape(total, (columns,)), b),
    ]
    found, program = run_lowered(outputs, [a, b], [x, y], info=info)
    asked = [len(unused(c.kernel)) for c in program.calls if c.kernel.name.startswith("sum")]
    assert asked
    assert all(bool(n) == (info is SMALL) for n in asked)
    short = halved(rows, SERIAL)
    parts = [np.add.accumulate(p, 0)[-1] for p in np.split(x, rows // short)]
    exact = in_pairs(parts)
    np.testing.assert_array_equal(found[0].reshape(-1), exact)
    np.testing.assert_array_equal(found[1].reshape(-1), x.max(0))
    np.testing.assert_allclose(found[2].reshape(-1), (x * y).sum(0), 1e-4, 1e-4)
    np.testing.assert_array_equal(found[3].reshape(-1), exact * y)


@pytest.mark.parametrize("info", [SIMD, SMALL], ids=["in a cache", "in memory"])
def test_sums_along_rows_side_by_side_ask_for_the_next_rows(info):
    """They are rows that no cache holds; the last ones ask for themselves. Of others one is read
    after the other."""
    x = RNG.integers(-9, 9, (32, 1024)).astype(np.float32)
    a = g.input(0, Type(x.shape, DType.F32))
    found, program = run_lowered([g.reduce("sum", a, 1)], [a], [x], info=info)
    np.testing.assert_array_equal(found[0], x.sum(1, keepdims=True))
    assert [len(unused(c.kernel)) for c in program.calls] == [int(info is SMALL)]
    loads = [s for c in program.calls for s in statements(c.kernel.body) if isinstance(s, Load)]
    assert {len(s.result.shape) for s in loads} == {2 if info is SMALL else 1}


def test_a_matrix_that_the_second_cache_does_not_hold_is_taken_to_be_in_memory():
    """By rows and by columns; what is summed alone is not."""
    info = replace(SIMD, limits=replace(SIMD.limits, caches=(1 << 10, 1 << 10, 32 << 20)))
    x, y = (RNG.integers(-9, 9, s).astype(np.float32) for s in ((64, 1024), (1, 1024)))
    a, b = (g.input(i, Type(v.shape, DType.F32)) for i, v in enumerate((x, y)))
    product = g.mul(a, g.expand(b, a.shape))
    for value, exact, asks in ((product, x * y, True), (a, x, False)):
        for axis in (0, 1):
            total = g.reduce("sum", value, axis)
            found, program = run_lowered([total], [a, b], [x, y], info=info)
            np.testing.assert_array_equal(found[0], exact.sum(axis, keepdims=True))
            assert [len(unused(c.kernel)) > 0 for c in program.calls] == [asks]


def standardised(a: Node, weight: Node, count: int) -> list[Node]:
    """Columns less their mean, by their own deviation and a weight: two sums, one after the other,
    what each column has, and what is computed from it; the squares' mean alone, too."""

    def down(row: Node) -> Node:
        return g.expand(row, a.shape)

    def const(value: float) -> Node:
        return g.expand(g.reshape(g.const(value, DType.F32), (1, 1)), (1, a.shape[1]))

    each = const(1 / count)
    mean = g.mul(g.reduce("sum", a, 0), each)
    apart = g.sub(a, down(mean))
    variance = g.mul(g.reduce("sum", g.mul(apart, apart), 0), each)
    scale = g.div(weight, g.sqrt(g.add(variance, const(1e-5))))
    return [g.mul(apart, down(scale)), mean, g.sqrt(variance)]


@pytest.mark.parametrize(("rows", "columns"), [(32, 48), (37, 65), (64, 100), (96, 96)])
def test_passes_down_columns_go_along_rows_in_the_order_of_pairs(rows, columns):
    """Each of the three takes eight rows at a time, for more columns than eight: down a block of
    columns each line that is read would be in a page of its own."""
    x = RNG.standard_normal((rows, columns), np.float32) + 3
    y = RNG.standard_normal((1, columns), np.float32)
    a, b = (g.input(i, Type(v.shape, DType.F32)) for i, v in enumerate((x, y)))
    found, program = run_lowered(standardised(a, b, rows), [a, b], [x, y])

    def total(terms):
        blocks = np.split(terms, rows // halved(rows, SERIAL))
        return in_pairs([np.add.accumulate(p, 0)[-1] for p in blocks])[None]

    each = np.float32(1 / rows)
    mean = total(x) * each
    variance = total((x - mean) ** 2) * each
    scale = y / np.sqrt(variance + np.float32(1e-5))
    for got, exact in zip(found, [(x - mean) * scale, mean, np.sqrt(variance)], strict=True):
        np.testing.assert_array_equal(got.reshape(exact.shape), exact)
    (call,) = program.calls
    loops = [s for s in statements(call.kernel.body) if isinstance(s, For)]
    over = [s for s in loops if any(isinstance(inner, For) for inner in s.body)]
    assert sum(s.step["value"] == 8 for s in over) == 3


def test_a_narrow_sum_is_rounded_before_the_next_pass_down_columns():
    """As a sum that is stored, and read again, would be."""
    x = RNG.standard_normal((48, 50), np.float32)
    a = g.input(0, Type(x.shape, DType.F32))
    narrow = g.cast(g.reduce("sum", g.cast(a, DType.BF16), 0), DType.F32)
    outputs = [g.sub(a, g.expand(narrow, x.shape)), narrow]
    (apart, total), _ = run_lowered(outputs, [a], [x])
    np.testing.assert_array_equal(apart, x - total.reshape(1, -1))
    assert not (total.view(np.uint32) & 0xFFFF).any()


def test_a_long_sum_is_as_good_as_its_terms():
    x = np.full((1 << 17, 4), 0.1, np.float32)
    exact = np.float32(0.1).astype(np.float64) * (1 << 17)
    eps = np.finfo(np.float32).eps
    for found in (ht.tensor(x).sum(0), ht.matmul(ht.tensor(x).T, ht.ones(1 << 17, 1))):
        error = np.abs(found.numpy().astype(np.float64) - exact) / exact
        assert error.max() < (SERIAL_PRODUCTS + 12) * eps / 2


def test_parts_of_a_batch_make_the_gradient_of_a_projection_that_is_rotated():
    """Its gradient has to be stored for the product with the batch, which was stored turned, so
    that nothing told that its rows are those of a batch."""
    rows, length, heads, width = 8, 32, 4, 16
    x = RNG.standard_normal((rows, length, heads * width), np.float32)
    given = RNG.standard_normal((rows, heads, length, width), np.float32)
    weight = RNG.standard_normal((heads * width, heads * width), np.float32)
    angles = np.outer(np.arange(length), 1 / 10000 ** (np.arange(0, width, 2) / width))
    cos, sin = (ht.tensor(v.astype(np.float32)) for v in (np.cos(angles), np.sin(angles)))

    def gradient(x, given, weight):
        leaf = weight.detach().requires_grad_()
        q = (x @ leaf.T).reshape(-1, length, heads, width).transpose(1, 2)
        a, b = q[..., : width // 2], q[..., width // 2 :]
        (ht.cat([a * cos - b * sin, a * sin + b * cos], -1) * given).sum().backward()
        return leaf.grad

    step = ht.jit(gradient, dynamic=False)
    whole = step(x, given, weight).numpy()
    pieces = zip(np.split(x, 2), np.split(given, 2), strict=True)
    parts = [step(a.copy(), b.copy(), weight).numpy() for a, b in pieces]
    np.testing.assert_array_equal(in_pairs(parts), whole)


def test_sums_down_few_long_columns_are_made_in_two_steps_of_the_same_bits() -> None:
    """Each instance reads whole rows, where no cache keeps them."""
    x = RNG.standard_normal((256, 520), np.float32)
    a = g.input(0, Type(x.shape, DType.F32))
    outputs = [g.reduce("sum", a, 0)]
    (one,), program = run_lowered(outputs, [a], [x])
    assert len(program.calls) == 1
    with patch.object(prepare, "PAST_CACHES", x.size):
        (two,), program = run_lowered(outputs, [a], [x])
    assert len(program.calls) == 2
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(("size", "width"), [(4096, 32), (48, 16), (1000, 8), (50000, 32)])
def test_short_rows_have_tiles_that_divide_them_and_long_ones_a_masked_one(size, width) -> None:
    """The width of the loads of a sum, of four registers of eight at most."""
    a = g.input(0, Type((521, size), DType.F32))
    (call, *_) = lowered(GraphRequest((g.reduce("max", a, 1),), (a,))).calls
    (loop,) = (s for s in call.kernel.body if isinstance(s, For))
    assert [s.result.shape for s in loop.body if isinstance(s, Load)] == [(width,)]


def test_sums_that_are_complete_are_added_before_the_next_part_begins():
    """Else all parts would wait beside the registers until the last one is computed."""
    b = Builder("parts")
    x = b.buffer("x", DType.F32, reads=True, writes=False)
    y = b.buffer("y", DType.F32, reads=False, writes=True)
    shape, parts = (2, 16), 8

    def step(i: Node, acc: Node) -> tuple[Node]:
        return (add(acc, b.load(x, mul(i, 32), shape, (16, 1))),)

    zeros = (const(0, DType.F32, shape),)
    sums = Sums(zeros, ("add",), 4, apart=True)
    (total,) = sums.over(b, 4 * parts, 1, step, zeros)
    b.store(y, 0, total, (16, 1))
    lines = render(b.kernel(), SIMD).text.splitlines()
    begins = [i for i, line in enumerate(lines) if line.startswith("body")]
    assert len(begins) == parts
    last = sum("fadd" in line for line in lines[begins[-1] :])
    assert last == (1 + levels(parts)) * 2 * (16 * 4 // SIMD.limits.vector_nbytes)
