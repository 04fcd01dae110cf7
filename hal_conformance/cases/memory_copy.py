"""Copies: every byte of the range, and no other."""

from __future__ import annotations

import itertools

import numpy as np

from hal.core.errors import InvalidCall, StaleHandle
from hal.core.facts import dataclass
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.cases.memory_alloc import allocatable, fits
from hal_conformance.rig import Rig

memory_copy = Cases("C", Level.CORE)

CANARY = b"\xc5"
WAYS = ("in", "out", "across")
"""From host memory, to host memory, from buffer to buffer."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """`nbytes` at an offset of the source, and of the destination."""

    nbytes: int
    to: int
    of: int


def moved(rig: Rig, way: str, source: bytes, whole: int, part: Part) -> bytes:
    """What `whole` bytes of canaries hold after the device copied the part of the source there."""
    before = CANARY * whole
    given = source[part.of : part.of + part.nbytes]
    if way == "in":
        target = rig.buffer(before)
        rig.write(target.region(part.to, part.nbytes), given)
        return rig.read(target)
    of = rig.buffer(source).region(part.of, part.nbytes)
    if way == "across":
        target = rig.buffer(before)
        rig.done(rig.device.copy(target.region(part.to, part.nbytes), of, rig.timeline(), ()))
        return rig.read(target)
    host = bytearray(before)
    view = memoryview(host)[part.to : part.to + part.nbytes]
    rig.done(rig.device.copy(view, of, rig.timeline(), ()))
    return bytes(host)


def check_moved(rig: Rig, way: str, part: Part) -> None:
    """The part arrives, and the canaries on both sides stay."""
    source = rig.noise(part.of + part.nbytes + 3)
    got = moved(rig, way, source, part.to + part.nbytes + 9, part)
    given = source[part.of : part.of + part.nbytes]
    wanted = CANARY * part.to + given + CANARY * 9
    expect.same_bytes(got, wanted, f"{part.nbytes} bytes from {part.of} copied to {part.to}")


@memory_copy.case("copy-odd-offset", "copy.exact", way=WAYS, offset=(1, 3, 5, 7))
def _(rig: Rig, way: str, offset: int) -> None:
    for nbytes, of in itertools.product((1, 2, 15, 33, 257), (0, offset, 8)):
        check_moved(rig, way, Part(nbytes, offset, of))


@memory_copy.case("copy-size-classes", "copy.exact", way=WAYS)
def _(rig: Rig, way: str) -> None:
    for power in range(0, 17, 2):
        for nbytes in (2**power - 1, 2**power, 2**power + 1):
            check_moved(rig, way, Part(nbytes, 16, 0))


@memory_copy.case("copy-large", "copy.exact", way=WAYS)
def _(rig: Rig, way: str) -> None:
    fits(rig, 5 * MIB)
    check_moved(rig, way, Part(4 * MIB + 3, 5, 1))


@memory_copy.case("copy-nothing", "copy.exact", way=WAYS)
def _(rig: Rig, way: str) -> None:
    for offset in (0, 7, 16):
        check_moved(rig, way, Part(0, offset, offset))


@memory_copy.case("copy-nothing-at-the-end", "copy.ranges")
def _(rig: Rig) -> None:
    buffer = rig.buffer(CANARY * 16)
    rig.write(buffer.region(16, 0), b"")
    expect.equal(rig.read(buffer.region(16, 0)), b"", "no bytes at the end")
    expect.same_bytes(rig.read(buffer), CANARY * 16, "the buffer")


@memory_copy.case("copy-within-a-buffer", "copy.exact")
def _(rig: Rig) -> None:
    for nbytes, to, of in ((16, 0, 16), (16, 16, 0), (5, 27, 1), (1, 0, 31)):
        data = bytearray(rig.noise(32))
        buffer = rig.buffer(bytes(data))
        to_part, of_part = buffer.region(to, nbytes), buffer.region(of, nbytes)
        rig.done(rig.device.copy(to_part, of_part, rig.timeline(), ()))
        data[to : to + nbytes] = data[of : of + nbytes]
        expect.same_bytes(rig.read(buffer), bytes(data), f"{nbytes} bytes moved from {of} to {to}")


@memory_copy.case("copy-each-pair-of-spaces", "copy.exact", "alloc.spaces")
def _(rig: Rig) -> None:
    for to, of in itertools.product(allocatable(rig), repeat=2):
        data = rig.noise(777)
        source = rig.buffer(data, space=of.name)
        target = rig.buffer(CANARY * 800, space=to.name)
        rig.done(rig.device.copy(target.region(11, 777), source.region(), rig.timeline(), ()))
        wanted = CANARY * 11 + data + CANARY * 12
        expect.same_bytes(rig.read(target), wanted, f"a copy from {of.name} to {to.name}")
        expect.same_bytes(rig.read(source), data, f"its source in {of.name}")


@memory_copy.case("copy-host-types", "copy.exact")
def _(rig: Rig) -> None:
    array = rig.random.integers(0, 1000, (3, 5), np.int32)
    data = array.tobytes()
    for host in (data, bytearray(data), memoryview(data), array.data):
        buffer = rig.buffer(len(data))
        rig.done(rig.device.copy(buffer.region(), host, rig.timeline(), ()))
        expect.same_bytes(rig.read(buffer), data, f"a copy of a {type(host).__name__}")
    back = np.zeros((3, 5), np.int32)
    rig.done(rig.device.copy(back.data, buffer.region(), rig.timeline(), ()))
    expect.same(back, array, "a copy to an array of two dimensions")


@memory_copy.case("copy-then-change-the-source", "copy.exact")
def _(rig: Rig) -> None:
    data = rig.noise(5000)
    host = bytearray(data)
    buffer = rig.buffer(5000)
    rig.done(rig.device.copy(buffer.region(), host, rig.timeline(), ()))
    host[:] = bytes(5000)
    expect.same_bytes(rig.read(buffer), data, "the buffer, after its source on the host changed")


@memory_copy.case("copy-then-change-the-buffer", "copy.exact")
def _(rig: Rig) -> None:
    data, host = rig.noise(5000), bytearray(5000)
    buffer = rig.buffer(data)
    rig.done(rig.device.copy(host, buffer.region(), rig.timeline(), ()))
    rig.done(rig.device.fill(buffer.region(), b"\0", rig.timeline(), ()))
    expect.same_bytes(bytes(host), data, "what was read, after the buffer changed")


@memory_copy.case("copy-source-kept-by-the-caller", "copy.exact", "submit.waits")
def _(rig: Rig) -> None:
    data, gate = rig.noise(3000), rig.gate()
    host, target = bytearray(data), rig.buffer(CANARY * 3000)
    point = rig.device.copy(target.region(), host, rig.timeline(), [gate.point])
    gate.open()
    expect.same_bytes(rig.read(target, waits=[point]), data, "a copy that had to wait")


@memory_copy.case("copy-past-the-end", "copy.ranges")
def _(rig: Rig) -> None:
    buffer, other = rig.buffer(16), rig.buffer(32)
    for offset, nbytes in ((8, 9), (16, 1), (17, 0), (0, 17), (-1, 4), (4, -1)):
        region = buffer.region(offset, nbytes)
        host = bytearray(max(nbytes, 0))
        for dst, src in ((region, host), (host, region), (region, other.region(0, nbytes))):
            expect.raises(InvalidCall, rig.device.copy, dst, src, rig.timeline(), ())


@memory_copy.case("copy-sizes-differ", "copy.sizes")
def _(rig: Rig) -> None:
    a, b = rig.buffer(16).region(), rig.buffer(17).region()
    for dst, src in ((a, b), (b, a), (a, bytes(15)), (bytearray(17), a), (a, b"")):
        expect.raises(InvalidCall, rig.device.copy, dst, src, rig.timeline(), ())


@memory_copy.case("copy-overlap", "copy.ranges")
def _(rig: Rig) -> None:
    buffer = rig.buffer(32)
    for to, of, nbytes in ((0, 0, 32), (0, 1, 16), (15, 0, 16), (4, 8, 5)):
        dst, src = buffer.region(to, nbytes), buffer.region(of, nbytes)
        expect.raises(InvalidCall, rig.device.copy, dst, src, rig.timeline(), ())


@memory_copy.case("copy-wrong-host-memory", "call.refused")
def _(rig: Rig) -> None:
    region = rig.buffer(16).region()
    strided = memoryview(bytearray(32))[::2]
    for dst, src in ((bytes(16), region), (memoryview(bytes(16)), region), (region, strided)):
        expect.raises(InvalidCall, rig.device.copy, dst, src, rig.timeline(), ())
    expect.raises(InvalidCall, rig.device.copy, bytearray(16), bytes(16), rig.timeline(), ())


@memory_copy.case("copy-refused-does-nothing", "call.refused", "timeline.values")
def _(rig: Rig) -> None:
    buffer = rig.buffer(CANARY * 16)
    t = rig.timeline()
    before = rig.device.copy(buffer.region(0, 1), CANARY, t, ())
    for size in (15, 17):
        expect.raises(InvalidCall, rig.device.copy, buffer.region(), bytes(size), t, ())
    after = rig.device.copy(buffer.region(0, 1), CANARY, t, ())
    expect.equal(after.value, before.value + 1, "the value after two refused copies")
    expect.same_bytes(rig.read(buffer), CANARY * 16, "the buffer after two refused copies")


@memory_copy.case("copy-of-another-session", "handle.stale", "open.sessions")
def _(rig: Rig) -> None:
    other = rig.open()
    theirs, ours = rig.buffer(CANARY * 16, other).region(), rig.buffer(CANARY * 16).region()
    for dst, src in ((theirs, bytes(16)), (bytearray(16), theirs), (ours, theirs), (theirs, ours)):
        expect.raises(StaleHandle, rig.device.copy, dst, src, rig.timeline(), ())
    ours_t, theirs_t = rig.timeline(), rig.timeline(other)
    expect.raises(StaleHandle, rig.device.copy, ours, bytes(16), theirs_t, ())
    expect.raises(StaleHandle, other.copy, theirs, bytes(16), ours_t, ())
