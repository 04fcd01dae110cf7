"""Allocation: sizes, spaces, alignment, zeroed bytes, and buffers that keep apart."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np

from hal.core.description import Feature, MemorySpace, SpaceKind
from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.values import (
    ATHREAD_C,
    LLVM_IR,
    OPENCL_C,
    AllocOptions,
    Buffer,
    KernelSource,
    Param,
    ParamKind,
)
from hal_conformance import expect
from hal_conformance.additions import COUNT, add_number
from hal_conformance.case import Cases, Level
from hal_conformance.crowd import together
from hal_conformance.kernels import need
from hal_conformance.rig import Rig

memory_alloc = Cases("C", Level.CORE)

PLAIN = AllocOptions()
MIB = 1 << 20


def allocatable(rig: Rig) -> list[MemorySpace]:
    """The spaces that `alloc` serves."""
    return [s for s in rig.info.spaces if s.kind is not SpaceKind.SCRATCHPAD]


def fits(rig: Rig, nbytes: int, count: int = 1) -> None:
    """There may be so many buffers of so many bytes, and a little more, else the case says nothing
    about the device."""
    if rig.info.limits.alloc_nbytes < nbytes:
        raise expect.Unfit(f"one allocation has at most {rig.info.limits.alloc_nbytes} bytes")
    memory = rig.info.space(SpaceKind.GLOBAL)
    if memory is not None and memory.nbytes < count * (nbytes + MIB):
        raise expect.Unfit(f"the device has {memory.nbytes} bytes, less than {count} of {nbytes}")


@memory_alloc.case("alloc-size", "alloc.apart", nbytes=(1, 61, 4095, 4096, 4097, MIB + 1))
def _(rig: Rig, nbytes: int) -> None:
    fits(rig, nbytes)
    buffer = rig.device.alloc(nbytes, PLAIN)
    expect.equal(buffer.nbytes, nbytes, "the buffer's size")
    data = rig.noise(nbytes)
    rig.write(buffer.region(), data)
    expect.same_bytes(rig.read(buffer), data, "the buffer")


@memory_alloc.case("alloc-handle", "alloc.apart")
def _(rig: Rig) -> None:
    buffer = rig.device.alloc(100, PLAIN)
    first = rig.info.space(SpaceKind.GLOBAL)
    expect.that(first is not None, "the device has no GLOBAL space, which alloc serves by default")
    told = (buffer.device, buffer.epoch, buffer.nbytes, buffer.space)
    wanted = (rig.name, rig.device.health().epoch, 100, first.name if first else "")
    expect.equal(told, wanted, "what the handle says")


@memory_alloc.case("alloc-empty", "alloc.empty")
def _(rig: Rig) -> None:
    empty, other = rig.device.alloc(0, PLAIN), rig.device.alloc(0, PLAIN)
    expect.equal(empty.nbytes, 0, "the size")
    rig.write(empty.region(), b"")
    expect.equal(rig.read(empty), b"", "the content")
    rig.done(rig.device.copy(other.region(), empty.region(), rig.timeline(), ()))
    rig.done(rig.device.fill(empty.region(), b"abcd", rig.timeline(), ()))
    rig.device.free(empty)
    expect.equal(rig.read(other), b"", "the other one, after the first was freed")


@memory_alloc.case("alloc-64-mib", "alloc.apart")
def _(rig: Rig) -> None:
    nbytes = 64 * MIB
    fits(rig, nbytes)
    buffer, data = rig.device.alloc(nbytes, PLAIN), rig.noise(5000)
    starts = (0, nbytes // 2 - 1, nbytes - 5000)
    for start in starts:
        rig.write(buffer.region(start, 5000), data)
    for start in starts:
        expect.same_bytes(rig.read(buffer.region(start, 5000)), data, f"bytes from {start}")


@memory_alloc.case("alloc-negative", "call.refused")
def _(rig: Rig) -> None:
    expect.raises(InvalidCall, rig.device.alloc, -1, PLAIN)


@memory_alloc.case("alloc-unknown-space", "call.refused")
def _(rig: Rig) -> None:
    expect.raises(InvalidCall, rig.device.alloc, 16, AllocOptions(space="no such space"))


@memory_alloc.case("alloc-scratchpad", "alloc.spaces")
def _(rig: Rig) -> None:
    spaces = [s for s in rig.info.spaces if s.kind is SpaceKind.SCRATCHPAD]
    if not spaces:
        raise expect.Unfit("the device has no scratchpad")
    for space in spaces:
        expect.raises(InvalidCall, rig.device.alloc, 16, AllocOptions(space=space.name))


@memory_alloc.case("alloc-each-space", "alloc.spaces")
def _(rig: Rig) -> None:
    for space in allocatable(rig):
        data = rig.noise(1000)
        buffer = rig.buffer(data, space=space.name)
        expect.equal(buffer.space, space.name, "the buffer's space")
        expect.same_bytes(rig.read(buffer), data, f"a buffer in {space.name}")


@memory_alloc.case("alloc-aligned", "alloc.apart", needs=(Feature.MAP,))
def _(rig: Rig) -> None:
    spaces = [s for s in allocatable(rig) if s.host_visible]
    if not spaces:
        raise expect.Unfit("no space is visible to the host")
    for space, nbytes in itertools.product(spaces, (1, 3, 100, 1, 4097, 70000)):
        buffer = rig.device.alloc(nbytes, AllocOptions(space=space.name))
        remainder = address(rig, buffer) % space.granularity
        expect.equal(remainder, 0, f"the address of {nbytes} bytes modulo {space.granularity}")


WHERE = {
    LLVM_IR: """define void @where(ptr %args, ptr %grid, i64 %begin, i64 %end) {
  %a = load ptr, ptr %args
  %out_slot = getelementptr i64, ptr %args, i64 1
  %out = load ptr, ptr %out_slot
  %address = ptrtoint ptr %a to i64
  store i64 %address, ptr %out
  ret void
}
""",
    OPENCL_C: """
__kernel void where(__global uchar *a, ulong at, __global uchar *out, ulong out_at) {
  *(__global ulong *)(out + out_at) = (ulong)(a + at);
}
""",
    ATHREAD_C: """#include <slave.h>
const char where_params[] = "buffer u8, buffer i64";
struct args { long grid[3]; char *a; long *out; };
__thread_local long address;
void where(void *raw) {
  struct args *p = raw;
  if (_PEN) return;
  address = (long)p->a;
  athread_dma_put(p->out, &address, sizeof address);
}
""",
}
"""By format: a program that stores the address of its first argument. Others have no addresses."""


@memory_alloc.case("alloc-aligned-in-programs", "alloc.apart")
def _(rig: Rig) -> None:
    """What a program sees of an allocation is aligned, also where the host sees nothing of it."""
    need(rig, DType.U8, DType.I64)
    known = [name for name in rig.info.formats if name in WHERE]
    if not known:
        raise expect.Unfit(f"no program in {', '.join(rig.info.formats)} sees an address")
    out = Param("out", ParamKind.BUFFER, DType.I64, reads=False, writes=True)
    params = (Param("a", ParamKind.BUFFER, DType.U8), out)
    program = rig.device.load(KernelSource(known[0], WHERE[known[0]], "where", params))
    for space, nbytes in itertools.product(allocatable(rig), (1, 3, 100, 1, 4097, 70000)):
        buffer = rig.device.alloc(nbytes, AllocOptions(space=space.name))
        place = rig.buffer(8)
        rig.done(rig.launch(program, (buffer, place), (1, 1, 1)))
        address = int.from_bytes(rig.read(place), "little")
        what = f"the address of {nbytes} bytes in {space.name} modulo {space.granularity}"
        expect.equal(address % space.granularity, 0, what)


@memory_alloc.case("alloc-many-apart", "alloc.apart")
def _(rig: Rig) -> None:
    buffers = [rig.device.alloc(1 + i * 37 % 250, PLAIN) for i in range(2000)]
    for i, buffer in enumerate(buffers):
        last = rig.device.fill(buffer.region(), bytes([i % 251]), rig.timeline(), ())
    rig.done(last)
    for i, buffer in enumerate(buffers):
        wanted = bytes([i % 251]) * buffer.nbytes
        expect.same_bytes(rig.read(buffer), wanted, f"buffer {i} of {len(buffers)}")


@memory_alloc.case("alloc-addresses-apart", "alloc.apart", needs=(Feature.MAP,))
def _(rig: Rig) -> None:
    if not next(iter(allocatable(rig))).host_visible:
        raise expect.Unfit("the host does not see the default space")
    buffers = [rig.device.alloc(1 + i * 61 % 5000, PLAIN) for i in range(300)]
    spans = sorted((address(rig, b), address(rig, b) + b.nbytes) for b in buffers)
    for (_, end), (begin, _) in itertools.pairwise(spans):
        expect.that(end <= begin, f"a buffer ends at {end:#x}, the next one begins at {begin:#x}")


@memory_alloc.case("alloc-zero", "alloc.zero", nbytes=(1, 1000, 65537, 4 * MIB))
def _(rig: Rig, nbytes: int) -> None:
    fits(rig, nbytes)
    for space in allocatable(rig):
        for _ in range(3):
            dirty = rig.device.alloc(nbytes, AllocOptions(space=space.name))
            rig.done(rig.device.fill(dirty.region(), b"\xff", rig.timeline(), ()))
            rig.device.free(dirty)
            clean = rig.device.alloc(nbytes, AllocOptions(space=space.name, zero=True))
            expect.same_bytes(rig.read(clean), bytes(nbytes), f"zeroed bytes in {space.name}")
            rig.device.free(clean)


@memory_alloc.case("alloc-zero-after-a-program", "alloc.zero", count=(1, 64))
def _(rig: Rig, count: int) -> None:
    """What a program wrote is as dirty as what was copied or filled."""
    number = add_number(rig, 7)
    program, nbytes = rig.program(number), COUNT * number.params[0].dtype.nbytes
    for _ in range(3):
        buffers = [rig.device.alloc(nbytes, AllocOptions(zero=True)) for _ in range(count)]
        rig.done([rig.launch(program, (buffer,)) for buffer in buffers][-1])
        for buffer in buffers:
            rig.device.free(buffer)
        for i in range(count):
            clean = rig.device.alloc(nbytes, AllocOptions(zero=True))
            what = f"zeroed bytes {i} of {count}, of which a program had written some"
            expect.same_bytes(rig.read(clean), bytes(nbytes), what)
            rig.device.free(clean)


@memory_alloc.case("alloc-zero-shareable", "alloc.zero", needs=(Feature.IPC,))
def _(rig: Rig) -> None:
    clean = rig.device.alloc(5000, AllocOptions(zero=True, shareable=True))
    expect.same_bytes(rig.read(clean), bytes(5000), "zeroed shareable bytes")


@memory_alloc.case("alloc-threads", "call.threads", "alloc.apart")
def _(rig: Rig) -> None:
    marks = range(1, 9)
    filled = together([partial(_allocate, rig, mark) for mark in marks])
    for mark, buffers in zip(marks, filled, strict=True):
        for buffer in buffers:
            wanted = bytes([mark]) * buffer.nbytes
            expect.same_bytes(rig.read(buffer), wanted, f"a buffer of thread {mark}")


def _allocate(rig: Rig, mark: int) -> list[Buffer]:
    """Half of 60 buffers that one thread allocated and filled; the others are freed again."""
    kept = []
    for i in range(60):
        buffer = rig.device.alloc(1 + i * 41 % 700, PLAIN)
        point = rig.device.fill(buffer.region(), bytes([mark]), rig.timeline(), ())
        if i % 2:
            rig.device.free(buffer)
        else:
            kept.append(buffer)
    rig.done(point)
    return kept


def address(rig: Rig, buffer: Buffer) -> int:
    """Where `map` shows the buffer."""
    view = rig.device.map(buffer.region(), False)
    return int(np.frombuffer(view, np.uint8).ctypes.data)
