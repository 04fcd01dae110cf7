"""Tiles larger than a group, and smaller ones, in few kernels: a device's compiler takes long for
each."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.build import (
    Builder,
    add,
    arange,
    binary,
    broadcast,
    const,
    dot,
    mul,
    reduce,
    reshape,
    scan,
    transpose,
)
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from tests.compiler.c.agreement import agree
from tests.compiler.c.test_products import small
from tests.compiler.simt.machine import run


@pytest.mark.slow
@pytest.mark.turns
def test_along_both_axes_of_a_wide_tile() -> None:
    b, shape = Builder("along"), (3, 50)
    x, y = b.buffer("x", DType.F32), b.buffer("y", DType.F32, writes=True)
    place = 0
    tile = b.load(x, 0, shape, (shape[1], 1))
    for axis in (0, 1):
        total = reduce("sum", tile, axis)
        b.store(y, place, total, (1,))
        whole = broadcast(reshape(total, tuple(np.insert(total.shape, axis, 1))), shape)
        b.store(y, place + 512, binary("sub", tile, whole), (shape[1], 1))
        b.store(y, place + 1024, scan("sum", tile, axis), (shape[1], 1))
        turned = transpose(scan("max", tile, axis), (1, 0))
        b.store(y, place + 1536, turned, (shape[0], 1))
        place += 2048
    flat = reshape(binary("mul", tile, tile), (shape[0] * shape[1],))
    b.store(y, place, scan("min", flat, 0), (1,))
    place += 512
    buffers = {"x": small(DType.F32, 150), "y": np.zeros(place, np.float32)}
    agree(b.kernel(), (1,), buffers, run=partial(run, lanes=16))


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(
    ("narrow", "dtype", "lanes"),
    [(DType.BF16, DType.F32, 64), (DType.I8, DType.I32, 256)],
)
def test_products_alone_and_in_loops(narrow: DType, dtype: DType, lanes: int) -> None:
    b = Builder("products")
    x, w, y = b.buffer("x", narrow), b.buffer("w", narrow), b.buffer("y", dtype, writes=True)

    def step(k: Node, total: Node) -> list[Node]:
        left = b.load(x, mul(k, 4), (20, 4), (12, 1))
        right = transpose(b.load(w, mul(k, 4), (40, 4), (12, 1)), (1, 0))
        return [dot(left, right, total)]

    start = b.load(y, 0, (20, 40), (40, 1))
    (total,) = b.loop(0, 3, 1, step, [start])
    b.store(y, 800, add(total, broadcast(b.load(y, 0, (1, 40), (40, 1)), (20, 40))), (40, 1))
    whole = b.load(x, 0, (20, 5), (1, 20), (18, None))
    b.store(y, 1600, transpose(dot(whole, b.load(w, 0, (5, 40), (40, 1)), start), (1, 0)), (20, 1))
    buffers = {"x": small(narrow, 240), "w": small(narrow, 480), "y": small(dtype, 2400)}
    agree(b.kernel(), (1,), buffers, run=partial(run, lanes=lanes))


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("lanes", [16, 64])
def test_memory_that_instances_and_lanes_share(lanes: int) -> None:
    b = Builder("shared")
    x, y = b.buffer("x", DType.I32), b.buffer("y", DType.I32, writes=True)
    row = b.alloc("row", DType.I32, 300)
    b.store(row, 0, b.load(x, 0, (300,), (1,)), (1,))

    def step(i: Node, a: Node, c: Node) -> list[Node]:
        b.store(row, 0, add(b.load(row, 1, (299,), (1,)), i), (1,))
        back = binary("sub", const(299, DType.I64, (300,)), arange(300))
        return [c, add(a, b.gather(row, back))]

    first = b.load(x, 300, (300,), (1,))
    a, c = b.loop(0, 3, 1, step, [first, mul(first, 2)])
    b.store(y, 0, a, (1,))
    b.scatter(y, add(mul(arange(300), 2), 300), c, binary("lt", arange(300), 290))
    b.atomic("add", y, binary("rem", arange(300), 7), a)
    b.atomic("max", y, binary("rem", arange(300), 5), c)
    b.store(y, 0, add(b.load(y, 0), 1))
    target, source = b.access(y, 900, (1,)), b.access(row, 0, (1,))
    b.copy(target, source, (300,))
    b.wait()
    buffers = {"x": small(DType.I32, 600), "y": np.zeros(1200, NUMPY[DType.I32])}
    agree(b.kernel(), (1,), buffers, run=partial(run, lanes=lanes))
