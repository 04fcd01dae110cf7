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
from stack.compiler.program import GraphRequest
from stack.compiler.scratchpad import render_athread
from stack.ir import build as ir
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
