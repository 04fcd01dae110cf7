"""Arguments: what a program is given is what it sees, and when."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.values import AllocOptions, Argument, Buffer, Region, Slot
from hal.tile.build import Builder, add
from hal.tile.kernel import Kernel
from hal.tile.numeric import NUMPY, bounds, constant, quiet
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.kernels import need
from hal_conformance.rig import Rig

kernels_arguments = Cases("E", Level.CORE)

F32, F64, I32 = DType.F32, DType.F64, DType.I32


def smallest(dtype: DType) -> float:
    """The smallest positive number of a float type."""
    return 2.0 ** (1 - dtype.bias - dtype.mantissa)


def extremes(dtype: DType) -> list[Any]:
    """Values at the ends of a type."""
    if dtype is DType.BOOL:
        return [False, True]
    if not dtype.is_float:
        low, high = bounds(dtype)
        return [low, low + 1, 0, 1, high // 3, high - 1, high]
    # 0.1 and 0.7: of each narrow type one of them is rounded up, another than it is cut
    finite = [0.0, 1.0, 1 / 3, 0.1, 0.7, dtype.largest, smallest(dtype)]
    return [*finite, *(-x for x in finite), math.inf, -math.inf, math.nan]


def keep(dtype: DType) -> Kernel:
    """Store the scalar."""
    b = Builder("keep")
    value = b.scalar("value", dtype)
    b.store(b.buffer("out", dtype, reads=False, writes=True), 0, value)
    return b.kernel()


def shift() -> Kernel:
    """out[:4] = x[:4] + by."""
    b = Builder("shift")
    x, out = b.buffer("x", I32), b.buffer("out", I32, reads=False, writes=True)
    b.store(out, 0, add(b.load(x, 0, (4,), (1,)), b.scalar("by", I32)), (1,))
    return b.kernel()


@kernels_arguments.case("scalar", "bind.scalars", dtype=tuple(DType))
def _(rig: Rig, dtype: DType) -> None:
    need(rig, dtype)
    program, values = rig.program(keep(dtype)), extremes(dtype)
    out = rig.buffer(len(values) * dtype.nbytes)
    for i, value in enumerate(values):
        region = out.region(i * dtype.nbytes, dtype.nbytes)
        point = rig.launch(program, [value, region])
    with quiet():
        wanted = np.stack([constant(v, dtype) for v in values])
    got = rig.array(out, dtype, [point])
    if dtype.is_float and not rig.info.numeric.denormals:
        tiny = np.abs(wanted.astype(np.float64)) <= smallest(dtype)
        got, wanted = np.where(tiny, 0, got), np.where(tiny, 0, wanted)
    expect.same(got, wanted, f"{dtype.short} scalars as the program saw them")
    if dtype.is_float:
        numbers = ~np.isnan(wanted.astype(np.float64))
        expect.same(np.signbit(got[numbers]), np.signbit(wanted[numbers]), "their signs")


@kernels_arguments.case("scalar-nan-payload", "bind.scalars")
def _(rig: Rig) -> None:
    need(rig, F64)
    bits = struct.pack("<Q", 0x7FF8_0000_1234_5678)
    out = rig.buffer(8)
    point = rig.launch(rig.program(keep(F64)), [struct.unpack("<d", bits)[0], out])
    expect.same_bytes(rig.read(out, waits=[point]), bits, "a NaN with a payload")


MIXED = {
    DType.I8: -3,
    F64: 0.1,
    DType.BOOL: True,
    DType.I16: -300,
    F32: 1.5,
    DType.U8: 200,
    DType.I64: -(2**62),
    DType.U16: 60000,
    DType.F16: 0.25,
    DType.U64: 2**63 + 1,
    I32: -70000,
}
"""Scalars of types whose sizes do not follow one another."""


@kernels_arguments.case("argument-order", "bind.scalars", "launch.exact")
def _(rig: Rig) -> None:
    wanted = {d: v for d, v in MIXED.items() if d in rig.info.dtypes}
    b = Builder("mixed")
    for dtype in wanted:
        scalar = b.scalar(f"s_{dtype.short}", dtype)
        b.store(b.buffer(f"b_{dtype.short}", dtype, reads=False, writes=True), 0, scalar)
    buffers = {d: rig.buffer(d.nbytes) for d in wanted}
    args: list[Argument] = [part for d, v in wanted.items() for part in (v, buffers[d])]
    kernel = b.kernel()
    expect.equal(len(kernel.params), len(args), "the number of parameters")
    point = rig.launch(rig.program(kernel), args)
    for dtype, value in wanted.items():
        got = rig.array(buffers[dtype], dtype, [point])
        expect.same(got, np.array([value], NUMPY[dtype]), f"the {dtype.short} argument")


@kernels_arguments.case("buffer-unused", "launch.exact", "launch.inside", nbytes=(0, 64))
def _(rig: Rig, nbytes: int) -> None:
    need(rig, I32)
    b = Builder("unused")
    b.buffer("unused", I32, writes=True)
    b.store(b.buffer("out", I32, reads=False, writes=True), 0, b.scalar("value", I32))
    content = rig.noise(nbytes)
    unused, out = rig.buffer(content), rig.buffer(4)
    point = rig.launch(rig.program(b.kernel()), [unused, out, 7])
    expect.same(rig.array(out, I32, [point]), np.array([7], np.int32), "the used buffer")
    expect.same_bytes(rig.read(unused), content, "the unused buffer")


@kernels_arguments.case("buffer-twice", "launch.exact")
def _(rig: Rig) -> None:
    need(rig, I32)
    b = Builder("twice")
    x, y = b.buffer("x", I32), b.buffer("y", I32)
    out = b.buffer("out", I32, reads=False, writes=True)
    total = add(b.load(x, 0, (4,), (1,)), b.load(y, 0, (4,), (1,)))
    b.store(out, 0, total, (1,))
    values = np.arange(4, dtype=np.int32)
    data, result = rig.buffer(values), rig.buffer(16)
    point = rig.launch(rig.program(b.kernel()), [data, data, result])
    expect.same(rig.array(result, I32, [point]), 2 * values, "x + x")


@kernels_arguments.case("buffer-in-place", "launch.exact")
def _(rig: Rig) -> None:
    need(rig, I32)
    values = np.arange(4, dtype=np.int32)
    data = rig.buffer(values)
    point = rig.launch(rig.program(shift()), [data, data, 10])
    expect.same(rig.array(data, I32, [point]), values + 10, "the buffer changed in place")


@kernels_arguments.case("regions-of-one-buffer", "launch.exact", "launch.inside", at=(0, 4, 20, 64))
def _(rig: Rig, at: int) -> None:
    need(rig, I32)
    content = rig.random.integers(0, 1000, 48, np.int32)
    data = rig.buffer(content)
    point = rig.launch(rig.program(shift()), [data.region(at, 16), data.region(at + 84, 16), 5])
    wanted, first = content.copy(), at // 4
    wanted[first + 21 : first + 25] = content[first : first + 4] + 5
    expect.same(rig.array(data, I32, [point]), wanted, "the buffer around the regions")


@kernels_arguments.case("read-only-untouched", "launch.inside")
def _(rig: Rig) -> None:
    need(rig, I32)
    content = rig.noise(64)
    data, out = rig.buffer(content), rig.buffer(16)
    point = rig.launch(rig.program(shift()), [data, out, 3])
    expect.same_bytes(rig.read(data, waits=[point]), content, "a buffer that is only read")


WRONG: Mapping[str, Callable[[Buffer, Buffer], Sequence[Any]]] = {
    "few": lambda x, out: (x, out),
    "many": lambda x, out: (x, out, 1, 1),
    "scalar-for-buffer": lambda x, out: (1, out, 1),
    "buffer-for-scalar": lambda x, out: (x, out, x),
    "too-large": lambda x, out: (x, out, 2**31),
    "too-small": lambda x, out: (x, out, -(2**31) - 1),
    "float-for-int": lambda x, out: (x, out, 1.0),
    "bool-for-int": lambda x, out: (x, out, True),
    "past-the-end": lambda x, out: (Region(x, 8, 9), out, 1),
    "negative-offset": lambda x, out: (Region(x, -4, 8), out, 1),
    "text": lambda x, out: (x, out, "1"),
}


@kernels_arguments.case("bind-refused", "bind.refused", "call.refused", what=tuple(WRONG))
def _(rig: Rig, what: str) -> None:
    need(rig, I32)
    program = rig.program(shift())
    args = WRONG[what](rig.buffer(16), rig.buffer(16))
    expect.raises(InvalidCall, rig.device.bind, program, args)


@kernels_arguments.case("buffers-by-reference", "bind.captures")
def _(rig: Rig) -> None:
    need(rig, I32)
    data, out = rig.buffer(np.zeros(4, np.int32)), rig.buffer(16)
    launchable = rig.device.bind(rig.program(shift()), [data, out, 1])
    values = np.arange(4, dtype=np.int32)
    rig.write(data.region(), values.tobytes())
    point = rig.device.launch(launchable, (1, 1, 1), rig.timeline(), ())
    expect.same(rig.array(out, I32, [point]), values + 1, "what was written after the bind, + 1")


@kernels_arguments.case("captured-in-flight", "bind.captures")
def _(rig: Rig) -> None:
    need(rig, I32)
    program, gate = rig.program(shift()), rig.gate()
    data, outs = rig.buffer(np.zeros(4, np.int32)), [rig.buffer(16) for _ in range(4)]
    held = [
        rig.launch(program, [data, out, 10 * i], waits=[gate.point]) for i, out in enumerate(outs)
    ]
    rig.device.bind(program, [outs[0], outs[1], -1])
    expect.that(rig.pending(held[0]), "a launch ran before what it waits for")
    gate.open()
    for i, out in enumerate(outs):
        wanted = np.full(4, 10 * i, np.int32)
        expect.same(rig.array(out, I32, held), wanted, f"launch {i} of one program in flight")


@kernels_arguments.case("bound-once-launched-often", "bind.captures", "launch.exact")
def _(rig: Rig) -> None:
    need(rig, I32)
    data = rig.buffer(np.zeros(4, np.int32))
    launchable = rig.device.bind(rig.program(shift()), [data, data, 3])
    for _ in range(20):
        point = rig.device.launch(launchable, (1, 1, 1), rig.timeline(), ())
    expect.same(rig.array(data, I32, [point]), np.full(4, 60, np.int32), "20 times + 3")


@kernels_arguments.case("freed-in-flight", "free.deferred")
def _(rig: Rig) -> None:
    need(rig, I32)
    program, gate = rig.program(shift()), rig.gate()
    data, out = rig.buffer(np.ones(4, np.int32)), rig.buffer(16)
    launchable = rig.device.bind(program, [data, out, 1])
    point = rig.device.launch(launchable, (1, 1, 1), rig.timeline(), (gate.point,))
    for handle in (launchable, program, data):
        rig.device.free(handle)
    others = [rig.device.alloc(16, AllocOptions(zero=True)) for _ in range(8)]
    gate.open()
    expect.same(rig.array(out, I32, [point]), np.full(4, 2, np.int32), "what a held launch wrote")
    for other in others:
        expect.same_bytes(rig.read(other), bytes(16), "memory allocated since")


@kernels_arguments.case("slots-refused", "call.refused", "bind.refused", needs=(Feature.GRAPH,))
def _(rig: Rig) -> None:
    need(rig, I32)
    launchable = rig.device.bind(rig.program(shift()), [rig.buffer(16), Slot(0), 1])
    expect.raises(InvalidCall, rig.device.launch, launchable, (1, 1, 1), rig.timeline(), ())
