"""Transfers for many instances and steps at once leave what the statements one by one would."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.tile.build import (
    Builder,
    add,
    arange,
    binary,
    broadcast,
    cast,
    const,
    mul,
    program_id,
    sub,
)
from hal.tile.kernel import Kernel
from hal.tile.numeric import NUMPY
from hal.tile.verify import verify
from stack.compiler.lower.scratchpad import render_athread
from tests.compiler.scratchpad.affine import affine
from tests.compiler.scratchpad.machine import agree

NBYTES = 1 << 16


@pytest.mark.slow
@pytest.mark.turns
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(affine(), st.sampled_from((0, 300, 600, 4096)), st.integers(0, 99))
def test_random_walks(device, made, room_nbytes, seed) -> None:
    kernel, instances, dtype = made
    verify(kernel)
    rng, kind = np.random.default_rng(seed), NUMPY[dtype]
    count = NBYTES // 2
    buffers = {name: rng.integers(-50, 50, count).astype(kind) for name in "abc"}
    agree(device, kernel, (instances,), buffers, room_nbytes=room_nbytes)


def padded(dtype: DType, count: int, before: int) -> Kernel:
    """Copies `count` elements behind `before` sevens, and sevens behind them."""
    b = Builder("padded")
    a, c = b.buffer("a", dtype), b.buffer("c", dtype, reads=False, writes=True)
    start = mul(program_id(0), 40)
    at = sub(add(broadcast(start, (40,)), arange(40)), before)
    inside = binary("and", binary("le", const(0, at.dtype), at), binary("lt", at, count))
    found = b.gather(a, at, inside, const(7, dtype))
    b.store(c, start, found, (1,))
    return b.kernel()


def test_halves_are_computed_wider_in_any_room(device) -> None:
    b = Builder("doubled")
    a, c = b.buffer("a", DType.F16), b.buffer("c", DType.F16, reads=False, writes=True)
    x = b.load(a, program_id(0), (), ())
    b.store(c, program_id(0), add(x, x), ())
    halves = np.linspace(-9, 9, 100, dtype=np.float16)
    buffers = {"a": halves, "c": np.zeros_like(halves)}
    agree(device, b.kernel(), (100,), buffers, room_nbytes=300)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.I8])
def test_neighbours_that_a_mask_leaves(device, dtype) -> None:
    kind = NUMPY[dtype]
    buffers = {"a": (np.arange(101) % 100).astype(kind), "c": np.zeros(200, kind)}
    kernel = padded(dtype, 101, 13)
    verify(kernel)
    assert "hal_get" in render_athread(kernel, device.info).text
    agree(device, kernel, (5,), buffers)


def test_rows_of_nothing_are_not_touched(device) -> None:
    """Rows that lie in each other, one element apart: of those beyond the buffer no part is."""
    b = Builder("overlapping")
    a, c = b.buffer("a", DType.F32), b.buffer("c", DType.F32, reads=False, writes=True)
    start = mul(program_id(0), 4)
    some = b.load(a, start, (4, 4), (1, 1), (None, sub(4, start)))
    b.store(c, mul(start, 4), some, (4, 1))
    kernel = b.kernel()
    verify(kernel)
    agree(device, kernel, (3,), {"a": np.arange(7, dtype=np.float32), "c": np.ones(48, np.float32)})


def test_a_row_without_a_step_is_left_out(device) -> None:
    """Three instances have the same row, which is valid for the first of them alone."""
    b = Builder("gated")
    c = b.buffer("c", DType.F32, reads=False, writes=True)
    number = program_id(0)
    value = broadcast(cast(add(number, 5), DType.F32), (1, 4))
    b.store(c, 0, value, (0, 1), (sub(1, number), None))
    kernel = b.kernel()
    verify(kernel)
    agree(device, kernel, (3,), {"c": np.ones(4, np.float32)})
