"""Atomics: many instances on few places, and no update lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.dtypes import DType
from hal.tile.build import Builder, arange, binary, mul, program_id
from hal.tile.kernel import Kernel
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.cases.kernels_sizes import FEWEST, affordable
from hal_conformance.cases.kernels_tiles import whole_range
from hal_conformance.kernels import need
from hal_conformance.rig import Rig

kernels_atomics = Cases("E", Level.CORE)

TYPES = (DType.I32, DType.U32, DType.I64, DType.U64, DType.F32, DType.F64, DType.F16, DType.BF16)
WIDTH, CELLS, INSTANCES = 12, 3, 40
COMBINED: dict[str, Callable[[NDArray[Any]], Any]] = {"add": sum, "min": min, "max": max}


def _combine(kind: str, dtype: DType, masked: bool = False) -> Kernel:
    """Every instance combines its 12 values with 3 cells, value i with cell i % 3."""
    b = Builder(f"atomic_{kind}")
    x, y = b.buffer("x", dtype), b.buffer("y", dtype, writes=True)
    value = b.load(x, mul(program_id(), WIDTH), (WIDTH,), (1,))
    mask = binary("lt", arange(WIDTH), WIDTH - CELLS) if masked else None
    b.atomic(kind, y, binary("rem", arange(WIDTH), CELLS), value, mask)
    return b.kernel()


def _values(rig: Rig, dtype: DType) -> NDArray[Any]:
    """Small whole numbers, whose sums every type holds exactly."""
    low = 0 if dtype.kind == "u" or dtype is DType.BF16 else -3
    high = 2 if dtype is DType.BF16 else 4
    return rig.random.integers(low, high, INSTANCES * WIDTH).astype(NUMPY[dtype])


@kernels_atomics.case("atomic", "launch.exact", kind=("add", "min", "max"), dtype=TYPES)
def _(rig: Rig, kind: str, dtype: DType) -> None:
    need(rig, dtype)
    values, start = _values(rig, dtype), np.ones(CELLS, NUMPY[dtype])
    got = rig.run(_combine(kind, dtype), {"x": values, "y": start}, (INSTANCES, 1, 1))["y"]
    columns = values.astype(np.int64).reshape(-1, CELLS).T
    wanted = [COMBINED[kind](np.append(column, 1)) for column in columns]
    expect.same(got.astype(np.int64), np.array(wanted), f"{kind} of all instances")


@kernels_atomics.case("atomic-contended", "launch.exact", dtype=(DType.I32, DType.U32, DType.F32))
def _(rig: Rig, dtype: DType) -> None:
    """Thousands of instances add to three cells at once, for a part of a second: with few of
    them a device has no two under way, or none that meet."""
    need(rig, dtype)
    instances = max(FEWEST, affordable(rig, 1 << 17, 0.2))
    if instances > rig.info.limits.grid[0]:
        raise expect.Unfit(f"a grid has {rig.info.limits.grid[0]} instances at most")
    arguments = {
        "x": np.ones(instances * WIDTH, NUMPY[dtype]),
        "y": np.zeros(CELLS, NUMPY[dtype]),
    }
    each = instances * WIDTH // CELLS
    for _ in range(3):  # cores that are taken away in turns may never meet
        got = rig.run(_combine("add", dtype), arguments, (instances, 1, 1))["y"].astype(np.int64)
        lost = [f"{each - n} of {each} for cell {i}" for i, n in enumerate(got) if n != each]
        text = f"{instances} instances add ones to {CELLS} cells, updates lost: {', '.join(lost)}"
        expect.that(not lost, text)


@kernels_atomics.case("atomic-range", "launch.exact", kind=("add", "min", "max"), dtype=TYPES[:4])
def _(rig: Rig, kind: str, dtype: DType) -> None:
    """Integers of the whole range, which wrap."""
    need(rig, dtype)
    values, start = whole_range(rig, dtype, (INSTANCES * WIDTH,)), np.zeros(CELLS, NUMPY[dtype])
    start[:] = values[:CELLS]
    got = rig.run(_combine(kind, dtype), {"x": values, "y": start}, (INSTANCES, 1, 1))["y"]
    columns = np.vstack([start, values.reshape(-1, CELLS)])
    whole = {"add": np.add, "min": np.minimum, "max": np.maximum}[kind]
    expect.same(got, whole.reduce(columns, dtype=columns.dtype), f"{kind} of all instances")


@kernels_atomics.case("atomic-exchange", "launch.exact", dtype=TYPES)
def _(rig: Rig, dtype: DType) -> None:
    need(rig, dtype)
    values = np.arange(INSTANCES * WIDTH).astype(NUMPY[dtype])
    start = np.full(CELLS, -1 if dtype.kind != "u" else 1, NUMPY[dtype])
    got = rig.run(_combine("exchange", dtype), {"x": values, "y": start}, (INSTANCES, 1, 1))["y"]
    for cell, value in enumerate(got):
        expect.that(value in values[cell::CELLS], f"cell {cell} holds {value}, not given to it")


@kernels_atomics.case("atomic-masked", "launch.exact", "launch.inside")
def _(rig: Rig) -> None:
    need(rig, DType.I32)
    values = np.ones(INSTANCES * WIDTH, np.int32)
    arguments = {"x": values, "y": np.array([0, 0, 0, 77], np.int32)}
    got = rig.run(_combine("add", DType.I32, masked=True), arguments, (INSTANCES, 1, 1))["y"]
    wanted = np.array([3 * INSTANCES] * CELLS + [77], np.int32)
    expect.same(got, wanted, "the cells and what lies behind them")


@kernels_atomics.case("atomic-minimum-of-nan", "launch.exact", kind=("min", "max"))
def _(rig: Rig, kind: str) -> None:
    need(rig, DType.F32)
    values = np.ones(WIDTH, np.float32)
    values[4] = np.nan
    got = rig.run(_combine(kind, DType.F32), {"x": values, "y": np.ones(CELLS, np.float32)})["y"]
    expect.same(got, np.array([1, np.nan, 1], np.float32), f"{kind} with a NaN")


@kernels_atomics.case("atomic-order-of-float", "launch.exact")
def _(rig: Rig) -> None:
    """Floats are added in any order, so the error has the bound of any order."""
    need(rig, DType.F32)
    values = rig.random.standard_normal(INSTANCES * WIDTH).astype(np.float32)
    arguments = {"x": values, "y": np.zeros(CELLS, np.float32)}
    got = rig.run(_combine("add", DType.F32), arguments, (INSTANCES, 1, 1))["y"]
    columns = values.astype(np.float64).reshape(-1, CELLS).T
    tolerance = np.abs(columns).sum(1) * columns.shape[1] * 2.0**-24
    expect.near(got, columns.sum(1), tolerance, "sums of all instances")
