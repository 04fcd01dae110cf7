"""What the runtime adds to each kernel of a replayed plan."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import numpy as np

import hal
from benchmarks.row import Bar, Row
from hal.core.dtypes import DType
from hal.tile.node import Type
from stack import ops as build
from stack.compiler.program import GraphRequest
from stack.runtime import Array, Engine, engine_of
from stack.runtime.plan import Plan

KERNELS = 200
DEVICE = "cpu:0"


def rows(quick: bool) -> Iterator[Row]:
    with engine_of(hal.open(DEVICE, wrappers=())) as engine:
        plan = _chain(engine)
        array = engine.put(np.eye(8), DType.F32)
        submit, total = _times(engine, plan, array, 50 if quick else 1000)
    each = 1e6 / plan.launches
    note = f"{plan.launches} dependent products of 8 by 8 matrices"
    yield Row(
        "Python time of a replayed plan", "us/kernel", submit * each, bar=Bar(limit=1), note=note
    )
    yield Row("replayed plan, submitted and done", "us/kernel", total * each, note=note)


def _chain(engine: Engine) -> Plan:
    """A plan of many kernels that each wait for the one before."""
    x = leaf = build.input(0, Type((8, 8), DType.F32))
    for _ in range(KERNELS):
        x = build.matmul(x, leaf)
    return engine.plan(GraphRequest((x,), (leaf,)))


def _times(engine: Engine, plan: Plan, array: Array, count: int) -> tuple[float, float]:
    submits, totals = [], []
    for _ in range(count):
        start = time.perf_counter()
        plan.run([array])
        submitted = time.perf_counter()
        engine.sync()
        submits.append(submitted - start)
        totals.append(time.perf_counter() - start)
    return median(submits), median(totals)
