"""Emulated time of kernels that the stack compiles: the memory's rate, whatever the accesses."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hal
from hal.core.dtypes import DType
from hal.core.errors import CompileError
from hal.core.values import OpenOptions
from hal.tile.build import Builder, add, reduce, transpose
from hal.tile.node import Type
from stack import ops as ir
from stack.compiler.lower.scratchpad import render_athread
from stack.compiler.program import GraphRequest
from stack.runtime import engine_of

SHAPE = (1024, 512)
ENOUGH = 0.75
"""Of the bytes that the memory moves in a second."""


def added(x):
    return ir.add(x, x)


def turned(x):
    return ir.add(ir.permute(x, (1, 0)), ir.permute(x, (1, 0)))


def row_sums(x):
    return ir.reduce("sum", x, (1,))


def column_sums(x):
    return ir.reduce("sum", x, (0,))


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("made", [added, turned, row_sums, column_sums])
def test_what_moves_data_goes_at_the_memorys_rate(tmp_path, made):
    report = tmp_path / "report.jsonl"
    settings = {"memory_nbytes": str(64 << 20), "report": str(report)}
    with engine_of(hal.open("sunway:0", options=OpenOptions(settings=settings))) as engine:
        x = ir.input(0, Type(SHAPE, DType.F32))
        plan = engine.plan(GraphRequest((made(x),), (x,)))
        engine.get(plan.run([engine.put(np.zeros(SHAPE, np.float32), DType.F32)])[0])
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    launches = [r for r in rows if "launch" in r]
    moved = sum(r["get_nbytes"] + r["put_nbytes"] for r in launches)
    least = x.type.size * 4
    assert moved >= least
    assert moved <= 2 * least * (1 if made in (row_sums, column_sums) else 1.01)
    seconds = sum(r["emulated_s"] for r in launches)
    rate = moved / seconds
    assert ENOUGH * 51.2e9 < rate < 51.2e9


WIDE = (512, 4096)
"""Rows of 16 KB: some of a scratchpad's 256 KB, and what weighs the columns is as long."""


def softmax(x):
    power = ir.exp(ir.sub(x, ir.expand(ir.reduce("max", x, 1), WIDE)))
    return ir.mul(power, ir.expand(ir.recip(ir.reduce("sum", power, 1)), WIDE))


def weighted_norm(x, weight, bias):
    scale = ir.expand(ir.rsqrt(ir.reduce("sum", ir.mul(x, x), 1)), WIDE)
    return ir.add(ir.mul(ir.mul(x, scale), ir.broadcast(weight, WIDE)), ir.broadcast(bias, WIDE))


def transposed(x):
    return ir.contiguous(ir.transpose(x))


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(
    ("made", "others", "enough"),
    [(softmax, 0, 16.5), (weighted_norm, 2, 16.5), (transposed, 0, 19.5)],
)
def test_wide_rows_come_once(tmp_path, made, others, enough):
    report = tmp_path / "report.jsonl"
    settings = {"memory_nbytes": str(64 << 20), "report": str(report)}
    rng = np.random.default_rng(0)
    shapes = [WIDE, *[WIDE[1:]] * others]
    arrays = [rng.random(shape, np.float32) for shape in shapes]
    with engine_of(hal.open("sunway:0", options=OpenOptions(settings=settings))) as engine:
        inputs = tuple(ir.input(i, Type(s, DType.F32)) for i, s in enumerate(shapes))
        plan = engine.plan(GraphRequest((made(*inputs),), inputs))
        got = engine.get(plan.run([engine.put(a, DType.F32) for a in arrays])[0])
    (launch,) = [r for r in map(json.loads, report.read_text().splitlines()) if "launch" in r]
    assert launch["get_nbytes"] == arrays[0].nbytes + 64 * others * arrays[0][0].nbytes
    assert launch["put_nbytes"] == arrays[0].nbytes
    moved = launch["get_nbytes"] + launch["put_nbytes"]
    assert moved / launch["cycles"] > enough, "bytes in a cycle of the emulated clock"
    np.testing.assert_allclose(got, wanted(made, *arrays), rtol=2e-5)


def wanted(made, x, *others):
    """The same by numpy, in float64."""
    wide = x.astype(np.float64)
    if made is transposed:
        return wide.T
    if made is softmax:
        power = np.exp(wide - wide.max(1, keepdims=True))
        return power / power.sum(1, keepdims=True)
    weight, bias = others
    return wide / np.sqrt((wide * wide).sum(1, keepdims=True)) * weight + bias


def big(n: int):
    """Adds the sums of a matrix's columns to the matrix, whose tile is `n` by `n`."""
    b = Builder("big")
    a, c = b.buffer("a", DType.F32), b.buffer("c", DType.F32, writes=True)
    x = b.load(a, 0, (n, n), (n, 1))
    b.store(c, 0, add(transpose(x, (1, 0)), reduce("sum", x, 0)), (n, 1))
    return b.kernel()


def test_tiles_beyond_the_scratchpad_are_refused(device):
    render_athread(big(160), device.info)
    with pytest.raises(CompileError, match="big: its tiles take 725312 bytes of a scratchpad of"):
        render_athread(big(300), device.info)
