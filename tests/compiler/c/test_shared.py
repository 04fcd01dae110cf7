"""Tiles that are computed once, and values of a loop that are changed in place."""

from __future__ import annotations

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.build import (
    Builder,
    add,
    binary,
    broadcast,
    mul,
    reduce,
    reshape,
    sub,
    transpose,
    unary,
)
from hal.tile.kernel import For, Kernel, Store
from hal.tile.node import Node
from stack.compiler.text.c import shared
from stack.compiler.text.c.contraction import LOOPS
from tests.compiler.c.agreement import agree

F32 = DType.F32


def kept(kernel: Kernel) -> dict[int, list[str]]:
    """The operations of what is computed before each statement."""
    found = shared.before(kernel.body, (), LOOPS)
    return {place: [n.op for n in tiles] for place, tiles in found.items()}


def test_a_function_is_kept_for_two_stores_and_a_sum_is_not() -> None:
    b = Builder("twice")
    x, y = b.buffer("x", F32), b.buffer("y", F32, writes=True)
    tile = b.load(x, 0, (4, 8), (8, 1))
    e, line = unary("exp", tile), add(tile, 1.0)
    for i, value in enumerate((e, mul(e, line), line)):
        b.store(y, 32 * i, value, (8, 1))
    kernel = b.kernel()
    assert [type(s) for s in kernel.body[1:]] == [Store] * 3
    assert kept(kernel) == {1: ["exp"]}


def test_what_a_loop_does_not_change_is_computed_before_it() -> None:
    b = Builder("still")
    x, y = b.buffer("x", F32), b.buffer("y", F32, writes=True)
    tile = b.load(x, 0, (4, 8), (8, 1))

    def step(i: Node) -> None:
        moving = b.load(x, mul(i, 8), (1, 8), (8, 1))
        most = reshape(reduce("max", tile, 1), (4, 1))
        b.store(y, mul(i, 32), mul(unary("exp", moving), unary("tanh", most)), (8, 1))
        with b.when(binary("eq", i, 1)):
            b.store(y, mul(i, 32), unary("log", tile), (8, 1))

    b.loop(0, 4, 1, step)
    kernel = b.kernel()
    (place,) = (i for i, s in enumerate(kernel.body) if isinstance(s, For))
    assert kept(kernel) == {place: ["tanh"]}


def test_pointwise_is_by_the_same_element() -> None:
    b = Builder("same")
    tile = b.load(b.buffer("x", F32), 0, (4, 4), (4, 1))
    row = b.load(b.buffer("z", F32), 0, (1, 4), (4, 1))
    total = broadcast(reshape(reduce("sum", tile, 1), (4, 1)), (4, 4))
    assert shared.is_pointwise(add(tile, broadcast(row, (4, 4))), tile, ())
    assert not shared.is_pointwise(add(tile, transpose(tile, (1, 0))), tile, ())
    assert not shared.is_pointwise(sub(tile, total), tile, ())
    assert shared.is_pointwise(sub(tile, total), tile, {total.srcs[0].srcs[0]})


@pytest.mark.slow
@pytest.mark.turns
def test_loops_of_values_that_need_each_other_agree() -> None:
    b = Builder("carried")
    x, y = b.buffer("x", F32), b.buffer("y", F32, writes=True)
    start = b.load(x, 0, (4, 4), (4, 1))

    def step(i: Node, *old: Node) -> list[Node]:
        apart, turned, first, second, still = old
        loaded = b.load(x, mul(i, 16), (4, 4), (4, 1))
        e = unary("exp", loaded)
        b.store(y, mul(i, 16), e, (4, 1))
        most = reshape(reduce("max", start, 1), (4, 1))
        next_turned = add(transpose(turned, (1, 0)), e)
        return [add(apart, mul(e, most)), next_turned, second, add(first, loaded), still]

    totals = b.loop(0, 3, 1, step, [start] * 5)
    for i, tile in enumerate(totals):
        b.store(y, 16 * (3 + i), tile, (4, 1))
    given = np.random.default_rng(0).normal(size=48).astype(np.float32)
    agree(b.kernel(), (1,), {"x": given, "y": np.zeros(128, np.float32)}, ulp=16)
