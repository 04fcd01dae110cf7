"""Comparisons of positions that grow evenly with a number, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.build import Builder, add, arange, binary, broadcast, cast, mul, program_id
from hal.tile.kernel import Kernel
from hal.tile.node import Node
from stack.compiler.text.llvm import render
from tests.compiler.llvm.agreement import agree
from tests.compiler.llvm.machine import info

I32, I64 = DType.I32, DType.I64
WIDTH, STEPS = 20, 3
NUMBERS = [
    0,
    1,
    7,
    19,
    20,
    21,
    39,
    59,
    60,
    61,
    -1,
    -20,
    1 << 31,
    (1 << 32) + 3,
    -(1 << 63),
    1 << 62,
]


def compared(op: str, line: Callable[[Node], Node], *, turned: bool = False) -> Kernel:
    """Whether each position of STEPS rows stands so to the instance's number."""
    b = Builder("compared")
    numbers, y = b.buffer("numbers", I64), b.buffer("y", I32, writes=True)
    number = b.load(numbers, program_id())

    def row(i: Node) -> None:
        sides = broadcast(line(i), (WIDTH,)), broadcast(number, (WIDTH,))
        found = binary(op, *(sides[::-1] if turned else sides))
        first = add(mul(program_id(), WIDTH * STEPS), mul(i, WIDTH))
        b.store(y, first, cast(found, I32), (1,))

    b.loop(0, STEPS, 1, row)
    return b.kernel()


def checked(kernel: Kernel, numbers: list[int]) -> None:
    y = np.zeros(len(numbers) * WIDTH * STEPS, np.int32)
    agree(kernel, (len(numbers), 1, 1), {"numbers": np.array(numbers, np.int64), "y": y})


def narrow(i: Node) -> Node:
    """Positions of 32 bits, as an arange of 64 has them where they fit."""
    return cast(add(arange(WIDTH, I32), cast(mul(i, WIDTH), I32)), I64)


def wide(step: int) -> Callable[[Node], Node]:
    return lambda i: add(mul(arange(WIDTH, I64), step), mul(i, WIDTH))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("op", ["eq", "ne"])
@pytest.mark.parametrize("line", [narrow, wide(1), wide(3)])
def test_equality_holds_at_one_lane(line: Callable[[Node], Node], op: str, turned: bool) -> None:
    checked(compared(op, line, turned=turned), NUMBERS)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("op", ["lt", "le"])
@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_order_of_positions_some_steps_apart(step: int, op: str, turned: bool) -> None:
    b = Builder("ordered")
    y = b.buffer("y", I32, writes=True)
    number = add(mul(program_id(), 1), -30)
    sides = (wide(step)(number), broadcast(mul(program_id(), 2), (WIDTH,)))
    found = binary(op, *(sides[::-1] if turned else sides))
    b.store(y, mul(program_id(), WIDTH), cast(found, I32), (1,))
    agree(b.kernel(), (80, 1, 1), {"y": np.zeros(80 * WIDTH, np.int32)})


def test_positions_are_compared_by_lanes_of_half_the_bits() -> None:
    assert "icmp eq <8 x i32>" in render(compared("eq", narrow), info()).text


def test_numbers_of_32_bits_that_overflow_are_compared_as_they_are() -> None:
    b = Builder("wrapped")
    x, y = b.buffer("x", I32), b.buffer("y", I32, writes=True)
    line = cast(add(arange(WIDTH, I32), b.load(x, program_id())), I64)
    least = broadcast(add(mul(program_id(), 0), -(1 << 31)), (WIDTH,))
    b.store(y, mul(program_id(), WIDTH), cast(binary("eq", line, least), I32), (1,))
    given = np.array([(1 << 31) - 3, -(1 << 31), 0], np.int32)
    agree(b.kernel(), (3, 1, 1), {"x": given, "y": np.zeros(3 * WIDTH, np.int32)})
