"""The host's view of device memory: both sides see the same bytes."""

from __future__ import annotations

import numpy as np

from hal.core.description import Feature, MemorySpace
from hal.core.errors import InvalidCall, StaleHandle
from hal.core.values import Buffer
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.additions import add_number, number_type, numbers
from hal_conformance.case import Cases, Level
from hal_conformance.rig import Rig

memory_map = Cases("C", Level.CORE)

MAP = (Feature.MAP,)


def visible(rig: Rig) -> MemorySpace:
    """The first space whose bytes both sides see without a copy."""
    for space in rig.info.spaces:
        if space.host_visible and space.coherent:
            return space
    raise expect.Unfit("no space is visible to the host and coherent")


def mapped(rig: Rig, content: bytes) -> tuple[Buffer, memoryview]:
    """A buffer of that content and a writable view of it."""
    buffer = rig.buffer(content, space=visible(rig).name)
    return buffer, rig.device.map(buffer.region(), True)


@memory_map.case("map-sees-copies", "map.same", needs=MAP)
def _(rig: Rig) -> None:
    data, more = rig.noise(1000), rig.noise(10)
    buffer, view = mapped(rig, data)
    expect.same_bytes(bytes(view), data, "the view of a buffer that was written before")
    rig.write(buffer.region(501, 10), more)
    wanted = data[:501] + more + data[511:]
    expect.same_bytes(bytes(view), wanted, "the view after a copy")


@memory_map.case("map-sees-fills", "map.same", needs=MAP)
def _(rig: Rig) -> None:
    buffer, view = mapped(rig, bytes(64))
    rig.done(rig.device.fill(buffer.region(8, 16), b"\x5a\xa5", rig.timeline(), ()))
    expect.same_bytes(bytes(view), bytes(8) + b"\x5a\xa5" * 8 + bytes(40), "the view after a fill")


@memory_map.case("map-is-seen-by-copies", "map.same", needs=MAP)
def _(rig: Rig) -> None:
    data = rig.noise(1000)
    buffer, view = mapped(rig, bytes(1000))
    view[:] = data
    expect.same_bytes(rig.read(buffer), data, "the buffer after the host wrote to its view")
    target = rig.buffer(1000)
    view[999] ^= 0xFF
    rig.done(rig.device.copy(target.region(), buffer.region(), rig.timeline(), ()))
    wanted = data[:999] + bytes([data[999] ^ 0xFF])
    expect.same_bytes(rig.read(target), wanted, "a copy of the buffer")


@memory_map.case("map-and-kernel", "map.same", needs=MAP)
def _(rig: Rig) -> None:
    before = numbers(rig)
    buffer, view = mapped(rig, bytes(before.nbytes))
    view[:] = before.tobytes()
    rig.done(rig.launch(rig.program(add_number(rig, 3)), [buffer]))
    after = np.frombuffer(view, NUMPY[number_type(rig)])
    expect.same(after, before + before.dtype.type(3), "the view after a kernel")


@memory_map.case("map-part", "map.same", needs=MAP)
def _(rig: Rig) -> None:
    data = rig.noise(300)
    buffer = rig.buffer(data, space=visible(rig).name)
    for offset, nbytes in ((0, 300), (1, 299), (97, 101), (299, 1), (300, 0), (0, 0)):
        view = rig.device.map(buffer.region(offset, nbytes), True)
        wanted = data[offset : offset + nbytes]
        expect.same_bytes(bytes(view), wanted, f"the view of {nbytes} bytes at {offset}")
        view[:] = wanted
    expect.same_bytes(rig.read(buffer), data, "the buffer")


@memory_map.case("map-far", "map.same", needs=MAP, offset=(0, 4160, 65600, (1 << 20) + 64))
def _(rig: Rig, offset: int) -> None:
    """Views that begin far inside of a buffer, or are longer than a page table's entry; up to the
    buffer's end, and ending before it."""
    nbytes = (1 << 20) + 4096
    data = rig.noise(nbytes)
    buffer = rig.buffer(data, space=visible(rig).name)
    for end in (nbytes, nbytes - 192):
        view = rig.device.map(buffer.region(offset, end - offset), True)
        what = f"the view of the bytes from {offset} to {end} of {nbytes}"
        expect.same_bytes(bytes(view), data[offset:end], what)
        data = data[:offset] + rig.noise(end - offset) + data[end:]
        view[:] = data[offset:end]
        expect.same_bytes(rig.read(buffer), data, f"the buffer after writing to {what}")


@memory_map.case("map-twice", "map.same", needs=MAP)
def _(rig: Rig) -> None:
    buffer, view = mapped(rig, bytes(100))
    part = rig.device.map(buffer.region(40, 20), True)
    view[45], part[6] = 1, 2
    expect.equal((part[5], view[46]), (1, 2), "what each view sees of the other's writes")


@memory_map.case("map-read-only", "map.same", needs=MAP)
def _(rig: Rig) -> None:
    buffer = rig.buffer(b"abcd", space=visible(rig).name)
    view = rig.device.map(buffer.region(), False)
    expect.equal((bytes(view), view.readonly), (b"abcd", True), "bytes and readonly of the view")
    writable = rig.device.map(buffer.region(), True)
    expect.equal(writable.readonly, False, "readonly of a writable view")


@memory_map.case("map-while-busy", "map.same", "submit.waits", needs=MAP)
def _(rig: Rig) -> None:
    buffer, gate = rig.buffer(bytes(64), space=visible(rig).name), rig.gate()
    point = rig.device.fill(buffer.region(), b"\x77", rig.timeline(), [gate.point])
    view = rig.device.map(buffer.region(), False)
    expect.same_bytes(bytes(view), bytes(64), "the view while the fill waits")
    gate.open()
    rig.done(point)
    expect.same_bytes(bytes(view), b"\x77" * 64, "the view after the fill")


@memory_map.case("map-past-the-end", "call.refused", needs=MAP)
def _(rig: Rig) -> None:
    buffer = rig.buffer(16, space=visible(rig).name)
    for offset, nbytes in ((0, 17), (16, 1), (-1, 1), (1, -1)):
        expect.raises(InvalidCall, rig.device.map, buffer.region(offset, nbytes), True)


@memory_map.case("map-of-another-session", "handle.stale", "open.sessions", needs=MAP)
def _(rig: Rig) -> None:
    theirs = rig.buffer(16, rig.open(), visible(rig).name)
    expect.raises(StaleHandle, rig.device.map, theirs.region(), False)
