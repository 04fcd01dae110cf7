"""What instances load and store: strided, masked and indexed, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.dtypes import DType
from hal.tile.build import (
    Builder,
    Operand,
    add,
    arange,
    binary,
    const,
    mul,
    program_id,
    sub,
    transpose,
    where,
)
from hal.tile.kernel import Kernel
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.kernels import agree, counts, index_of, need
from hal_conformance.rig import Rig

kernels_memory = Cases("E", Level.CORE)

I32, I64 = DType.I32, DType.I64
CANARY = 0x5A5A5A5A
EDGE = 8
"""Canary elements on either side of what a kernel may write."""


def _agrees(rig: Rig, kernel: Kernel, arguments: dict[str, Any], blocks: int = 1) -> None:
    need(rig, *(p.dtype for p in kernel.params))
    got = rig.run(kernel, arguments, (blocks, 1, 1))
    wanted = rig.golden(kernel, arguments, (blocks, 1, 1))
    for name, array in wanted.items():
        expect.same(got[name], array, f"buffer {name}")


def _fenced(count: int) -> NDArray[np.int32]:
    """Room for `count` elements among canaries."""
    return np.full(count + 2 * EDGE, CANARY, np.int32)


def _any_bits(rig: Rig, dtype: DType, count: int) -> NDArray[Any]:
    if dtype is DType.BOOL:
        return rig.random.integers(0, 2, count).astype(np.bool_)
    return np.frombuffer(rig.noise(dtype.nbytes_of(count)), NUMPY[dtype])


@kernels_memory.case("load-store", "launch.exact", dtype=tuple(DType))
def _(rig: Rig, dtype: DType) -> None:
    agree(rig, lambda x: [x], [_any_bits(rig, dtype, 96)], [dtype], f"{dtype.short} unchanged")


@kernels_memory.case(
    "tail", "launch.inside", "launch.exact", count=(1, 15, 31, 32, 33, 63, 65), width=(4, 32)
)
def _(rig: Rig, count: int, width: int) -> None:
    """The last block is cut at `count`."""
    b = Builder("tail")
    x, y = b.buffer("x", I32), b.buffer("y", I32, reads=False, writes=True)
    start = mul(program_id(), width)
    left = sub(index_of(rig, b, "count"), start)
    value = b.load(x, start, (width,), (1,), (left,))
    b.store(y, add(start, EDGE), add(value, 1), (1,), (left,))
    arguments = {"x": np.arange(count, dtype=np.int32), "y": _fenced(count), "count": count}
    _agrees(rig, b.kernel(), arguments, -(-count // width) + 1)


@kernels_memory.case("tail-bytes", "launch.inside", dtype=(DType.I8, DType.BOOL, DType.F16))
def _(rig: Rig, dtype: DType) -> None:
    """As `tail`, for elements smaller than a word of memory."""
    b = Builder("tail_bytes")
    x, y = b.buffer("x", dtype), b.buffer("y", dtype, reads=False, writes=True)
    count = index_of(rig, b, "count")
    b.store(y, EDGE, b.load(x, 0, (32,), (1,), (count,)), (1,), (count,))
    for n in (1, 3, 17, 31):
        canaries = np.ones(32 + 2 * EDGE, NUMPY[dtype])
        _agrees(rig, b.kernel(), {"x": np.zeros(n, NUMPY[dtype]), "y": canaries, "count": n})


@kernels_memory.case("limit-not-positive", "launch.inside", limit=(0, -3))
def _(rig: Rig, limit: int) -> None:
    b = Builder("nothing")
    x, y = b.buffer("x", I32), b.buffer("y", I32, writes=True)
    n = index_of(rig, b, "n")
    b.store(y, EDGE, b.load(x, 0, (8,), (1,), (n,)), (1,), (n,))
    _agrees(rig, b.kernel(), {"x": np.ones(8, np.int32), "y": _fenced(8), "n": limit})


@kernels_memory.case("other-outside-limit", "launch.exact", given=(True, False))
def _(rig: Rig, given: bool) -> None:
    b = Builder("other")
    x, y = b.buffer("x", I32), b.buffer("y", I32, reads=False, writes=True)
    other = const(-7, I32) if given else None
    b.store(y, 0, b.load(x, 0, (3, 8), (5, 1), (2, 5), other), (8, 1))
    _agrees(rig, b.kernel(), {"x": np.arange(10, dtype=np.int32) + 1, "y": _fenced(8)})


STRIDES = {"rows": (20, 1), "columns": (1, 7), "apart": (40, 3), "repeated": (0, 1)}


@kernels_memory.case("strided-load", "launch.exact", which=tuple(STRIDES))
def _(rig: Rig, which: str) -> None:
    b = Builder("strided")
    x, y = b.buffer("x", I32), b.buffer("y", I32, reads=False, writes=True)
    b.store(y, 0, b.load(x, 2, (4, 7), STRIDES[which]), (7, 1))
    _agrees(rig, b.kernel(), {"x": np.arange(160, dtype=np.int32), "y": _fenced(28)})


@kernels_memory.case("strided-store", "launch.inside", which=("rows", "columns", "apart"))
def _(rig: Rig, which: str) -> None:
    b = Builder("strided")
    x, y = b.buffer("x", I32), b.buffer("y", I32, writes=True)
    strides: tuple[Operand, ...] = STRIDES[which]
    b.store(y, 3, b.load(x, 0, (4, 7), (7, 1)), strides, (None, 6))
    _agrees(rig, b.kernel(), {"x": np.arange(28, dtype=np.int32), "y": _fenced(160)})


@kernels_memory.case("reversed", "launch.exact")
def _(rig: Rig) -> None:
    b = Builder("reversed")
    x, y = b.buffer("x", I32), b.buffer("y", I32, reads=False, writes=True)
    b.store(y, 0, b.load(x, 15, (16,), (-1,)), (1,))
    _agrees(rig, b.kernel(), {"x": np.arange(16, dtype=np.int32), "y": _fenced(0)})


@kernels_memory.case("transposed", "launch.exact")
def _(rig: Rig) -> None:
    b = Builder("transposed")
    x, y = b.buffer("x", I32), b.buffer("y", I32, reads=False, writes=True)
    b.store(y, 0, transpose(b.load(x, 0, (5, 8), (8, 1)), (1, 0)), (5, 1))
    _agrees(rig, b.kernel(), {"x": np.arange(40, dtype=np.int32), "y": _fenced(24)})


@kernels_memory.case("stores-in-order", "launch.exact")
def _(rig: Rig) -> None:
    """An instance sees its own stores, and the last one of a place stays."""
    b = Builder("in_order")
    y = b.buffer("y", I32, writes=True)
    b.store(y, 0, add(b.load(y, 0, (8,), (1,)), 1), (1,))
    b.store(y, 4, mul(b.load(y, 0, (8,), (1,)), 2), (1,))
    b.store(y, 0, add(b.load(y, 6), 5))
    _agrees(rig, b.kernel(), {"y": np.arange(12, dtype=np.int32)})


def _indexed(b: Builder, masked: bool, dtype: DType) -> tuple[Node, Node | None]:
    index = b.load(b.buffer("i", dtype), 0, (13,), (1,))
    return index, binary("ne", binary("rem", arange(13), 3), 1) if masked else None


@kernels_memory.case("gather", "launch.exact", dtype=(I32, I64), masked=(False, True))
def _(rig: Rig, dtype: DType, masked: bool) -> None:
    b = Builder("gather")
    x, y = b.buffer("x", I32), b.buffer("y", I32, reads=False, writes=True)
    index, mask = _indexed(b, masked, dtype)
    b.store(y, 0, b.gather(x, index, mask, const(-1, I32) if masked else None), (1,))
    places = rig.random.integers(0, 40, 13).astype(NUMPY[dtype])
    if masked:  # what the mask leaves out is never looked at
        places[1::3] = 10**9
    _agrees(rig, b.kernel(), {"x": np.arange(40, dtype=np.int32), "i": places, "y": _fenced(0)})


@kernels_memory.case("scatter", "launch.inside", dtype=(I32, I64), masked=(False, True))
def _(rig: Rig, dtype: DType, masked: bool) -> None:
    b = Builder("scatter")
    y = b.buffer("y", I32, writes=True)
    index, mask = _indexed(b, masked, dtype)
    b.scatter(y, index, arange(13, I32), mask)
    places = rig.random.permutation(40)[:13].astype(NUMPY[dtype])
    if masked:
        places[1::3] = 10**9
    _agrees(rig, b.kernel(), {"i": places, "y": np.full(40, CANARY, np.int32)})


@kernels_memory.case("mask-long", "launch.inside", "launch.exact", count=(65, 300))
def _(rig: Rig, count: int) -> None:
    """A mask says of each element, also of the last ones of a long tile, whether it is touched;
    where it says no, the place is never looked at, and a choice takes the other value."""
    need(rig, I32)
    dtype = counts(rig)
    b = Builder("mask_long")
    x, i = b.buffer("x", I32), b.load(b.buffer("i", dtype), 0, (count,), (1,))
    y, z = (b.buffer(name, I32, reads=False, writes=True) for name in "yz")
    mask = binary("lt", binary("rem", arange(count), 3), 1)
    b.store(y, 0, where(mask, b.gather(x, i, mask, const(-1, I32)), arange(count, I32)), (1,))
    b.scatter(z, i, arange(count, I32), mask)
    places = rig.random.permutation(count).astype(NUMPY[dtype])
    places[np.arange(count) % 3 > 0] = 10**9
    values = np.arange(count, dtype=np.int32) + 1000
    empty = np.full(count, CANARY, np.int32)
    _agrees(rig, b.kernel(), {"x": values, "i": places, "y": empty, "z": empty.copy()})


@kernels_memory.case("scatter-equal-places", "launch.exact")
def _(rig: Rig) -> None:
    """One of the values is kept, and each is of the right place."""
    need(rig, I32)
    b = Builder("equal")
    b.scatter(b.buffer("y", I32, writes=True), binary("rem", arange(12), 3), arange(12, I32))
    got = rig.run(b.kernel(), {"y": np.full(4, CANARY, np.int32)})["y"]
    expect.equal(int(got[3]), CANARY, "the place behind")
    expect.same(got[:3] % 3, np.arange(3, dtype=np.int32), "which value each place kept")
    expect.that((got[:3] < 12).all(), f"values that nothing stored: {got[:3]}")
