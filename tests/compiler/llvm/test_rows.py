"""Kernels that go over a row several times: what steps share is computed once, and the next row is
asked for in time."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.build import (
    Builder,
    add,
    binary,
    broadcast,
    const,
    dot,
    mul,
    program_id,
    reduce,
    unary,
)
from hal.tile.kernel import For, Kernel, Load
from hal.tile.node import Node, Type
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.compiler.text.llvm import render
from stack.compiler.text.llvm.ahead import LEAST_NBYTES, found
from tests.compiler import models
from tests.compiler.llvm.agreement import agree
from tests.compiler.llvm.machine import info
from tests.compiler.lowered import SIMD, lowered

F, I64 = DType.F32, DType.I64
WIDTH = 16


def shares(columns: int, row: Node, *, updated: bool = False) -> Kernel:
    """x by the sum of its row and that of the squares, in place or not."""
    b = Builder("shares")
    x = b.buffer("x", F, writes=updated)
    y = x if updated else b.buffer("y", F, writes=True)
    first = mul(row, columns)

    def sums(i: Node, total: Node) -> list[Node]:
        return [add(total, b.load(x, add(first, i), (WIDTH,), (1,)))]

    def squares(i: Node, total: Node) -> list[Node]:
        value = b.load(x, add(first, i), (WIDTH,), (1,))
        return [add(total, mul(value, value))]

    zero = const(0.0, F, (WIDTH,))
    (one,), (two,) = (b.loop(0, columns, WIDTH, body, (zero,)) for body in (sums, squares))
    scale = binary("div", reduce("sum", one, 0), reduce("sum", two, 0))

    def scaled(i: Node) -> None:
        value = b.load(x, add(first, i), (WIDTH,), (1,))
        b.store(y, add(first, i), mul(value, broadcast(scale, (WIDTH,))), (1,))

    b.loop(0, columns, WIDTH, scaled)
    return b.kernel()


def asked(kernel: Kernel) -> list[tuple[bool, int]]:
    """For each load that asks ahead whether it is one of the second loop's, and the bytes."""
    _, second, _ = (s for s in kernel.body if isinstance(s, For))
    own = [s for s in second.body if isinstance(s, Load)]
    return [(load in own, nbytes) for load, nbytes in found(kernel).items()]


def test_the_second_time_asks_for_the_next_row() -> None:
    assert asked(shares(2048, program_id())) == [(True, 2048 * 4)]
    assert asked(shares(2048, binary("rem", program_id(), 3))) == [(True, 2048 * 4)]


def test_short_rows_ask_for_a_later_one() -> None:
    assert asked(shares(48, program_id())) == [(True, -(-LEAST_NBYTES // 192) * 192)]


def test_what_changes_or_stays_is_not_asked_for() -> None:
    assert asked(shares(2048, program_id(), updated=True)) == []
    assert asked(shares(2048, const(0, I64))) == []


def softmax(*shape: int) -> Kernel:
    x = g.input(0, Type(shape, F))
    (call,) = lowered(GraphRequest((models.softmax(x),), (x,)), SIMD).calls
    return call.kernel


def test_short_rows_take_turns_and_each_asks_for_one() -> None:
    """Each pass over two rows before the next one; long rows one by one, and so those that are few
    or not even."""
    for shape, rows in (((64, 40), 2), ((64, 523), 1), ((63, 40), 1), ((6, 40), 1)):
        kernel = softmax(*shape)
        loops = [s for s in kernel.body if isinstance(s, For)]
        assert [bool(s.carried) for s in loops] == [True] * 2 * rows + [False] * rows
        asks = [[x for x in found(kernel) if x in s.body] for s in loops]
        assert [len(x) for x in asks] == [0] * rows + [1] * rows + [0] * rows
    x = np.random.default_rng(0).normal(size=(64, 40)).astype(np.float32)
    buffers = {"b0": x.ravel(), "b1": np.zeros(x.size, np.float32)}
    y = agree(softmax(64, 40), (32, 1, 1), buffers, ulp=8)["b1"].reshape(x.shape)
    wanted = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(y, wanted / wanted.sum(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize(("columns", "cache"), [(1024, "3"), (2048, "2")])
def test_a_row_is_asked_into_the_nearest_cache_if_it_is_a_page(columns: int, cache: str) -> None:
    """A longer one would push out what is computed meanwhile."""
    text = render(softmax(6, columns), info()).text
    asked = re.findall(r"prefetch\.p0\(ptr [^,]*, i32 immarg 0, i32 immarg ([0-3])", text)
    assert set(asked) == {cache}


def mapped(functions: int, *, updated: bool = False) -> Kernel:
    """The exponential of x, again and again, in place or not."""
    b = Builder("mapped")
    x = b.buffer("x", F, writes=updated)
    y = x if updated else b.buffer("y", F, writes=True)
    first = mul(program_id(), 2048)

    def step(i: Node) -> None:
        value = b.load(x, add(first, i), (WIDTH,), (1,))
        for _ in range(functions):
            value = unary("exp", unary("neg", value))
        b.store(y, add(first, i), value, (1,))

    b.loop(0, 2048, WIDTH, step)
    return b.kernel()


def test_a_loop_that_computes_much_asks_for_what_comes_a_page_later() -> None:
    assert list(found(mapped(1)).values()) == [LEAST_NBYTES]
    assert not found(mapped(0))
    assert not found(mapped(1, updated=True))
    x = np.random.default_rng(0).normal(size=3 * 2048).astype(np.float32)
    assert "llvm.prefetch" in render(mapped(1), info()).text
    agree(mapped(1), (3, 1, 1), {"x": x, "y": np.zeros_like(x)}, ulp=2)


def test_results_beside_what_was_asked_for() -> None:
    """The last rows ask for what lies behind the array."""
    x = np.random.default_rng(0).integers(1, 9, (5, 2048)).astype(np.float32)
    kernel = shares(2048, program_id())
    assert "llvm.prefetch" in render(kernel, info()).text
    agree(kernel, (5, 1, 1), {"x": x.ravel(), "y": np.zeros(x.size, np.float32)})


def test_a_quotient_of_sums_is_computed_before_the_loop_that_uses_it() -> None:
    text = render(shares(2048, program_id()), info()).text
    loops = [m.start() for m in re.finditer("^body", text, re.MULTILINE)]
    quotient = text.index("fdiv")
    assert text.count("fdiv") == 1
    assert loops[0] < quotient < loops[-1]


def tile_of_a_product(elsewhere: bool) -> Kernel:
    """A tile of x @ y + z; where z's rows begin follows from the instance, or stands in memory."""
    b = Builder("tile")
    x, y, z = (b.buffer(name, F) for name in "xyz")
    places, out = b.buffer("places", I64), b.buffer("out", F, writes=True)
    first = mul(program_id(), 6 * 64)

    def step(k: Node, total: Node) -> list[Node]:
        column = b.load(x, add(first, k), (6, 1), (64, 1))
        return [dot(column, b.load(y, mul(k, WIDTH), (1, WIDTH), (WIDTH, 1)), total)]

    (total,) = b.loop(0, 64, 1, step, (const(0.0, F, (6, WIDTH)),))
    with b.when(binary("lt", program_id(), 5)):
        begin = b.load(places, program_id()) if elsewhere else first
        b.store(out, first, add(total, b.load(z, begin, (6, WIDTH), (64, 1))), (64, 1))
    return b.kernel()


@pytest.mark.parametrize(("elsewhere", "reads"), [(False, 6), (True, 0)])
def test_rows_behind_a_product_are_asked_for_before_it(elsewhere: bool, reads: int) -> None:
    before, _, behind = render(tile_of_a_product(elsewhere), info()).text.partition("@llvm.fma.")
    assert behind
    asked = re.findall(r"prefetch\.p0\(ptr [^,]*, i32 (?:immarg )?([01])", before)
    assert sorted(asked) == ["0"] * reads + ["1"] * 6
    rng = np.random.default_rng(0)
    arrays = {n: rng.integers(-9, 9, 6 * 6 * 64).astype(np.float32) for n in "xyz"}
    places = np.arange(6)[::-1] * 6
    agree(
        tile_of_a_product(elsewhere), (6, 1, 1), arrays | {"places": places, "out": arrays["x"] * 0}
    )
