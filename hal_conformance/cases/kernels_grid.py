"""The grid: every instance once, with its own ids."""

from __future__ import annotations

import numpy as np

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.values import Grid
from hal.tile.build import (
    Builder,
    add,
    arange,
    broadcast,
    cast,
    const,
    mul,
    num_programs,
    program_id,
)
from hal.tile.kernel import Kernel
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.kernels import counts, need
from hal_conformance.rig import Rig

kernels_grid = Cases("E", Level.CORE)

I32 = DType.I32
MOST = 4096
"""A grid of up to this many instances is run whole; a larger one takes too long somewhere."""


def ids(dtype: DType) -> Kernel:
    """Each instance writes its ids and the grid's sizes to its row, and counts itself there."""
    b = Builder("ids")
    rows = b.buffer("rows", dtype, reads=False, writes=True)
    count = b.buffer("count", I32, writes=True)
    x, y, z = (program_id(axis) for axis in range(3))
    width, height = num_programs(0), num_programs(1)
    row = add(x, mul(width, add(y, mul(height, z))))
    for i, value in enumerate((x, y, z, width, height, num_programs(2))):
        b.store(rows, add(mul(row, 6), i), cast(value, dtype))
    b.atomic("add", count, broadcast(row, (1,)), const(1, I32, (1,)))
    return b.kernel()


def touch() -> Kernel:
    """Every instance adds one to the same number."""
    b = Builder("touch")
    total = b.buffer("total", I32, writes=True)
    b.atomic("add", total, arange(1), const(1, I32, (1,)))
    return b.kernel()


def _fits(rig: Rig, grid: Grid) -> None:
    need(rig, I32)
    if any(size > most for size, most in zip(grid, rig.info.limits.grid, strict=True)):
        raise expect.Unfit(f"the device's grid ends at {rig.info.limits.grid}")


def _along(axis: int, size: int) -> Grid:
    x, y, z = (size if i == axis else 1 for i in range(3))
    return x, y, z


GRIDS = ((1, 1, 1), (7, 1, 1), (130, 1, 1), (1, 5, 1), (5, 3, 1), (1, 1, 9), (3, 2, 4), (2, 1, 3))


@kernels_grid.case("ids", "launch.grid", grid=GRIDS)
def _(rig: Rig, grid: Grid) -> None:
    _fits(rig, grid)
    x, y, z = grid
    count = x * y * z
    dtype = counts(rig)
    rows = np.full(6 * count, -1, NUMPY[dtype])
    got = rig.run(ids(dtype), {"rows": rows, "count": np.zeros(count, np.int32)}, grid)
    wanted = [[i, j, k, *grid] for k in range(z) for j in range(y) for i in range(x)]
    expect.same(got["rows"].reshape(-1, 6), np.array(wanted), "ids and sizes of the instances")
    expect.same(got["count"], np.ones(count, np.int32), "how often each instance ran")


@kernels_grid.case("grid-of-many", "launch.grid")
def _(rig: Rig) -> None:
    count = 1000
    _fits(rig, (count, 1, 1))
    got = rig.run(touch(), {"total": np.zeros(1, np.int32)}, (count, 1, 1))
    expect.equal(int(got["total"][0]), count, "the number of instances that ran")


@kernels_grid.case("grid-zero", "launch.empty", axis=(0, 1, 2))
def _(rig: Rig, axis: int) -> None:
    need(rig, I32)
    total = rig.buffer(np.zeros(1, np.int32))
    point = rig.launch(rig.program(touch()), [total], _along(axis, 0))
    rig.done(point)
    expect.same(rig.array(total, I32), np.zeros(1, np.int32), "the buffer after an empty launch")


@kernels_grid.case("grid-zero-in-order", "launch.empty", "submit.waits", "submit.order")
def _(rig: Rig) -> None:
    need(rig, I32)
    total, gate = rig.buffer(np.zeros(1, np.int32)), rig.gate()
    program = rig.program(touch())
    empty = rig.launch(program, [total], (0, 1, 1), [gate.point])
    after = rig.launch(program, [total])
    expect.that(rig.pending(empty), "an empty launch was reached before what it waits for")
    expect.that(rig.pending(after), "a launch ran before the empty launch in front of it")
    gate.open()
    rig.done(empty)
    expect.same(rig.array(total, I32, [after]), np.ones(1, np.int32), "the buffer")


@kernels_grid.case("grid-at-limit", "describe.limits", "launch.grid", axis=(0, 1, 2))
def _(rig: Rig, axis: int) -> None:
    need(rig, I32)
    most = rig.info.limits.grid[axis]
    whole = most <= MOST
    # Where the whole axis takes too long, a zero on another axis leaves nothing to run.
    grid = _along(axis, most)
    if not whole:
        grid = (grid[0], 0, 1) if axis == 0 else (0, grid[1], grid[2])
    total = rig.buffer(np.zeros(1, np.int32))
    point = rig.launch(rig.program(touch()), [total], grid)
    ran = most if whole else 0
    expect.equal(int(rig.array(total, I32, [point])[0]), ran, "the number of instances that ran")


@kernels_grid.case("grid-past-limit", "describe.limits", "call.refused", axis=(0, 1, 2))
def _(rig: Rig, axis: int) -> None:
    need(rig, I32)
    total = rig.buffer(np.zeros(1, np.int32))
    launchable = rig.device.bind(rig.program(touch()), [total])
    grid = _along(axis, rig.info.limits.grid[axis] + 1)
    before = rig.device.launch(launchable, (0, 1, 1), rig.timeline(), ())
    expect.raises(InvalidCall, rig.device.launch, launchable, grid, rig.timeline(), ())
    after = rig.device.launch(launchable, (0, 1, 1), rig.timeline(), ())
    expect.equal(after.value, before.value + 1, "the next value after a refused launch")


@kernels_grid.case("grid-negative", "call.refused")
def _(rig: Rig) -> None:
    need(rig, I32)
    launchable = rig.device.bind(rig.program(touch()), [rig.buffer(4)])
    expect.raises(InvalidCall, rig.device.launch, launchable, (-1, 1, 1), rig.timeline(), ())
    expect.raises(InvalidCall, rig.device.launch, launchable, (1, 1), rig.timeline(), ())
