"""Scratch memory and the copies in and out of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from hal.core.description import SpaceKind
from hal.core.dtypes import DType
from hal.tile.build import Builder, add, broadcast, cast, mul, program_id, sub
from hal.tile.kernel import Kernel
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.kernels import index_of, need
from hal_conformance.rig import Rig

kernels_scratch = Cases("E", Level.CORE)

I32 = DType.I32


def _room(rig: Rig) -> int:
    """The bytes of scratch memory that an instance may have."""
    space = rig.info.space(SpaceKind.SCRATCHPAD)
    if space is None:
        raise expect.Unfit("the device declares no scratchpad")
    return space.nbytes


def _through(rig: Rig, dtype: DType, count: int) -> Kernel:
    """y = x, a block of `count` through scratch memory by copies."""
    b = Builder("through")
    x, y = b.buffer("x", dtype), b.buffer("y", dtype, reads=False, writes=True)
    pad = b.alloc("pad", dtype, count)
    start = mul(program_id(), count)
    left = sub(index_of(rig, b, "count"), start)
    b.copy(b.access(pad, 0, (1,)), b.access(x, start, (1,), (left,)), (count,))
    b.wait()
    b.barrier()
    b.copy(b.access(y, start, (1,), (left,)), b.access(pad, 0, (1,)), (count,))
    b.wait()
    return b.kernel()


@kernels_scratch.case("scratch-copy", "launch.exact", "launch.inside", size=(1, 33, 1024))
def _(rig: Rig, size: int) -> None:
    need(rig, I32)
    if size * 4 > _room(rig):
        raise expect.Unfit(f"the scratchpad has no {size * 4} bytes")
    count = 2 * size + size // 2 + 1
    values = rig.random.integers(-(2**31), 2**31, count).astype(np.int32)
    room = np.full(count + 16, -1, np.int32)
    got = rig.run(_through(rig, I32, size), {"x": values, "y": room, "count": count}, (3, 1, 1))
    expect.same(got["y"][:count], values, "what came through")
    expect.same(got["y"][count:], room[count:], "what lies behind it")


@kernels_scratch.case("scratch-copy-type", "launch.exact", dtype=tuple(DType))
def _(rig: Rig, dtype: DType) -> None:
    need(rig, dtype)
    if 13 * dtype.nbytes > _room(rig):
        raise expect.Unfit(f"the scratchpad has no {13 * dtype.nbytes} bytes")
    values = rig.random.integers(0, 2, 20 * dtype.nbytes, np.uint8).view(NUMPY[dtype])
    arguments: dict[str, Any] = {"x": values, "y": np.zeros_like(values), "count": 20}
    got = rig.run(_through(rig, dtype, 13), arguments, (2, 1, 1))
    expect.same_bytes(got["y"].tobytes(), values.tobytes(), "what came through")


@kernels_scratch.case("scratch-at-limit", "describe.limits", "launch.exact")
def _(rig: Rig) -> None:
    need(rig, I32)
    count = _room(rig) // 4
    if not count:
        raise expect.Unfit("the scratchpad has no room for one element")
    b = Builder("at_limit")
    y = b.buffer("y", I32, reads=False, writes=True)
    pad = b.alloc("pad", I32, count)
    b.store(pad, 0, cast(program_id(), I32))
    b.store(pad, count - 1, add(cast(program_id(), I32), 5))
    b.store(y, program_id(), b.load(pad, count - 1))
    got = rig.run(b.kernel(), {"y": np.zeros(3, np.int32)}, (3, 1, 1))
    expect.same(got["y"], np.arange(5, 8, dtype=np.int32), "the last element of the scratchpad")


@kernels_scratch.case("scratch-private", "launch.exact")
def _(rig: Rig) -> None:
    """Instances that run at once and one after the other do not see each other's scratch."""
    need(rig, I32)
    if _room(rig) < 64:
        raise expect.Unfit("the scratchpad has less than 64 bytes")
    b = Builder("private")
    y = b.buffer("y", I32, reads=False, writes=True)
    pad = b.alloc("pad", I32, 16)
    b.store(pad, 0, broadcast(cast(program_id(), I32), (16,)), (1,))
    b.barrier()

    def again(i: Node) -> None:
        b.store(pad, 0, add(b.load(pad, 0, (16,), (1,)), 1), (1,))
        b.barrier()

    b.loop(0, 8, 1, again)
    b.store(y, mul(program_id(), 16), b.load(pad, 0, (16,), (1,)), (1,))
    got = rig.run(b.kernel(), {"y": np.zeros(64 * 16, np.int32)}, (64, 1, 1))
    wanted = np.repeat(np.arange(64, dtype=np.int32) + 8, 16)
    expect.same(got["y"], wanted, "each instance's scratch")


@kernels_scratch.case("scratch-double-buffered", "launch.exact", count=(16, 64, 70))
def _(rig: Rig, count: int) -> None:
    """Two halves and two channels: one half is filled while the other is used."""
    need(rig, I32)
    if _room(rig) < 128:
        raise expect.Unfit("the scratchpad has less than 128 bytes")
    width = 16
    b = Builder("double_buffered")
    x, y = b.buffer("x", I32), b.buffer("y", I32, reads=False, writes=True)
    halves = [b.alloc(f"half{i}", I32, width) for i in range(2)]
    n = index_of(rig, b, "n")

    def fetch(start: Node, half: int) -> None:
        source = b.access(x, start, (1,), (sub(n, start),))
        b.copy(b.access(halves[half], 0, (1,)), source, (width,), half)

    def use(start: Node, half: int) -> None:
        b.wait(half)
        value = b.load(halves[half], 0, (width,), (1,), (sub(n, start),))
        b.store(y, start, mul(value, 3), (1,), (sub(n, start),))

    def body(i: Node) -> None:
        fetch(add(i, width), 1)
        use(i, 0)
        fetch(add(i, 2 * width), 0)
        use(add(i, width), 1)

    fetch(mul(program_id(), 0), 0)
    b.loop(0, n, 2 * width, body)
    b.wait(0)
    values = np.arange(count, dtype=np.int32)
    got = rig.run(b.kernel(), {"x": values, "y": np.zeros_like(values), "n": count})
    expect.same(got["y"], 3 * values, "what came through both halves")


@kernels_scratch.case("scratch-copies-together", "launch.exact", count=(2, 5))
def _(rig: Rig, count: int) -> None:
    """One wait is for all copies of its channel, in and out."""
    need(rig, I32)
    if count * 64 > _room(rig):
        raise expect.Unfit(f"the scratchpad has less than {count * 64} bytes")
    b = Builder("together")
    x, y = b.buffer("x", I32), b.buffer("y", I32, reads=False, writes=True)
    pads = [b.alloc(f"pad{i}", I32, 16) for i in range(count)]
    for i, pad in enumerate(pads):
        b.copy(b.access(pad, 0, (1,)), b.access(x, 16 * i, (1,)), (16,), 1)
    b.wait(1)
    b.barrier()
    for i, pad in enumerate(pads):
        b.copy(b.access(y, 16 * (count - 1 - i), (1,)), b.access(pad, 0, (1,)), (16,), 1)
    b.wait(1)
    values = np.arange(16 * count, dtype=np.int32)
    got = rig.run(b.kernel(), {"x": values, "y": np.full_like(values, -1)})
    wanted = values.reshape(count, 16)[::-1].ravel()
    expect.same(got["y"], wanted, f"what {count} copies that one wait is for brought")


@kernels_scratch.case("scratch-strided-copy", "launch.exact")
def _(rig: Rig) -> None:
    need(rig, I32)
    if _room(rig) < 4 * 60:
        raise expect.Unfit("the scratchpad has less than 240 bytes")
    b = Builder("strided_copy")
    x, y = b.buffer("x", I32), b.buffer("y", I32, reads=False, writes=True)
    pad = b.alloc("pad", I32, 60)
    b.copy(b.access(pad, 0, (10, 1)), b.access(x, 1, (1, 9)), (6, 10), 3)
    b.wait(3)
    b.copy(b.access(y, 0, (1, 6), (6, 9)), b.access(pad, 0, (10, 1)), (6, 10), 0)
    b.wait(0)
    arguments = {"x": np.arange(100, dtype=np.int32), "y": np.full(60, -1, np.int32)}
    got, wanted = rig.run(b.kernel(), arguments), rig.golden(b.kernel(), arguments)
    expect.same(got["y"], wanted["y"], "a block copied by two strides")
