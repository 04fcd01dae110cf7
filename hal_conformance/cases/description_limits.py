"""Limits: at them it works, one past them it is refused."""

from __future__ import annotations

import numpy as np

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall, OutOfMemory
from hal.core.values import AllocOptions, Argument
from hal.tile.build import Builder, add
from hal.tile.kernel import Kernel
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.kernels import need
from hal_conformance.rig import Rig

description_limits = Cases("B", Level.CORE)

I32 = DType.I32
MOST_ARGS = 1 << 13
MOST_QUEUES = 1 << 16


def with_params(count: int) -> Kernel:
    """A kernel of that many parameters, which adds the first and the last scalar."""
    b = Builder("many")
    out = b.buffer("out", I32, reads=False, writes=True)
    scalars = [b.scalar(f"s{i}", I32) for i in range(count - 1)]
    b.store(out, 0, add(scalars[0], scalars[-1]))
    return b.kernel()


@description_limits.case("args-at-limit", "describe.limits", "bind.scalars")
def _(rig: Rig) -> None:
    need(rig, I32)
    count = rig.info.limits.args
    if not 2 <= count <= MOST_ARGS:
        raise expect.Unfit(f"{count} parameters are too few or too many for a test")
    out = rig.buffer(4)
    args: list[Argument] = [out, *range(1, count)]
    point = rig.launch(rig.program(with_params(count)), args)
    wanted = np.array([1 + count - 1], np.int32)
    expect.same(rig.array(out, I32, [point]), wanted, "the first and the last scalar, added")


@description_limits.case("args-past-limit", "describe.limits", "call.refused")
def _(rig: Rig) -> None:
    need(rig, I32)
    count = rig.info.limits.args + 1
    if count > MOST_ARGS:
        raise expect.Unfit(f"{count} parameters are too many for a test")
    expect.raises(InvalidCall, rig.device.load, rig.source(with_params(max(count, 2))))


@description_limits.case("alloc-past-limit", "describe.limits", "alloc.exhausted")
def _(rig: Rig) -> None:
    past = rig.info.limits.alloc_nbytes + 1
    error = expect.raises(OutOfMemory, rig.device.alloc, past, AllocOptions(label="too much"))
    expect.equal(error.requested, past, "the bytes asked for, in the error")
    expect.same_bytes(rig.read(rig.buffer(b"still")), b"still", "a buffer afterwards")


@description_limits.case("queues-at-limit", "describe.limits", "timeline.values", timeout_s=90)
def _(rig: Rig) -> None:
    """All of them exist at once, one more is refused, and a freed one makes room."""
    most = rig.info.limits.queues
    if most > MOST_QUEUES:
        raise expect.Unfit(f"{most} timelines are too many for a test")
    device = rig.device
    queues = [device.create_timeline(False) for _ in range(most)]
    expect.raises(InvalidCall, device.create_timeline, False)
    device.create_timeline(True)  # host-driven timelines are not queues
    buffer = device.alloc(1, AllocOptions())
    for queue in (queues[0], queues[-1]):
        rig.done(device.fill(buffer.region(), b"x", queue, ()))
    device.free(queues.pop())
    queue = device.create_timeline(False)
    point = device.fill(buffer.region(), b"y", queue, ())
    expect.equal(point.value, 1, "the first value of the timeline in a freed place")
    rig.done(point)
