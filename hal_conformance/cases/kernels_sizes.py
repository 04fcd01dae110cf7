"""Kernels where numbers are large: grids, indices, depths of products, lengths of sums."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.values import Buffer, Grid, LaunchCommand, Program
from hal.tile.build import (
    Builder,
    add,
    arange,
    binary,
    cast,
    const,
    dot,
    mul,
    num_programs,
    program_id,
    reduce,
)
from hal.tile.kernel import Kernel
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.cases.kernels_tiles import made, of_tile, product
from hal_conformance.kernels import counts, index_of, need
from hal_conformance.rig import Rig

kernels_sizes = Cases("E", Level.CORE)

F16, F32, F64, BF16 = DType.F16, DType.F32, DType.F64, DType.BF16
I8, I32, I64, U8 = DType.I8, DType.I32, DType.I64, DType.U8
FEWEST = 256
"""So many instances are tried on the slowest device."""
_MOST_S = 5.0
_FAR = (1 << 16) + 5


def affordable(rig: Rig, instances: int, most_s: float = _MOST_S) -> int:
    """So many instances of `_last_ids`, or as many as the device runs in `most_s`."""
    buffers = [rig.buffer(np.zeros(251, np.int32)), rig.buffer(np.zeros(3, np.int64))]
    program, count = rig.program(_last_ids(counts(rig))), 256
    limit = rig.info.limits.grid[0]
    while True:
        count = min(count, limit)
        seconds = min(_seconds(rig, program, buffers, count) for _ in range(3))
        if seconds > 0.02 or count in (limit, 1 << 16):
            return min(instances, int(count * most_s / max(seconds, 1e-6)))
        count *= 4


def _seconds(rig: Rig, program: Program, buffers: list[Buffer], count: int) -> float:
    begin_s = time.perf_counter()
    rig.done(rig.launch(program, buffers, (count, 1, 1)))
    return time.perf_counter() - begin_s


def _last_ids(dtype: DType) -> Kernel:
    """Each instance counts itself by its linear id modulo 251; the last one stores its ids."""
    b = Builder("last_ids")
    count = b.buffer("count", I32, writes=True)
    last = b.buffer("last", dtype, reads=False, writes=True)
    x, y, z = (program_id(axis) for axis in range(3))
    width, height, depth = (num_programs(axis) for axis in range(3))
    row = add(x, mul(width, add(y, mul(height, z))))
    b.atomic("add", count, binary("rem", add(row, arange(1)), 251), const(1, I32, (1,)))
    total = mul(width, mul(height, depth))
    with b.when(binary("eq", add(row, 1), total)):
        for i, value in enumerate((x, y, z)):
            b.store(last, i, cast(value, dtype))
    return b.kernel()


def _check_grid(rig: Rig, grid: Grid) -> None:
    need(rig, I32)
    instances = grid[0] * grid[1] * grid[2]
    dtype = counts(rig)
    arguments: dict[str, Any] = {
        "count": np.zeros(251, np.int32),
        "last": np.full(3, -1, NUMPY[dtype]),
    }
    got = rig.run(_last_ids(dtype), arguments, grid)
    wanted = np.full(251, instances // 251, np.int32)
    wanted[: instances % 251] += 1
    expect.same(got["count"], wanted, f"how often instances of {grid} ran, by their id modulo 251")
    ids = np.array([n - 1 for n in grid])
    expect.same(got["last"], ids, f"the ids of the last instance of {grid}")


@kernels_sizes.case("grid-beyond", "launch.grid", "describe.limits", axis=(0, 1, 2), timeout_s=60)
def _(rig: Rig, axis: int) -> None:
    """More instances on an axis than 16 bits count, or as many as it may have: all of them run."""
    need(rig, I32)
    most = rig.info.limits.grid[axis]
    size = min(most, _FAR)
    if affordable(rig, size) < size:
        raise expect.Unfit(f"{size} instances take the device more than {_MOST_S} s")
    x, y, z = (size if i == axis else 1 for i in range(3))
    _check_grid(rig, (x, y, z))


@kernels_sizes.case(
    "grid-beyond-in-a-graph", "launch.grid", "replay.same", needs=(Feature.GRAPH,), timeout_s=60
)
def _(rig: Rig) -> None:
    """The same of a launch that was recorded; where that takes too long, of fewer instances."""
    need(rig, I32)
    size = min(rig.info.limits.grid[0], _FAR)
    if affordable(rig, size) < size:
        size = min(size, (1 << 12) + 5)
    dtype = counts(rig)
    count, last = rig.buffer(np.zeros(251, np.int32)), rig.buffer(np.full(3, -1, NUMPY[dtype]))
    bound = rig.device.bind(rig.program(_last_ids(dtype)), (count, last))
    graph = rig.device.record([LaunchCommand(bound, (size, 1, 1))])
    rig.done(rig.device.replay(graph, (), rig.timeline(), ()))
    wanted = np.full(251, size // 251, np.int32)
    wanted[: size % 251] += 1
    text = f"how often {size} instances of a launch in a graph ran, by their id modulo 251"
    expect.same(rig.array(count, I32), wanted, text)
    expect.same(rig.array(last, dtype), np.array([size - 1, 0, 0]), "the ids of the last instance")


@kernels_sizes.case("grid-beyond-in-all", "launch.grid", timeout_s=60, x=(97, 389))
def _(rig: Rig, x: int) -> None:
    """More than 2^16 or 2^18 instances by several axes, as many as a few seconds allow: cores that
    divide a grid may each count their own by 16 bits."""
    most = rig.info.limits.grid
    grid = (min(most[0], x), min(most[1], 26), min(most[2], 26))
    if affordable(rig, 1 << 30) < grid[0] * grid[1] * grid[2]:
        raise expect.Unfit(f"{grid} takes the device more than {_MOST_S} s")
    _check_grid(rig, grid)


@kernels_sizes.case("index-beyond", "launch.exact", "launch.inside", power=(8, 15, 16, 20))
def _(rig: Rig, power: int) -> None:
    """Loads, stores, gathers, scatters and atomics at places on both sides of a power of two."""
    need(rig, I32, U8)
    size = (1 << power) + 16
    if 4 * size > rig.info.limits.alloc_nbytes:
        raise expect.Unfit(f"the device has no two buffers of {size} bytes")
    b = Builder("index")
    x, at = b.buffer("x", U8), b.buffer("at", I32)
    y = b.buffer("y", U8, reads=False, writes=True)
    out, hits = b.buffer("out", U8, reads=False, writes=True), b.buffer("hits", I32, writes=True)
    index = b.load(at, 0, (13,), (1,))
    value = b.gather(x, index)
    b.store(out, 0, value, (1,))
    b.scatter(y, index, add(value, 1))
    first = index_of(rig, b, "first")
    b.store(out, 16, b.load(x, first, (13,), (1,)), (1,))
    b.store(y, add(first, 13), add(b.load(x, add(first, 13)), 2))
    b.atomic("add", hits, index, const(1, I32, (13,)))
    places = (1 << power) + np.array([-9, -7, -5, -4, -3, -2, -1, 0, 1, 2, 3, 5, 9], np.int32)
    arguments: dict[str, Any] = {
        "x": rig.random.integers(0, 256, size, np.uint8),
        "at": places,
        "y": np.zeros(size, np.uint8),
        "out": np.zeros(32, np.uint8),
        "hits": np.zeros(size, np.int32),
        "first": (1 << power) - 6,
    }
    kernel = b.kernel()
    got, wanted = rig.run(kernel, arguments), rig.golden(kernel, arguments)
    for name in ("out", "y", "hits"):
        expect.same(got[name], wanted[name], f"{name} at places around 2^{power}")


def _rounds() -> Kernel:
    """An outer and an inner loop, of which each round of the inner one makes 3 x + k of x."""
    b = Builder("rounds")
    x, y = b.buffer("x", I32), b.buffer("y", I32, reads=False, writes=True)
    outer, inner = (cast(b.scalar(name, I32), I64) for name in ("outer", "inner"))
    k = b.load(x, 0)

    def body(_: Node, value: Node) -> list[Node]:
        return list(b.loop(0, inner, 1, lambda _, v: [add(mul(v, 3), k)], [value]))

    (value,) = b.loop(0, outer, 1, body, [const(0, I32)])
    b.store(y, 0, value)
    return b.kernel()


@kernels_sizes.case("rounds-beyond", "launch.exact", power=(8, 12, 16), timeout_s=60)
def _(rig: Rig, power: int) -> None:
    """All loops of an instance together make more rounds than such a power of two: one loop does,
    or each of several in another one makes some. None ends before its time."""
    need(rig, I32)
    k, side = 7, (1 << power // 2) + 1
    program = rig.program(_rounds())
    x, y = rig.buffer(np.array([k], np.int32)), rig.buffer(4)

    def made(outer: int, inner: int) -> tuple[int, float]:
        begin_s = time.perf_counter()
        rig.done(rig.launch(program, (x, y, outer, inner)))
        return int(rig.array(y, DType.U32)[0]), time.perf_counter() - begin_s

    values = [0]
    for _ in range(side * side):
        values.append((3 * values[-1] + k) % (1 << 32))
    few = 1 << 10
    none_s, few_s = (min(made(1, rounds)[1] for _ in range(3)) for rounds in (0, few))
    one_s = max(0.0, few_s - none_s) / few
    most_s = min(_MOST_S, (rig.info.limits.progress_s or _MOST_S) / 2)
    if one_s * side * side > most_s:
        raise expect.Unfit(f"{side * side} rounds take the device more than {most_s:g} s")
    for outer, inner in ((1, (1 << power) + 5), (side, side)):
        rounds, (found, _) = outer * inner, made(outer, inner)
        if found == values[rounds]:
            continue
        ended = f"after {values.index(found)}" if found in values else "after another number"
        raise expect.Wrong(
            f"the loops of one instance ended {ended} of {rounds} rounds ({outer} times {inner}): "
            "the device, or who compiles for it, gives loops up without saying so"
        )


DEEP = ((I8, I32), (U8, DType.U32), (F32, F32), (F16, F32), (BF16, F32), (F64, F64))


@kernels_sizes.case("dot-deep", "launch.exact", types=DEEP, k=(65, 257))
@kernels_sizes.case("dot-deep", "launch.exact", types=DEEP[:1] + DEEP[3:4], k=(1000,), timeout_s=60)
def _(rig: Rig, types: tuple[DType, DType], k: int) -> None:
    """A product of so many terms in one tile: whole numbers, so that every order gives the same."""
    need(rig, *types)
    inputs, sums = types
    low, high = (-128, 128) if inputs is I8 else (0, 256) if inputs is U8 else (-8, 9)
    m, n = (3, 2) if k < 1000 else (2, 8)  # whole vectors: some compilers write every term out
    a = rig.random.integers(low, high, (m, k)).astype(NUMPY[inputs])
    b = rig.random.integers(low, high, (k, n)).astype(NUMPY[inputs])
    acc = rig.random.integers(0, 1000, (m, n)).astype(NUMPY[sums])
    arrays = {"x": a, "y": b, "acc": acc, "out": np.zeros_like(acc)}
    got = rig.run(product(inputs, sums, m, n, k), {key: x.ravel() for key, x in arrays.items()})
    exact = acc.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64)
    expect.same(
        got["out"].reshape(m, n).astype(np.float64), exact, f"acc + a @ b of {k} {inputs.short}"
    )


@kernels_sizes.case("dot-many-blocks", "launch.exact", dtype=(F32, F16, BF16))
def _(rig: Rig, dtype: DType) -> None:
    """A product of 3,072 terms over many tiles, which a loop carries in float32."""
    need(rig, dtype, F32)
    blocks, width = 96, 32
    b = Builder("blocked")
    x, y = b.buffer("x", dtype), b.buffer("y", dtype)
    out = b.buffer("out", F32, reads=False, writes=True)
    k = blocks * width

    def body(i: Node, total: Node) -> list[Node]:
        at = mul(i, width)
        left = b.load(x, at, (4, width), (k, 1))
        right = b.load(y, mul(at, 4), (width, 4), (4, 1))
        return [dot(left, right, total)]

    (total,) = b.loop(0, blocks, 1, body, [const(0.0, F32, (4, 4))])
    b.store(out, 0, total, (4, 1))
    a, c = (rig.random.integers(-8, 9, s).astype(NUMPY[dtype]) for s in ((4, k), (k, 4)))
    arrays = {"x": a.ravel(), "y": c.ravel(), "out": np.zeros(16, np.float32)}
    got = rig.run(b.kernel(), arrays)["out"].reshape(4, 4)
    expect.same(got, (a.astype(np.float64) @ c.astype(np.float64)).astype(np.float32), "a @ b")


@kernels_sizes.case("sum-long", "launch.exact", dtype=(F16, BF16, F32, F64, I8, U8, I64))
def _(rig: Rig, dtype: DType) -> None:
    """Sums of thousands in one tile: narrow floats stay exact, as float32 adds them."""
    need(rig, dtype)
    for size in (129, 4099):
        ones: NDArray[Any] = np.ones(size)
        if dtype in (F16, BF16):  # the sum has to be a number of the type, its parts need not
            ones[0] = 4096.0 - size % 4096 if dtype is F16 else 0
        elif not dtype.is_float:
            ones = rig.random.integers(-100, 100, size)
        x = ones.astype(NUMPY[dtype])
        wanted = x.astype(np.float64 if dtype.is_float else np.int64).sum()
        got = made(rig, of_tile(dtype, (size,), lambda x: reduce("sum", x, 0)), x, dtype, 1)
        exact = np.array([wanted]).astype(NUMPY[dtype])
        expect.same(got, exact, f"the sum of {size} {dtype.short}")
