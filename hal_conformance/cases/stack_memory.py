"""The pool and the plans on the device's memory: as much as planned, and what happens at the end
of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import stack.framework as ht
from hal.core.description import Feature, SpaceKind
from hal.core.dtypes import DType
from hal.core.errors import InvalidCall, OutOfMemory
from hal.core.values import AllocOptions, Buffer
from hal.tile.node import Node, Type
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.kernels import need
from hal_conformance.rig import Rig
from hal_conformance.seat import engine_on, seat, truth
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.framework import nn, optim

stack_memory = Cases("J", Level.RESILIENT)

F32 = DType.F32
MIB = 1 << 20
Values = NDArray[Any]


def _layers(count: int) -> tuple[list[Node], list[Node]]:
    """A chain in which each step keeps its whole result, and the chain's inputs."""
    type = Type((16, 64), F32)
    x, *weights = [g.input(i, type) for i in range(count + 1)]
    y = x
    for w in weights:
        y = g.contiguous(g.flip(g.maximum(g.mul(y, w), g.full_like(y, -0.1)), 1))
    return [g.reduce("sum", y, 1)], [x, *weights]


@stack_memory.case("peak-as-planned", "alloc.apart", "launch.exact")
def _(rig: Rig) -> None:
    """The pool's peak is within 5 % of what inputs, outputs and temporaries need at one time."""
    need(rig, F32)
    engine = engine_on(rig)
    outputs, inputs = _layers(3)
    hosts = [rig.random.uniform(-0.2, 0.2, n.shape).astype(np.float32) for n in inputs]
    arrays = [engine.put(x, F32) for x in hosts]
    plan = engine.plan(GraphRequest(tuple(outputs), tuple(inputs)))
    for _ in range(3):
        (result,) = plan.run(arrays)
    got, (wanted,) = (
        engine.get(result),
        truth(outputs, list(zip(inputs, hosts, strict=True))),
    )
    expect.near(got, wanted, np.full(got.shape, 1e-3), "the sums at the chain's end")
    # Two results live at once: the last one, and the one that `result` held until it was there.
    model = plan.live_nbytes + got.nbytes
    peak = engine.pool.stats().peak_nbytes
    expect.that(peak <= 1.05 * model, f"the pool's peak is {peak} bytes, the model says {model}")


@stack_memory.case("steps-allocate-nothing", "alloc.apart", "free.returns")
def _(rig: Rig) -> None:
    """A captured training step needs no more from its second time on, on the device either."""
    need(rig, F32)
    engine = engine_on(rig)
    with seat(engine):
        parameter = ht.tensor(np.ones((8, 8), np.float32))
        layer = nn.Linear(8, 8, bias=False)
        layer.load_state_dict({"weight": parameter})
        optimizer = optim.SGD(layer.parameters(), lr=0.01)

        @ht.jit
        def step(x: ht.Tensor) -> ht.Tensor:
            optimizer.zero_grad()
            loss: ht.Tensor = layer(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        x = ht.tensor(np.full((4, 8), 0.1, np.float32))
        losses = [step(x).item() for _ in range(3)]
        before = engine.pool.stats(), _raw(rig)
        losses += [step(x).item() for _ in range(30)]
        after = engine.pool.stats(), _raw(rig)
    expect.that(losses == sorted(losses, reverse=True), f"the losses do not fall: {losses}")
    for name in ("reserved_nbytes", "allocated_nbytes", "peak_nbytes", "raw_allocations"):
        expect.equal(getattr(after[0], name), getattr(before[0], name), f"the pool's {name}")
    expect.equal(after[1], before[1], "the device's memory")


def _raw(rig: Rig) -> object:
    """The device's own count, where it has one."""
    return rig.device.stats("") if Feature.STATS in rig.info.features else None


def fill_up(rig: Rig, leave: int) -> list[Buffer]:
    """Take the device's memory but for a rest of about `leave` bytes; gives what was taken."""
    space = rig.info.space(SpaceKind.GLOBAL)
    assert space is not None
    size = min(rig.info.limits.alloc_nbytes, space.nbytes)
    rest = rig.device.alloc(leave, AllocOptions())
    taken: list[Buffer] = []
    while size >= leave:
        try:
            taken.append(rig.device.alloc(size, AllocOptions(label="taken")))
        except OutOfMemory:
            size //= 2
    rig.device.free(rest)
    return taken


@stack_memory.case("memory-pressure", "alloc.exhausted", "free.returns")
def _(rig: Rig) -> None:
    """With little memory left arrays come and go for ever; too many at once are refused by an error
    that says who holds what; and when they are gone there is room again."""
    need(rig, F32)
    space = rig.info.space(SpaceKind.GLOBAL)
    if space is None or space.nbytes < 64 * MIB:
        raise expect.Unfit("the device has less than 64 MiB")
    taken = fill_up(rig, 16 * MIB)
    engine = engine_on(rig)
    host = np.ones(MIB // 2, np.float32)
    for _ in range(40):
        array = engine.put(host, F32)
    expect.same(engine.get(array), host, "the last of forty arrays in turn")
    held, error = [array], None
    while error is None and len(held) < 40:
        try:
            held.append(engine.put(host, F32))
        except OutOfMemory as refused:
            error = refused
    expect.that(error is not None, f"{len(held)} arrays of 2 MiB fit into what should be 16 MiB")
    assert error is not None
    expect.that("array f32" in str(error), f"the error names no holder: {error}")
    for one in held:
        expect.same(engine.get(one)[:4], host[:4], "an array that was there before")
    del held, one, array
    expect.same(engine.get(engine.put(host, F32)), host, "an array after the others went")
    for buffer in taken:
        rig.device.free(buffer)


@stack_memory.case("two-engines", "open.sessions", "handle.stale")
def _(rig: Rig) -> None:
    """Two engines on one device are apart: values, arrays, and the end of one."""
    need(rig, F32)
    one, other = engine_on(rig), engine_on(rig, rig.open())
    x = np.arange(6, dtype=np.float32)
    a, b = one.put(x, F32), other.put(-x, F32)
    expect.raises(InvalidCall, other.get, a)
    expect.same(one.get(a), x, "the first engine's array")
    one.close()
    expect.same(other.get(b), -x, "the second engine's array after the first engine's end")
