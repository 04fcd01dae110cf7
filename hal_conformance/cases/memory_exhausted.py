"""Too much memory: the error says how much, and the device stays usable."""

from __future__ import annotations

import contextlib

from hal.core.description import Feature, SpaceKind
from hal.core.errors import OutOfMemory
from hal.core.values import AllocOptions, Buffer
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.rig import Rig

memory_exhausted = Cases("C", Level.CORE)

PLAIN = AllocOptions()
REFUSALS = 200
ROOM_NBYTES = 4096
"""Of a device that allocates by bytes, room is found so exactly."""


@memory_exhausted.case("alloc-at-the-limit", "describe.limits")
def _(rig: Rig) -> None:
    whole = rig.device.alloc(rig.info.limits.alloc_nbytes, PLAIN)
    expect.equal(whole.nbytes, rig.info.limits.alloc_nbytes, "the largest buffer's size")
    ends = (whole.region(0, 1), whole.region(whole.nbytes - 1))
    for region in ends:
        rig.write(region, b"\x5a")
    for region in ends:
        expect.equal(rig.read(region), b"\x5a", f"the byte at {region.offset}")


@memory_exhausted.case(
    "alloc-past-the-limit", "describe.limits", "alloc.exhausted", more=(1, 1 << 62)
)
def _(rig: Rig, more: int) -> None:
    nbytes = rig.info.limits.alloc_nbytes + more
    error = expect.raises(OutOfMemory, rig.device.alloc, nbytes, PLAIN)
    expect.equal(error.requested, nbytes, "OutOfMemory.requested")
    expect.that(0 <= error.available < nbytes, f"OutOfMemory.available is {error.available}")
    check_usable(rig)


@memory_exhausted.case("alloc-until-exhausted", "alloc.exhausted")
def _(rig: Rig) -> None:
    buffers = exhaust(rig)
    rig.device.free(buffers.pop())
    buffers.append(rig.device.alloc(buffers[0].nbytes, PLAIN))
    expect.raises(OutOfMemory, rig.device.alloc, buffers[0].nbytes, PLAIN)


@memory_exhausted.case("alloc-exhausted-usable", "alloc.exhausted")
def _(rig: Rig) -> None:
    canary = rig.buffer(b"\x3c" * 1000)
    buffers = exhaust(rig)
    expect.same_bytes(rig.read(canary), b"\x3c" * 1000, "an older buffer, after OutOfMemory")
    data = rig.noise(1000)
    rig.write(buffers[-1].region(0, 1000), data)
    expect.same_bytes(rig.read(buffers[-1].region(0, 1000)), data, "the last buffer")
    for buffer in buffers:
        rig.device.free(buffer)
    check_usable(rig)


@memory_exhausted.case("alloc-exhausted-ten-times", "alloc.exhausted", "free.returns")
def _(rig: Rig) -> None:
    counts = []
    for _ in range(10):
        buffers = exhaust(rig)
        counts.append(len(buffers))
        for buffer in buffers:
            rig.device.free(buffer)
    expect.equal(counts, counts[:1] * 10, "how many buffers there was room for, ten times")


@memory_exhausted.case("alloc-exhausted-report", "alloc.exhausted")
def _(rig: Rig) -> None:
    nbytes = chunk(rig)
    weights = rig.device.alloc(nbytes, AllocOptions(label="weights"))
    error = expect.raises(OutOfMemory, rig.device.alloc, 1 << 62, PLAIN)
    if not error.held:
        raise expect.Unfit("OutOfMemory names no holders")
    expect.equal(error.held.get("weights"), weights.nbytes, "what OutOfMemory.held says")


@memory_exhausted.case(
    "alloc-exhausted-stats", "alloc.exhausted", "stats.exact", needs=(Feature.STATS,)
)
def _(rig: Rig) -> None:
    held = rig.device.alloc(1000, PLAIN)
    before = rig.device.stats("")
    expect.raises(OutOfMemory, rig.device.alloc, rig.info.limits.alloc_nbytes + 1, PLAIN)
    after = rig.device.stats("")
    told = (after.live_nbytes, after.live_buffers, after.peak_nbytes)
    wanted = (before.live_nbytes, before.live_buffers, before.peak_nbytes)
    expect.equal(told, wanted, "live bytes, live buffers and peak after OutOfMemory")
    rig.device.free(held)


@memory_exhausted.case("alloc-refused-leaves-room", "alloc.exhausted", "free.returns")
def _(rig: Rig) -> None:
    """What an allocator takes apart while it looks in vain, it puts together again. By count there
    is room for what is asked, but not in one piece; a device that has it nevertheless gets it
    back."""
    before = room(rig)
    parts = filled(rig, chunk(rig) // 8)
    for buffer in parts[::2]:
        rig.device.free(buffer)
    for _ in range(REFUSALS):
        with contextlib.suppress(OutOfMemory):
            rig.device.free(rig.device.alloc(chunk(rig), PLAIN))
    for buffer in parts[1::2]:
        rig.device.free(buffer)
    text = f"the bytes that there is room for, after {REFUSALS} allocations in vain"
    expect.equal(room(rig), before, text)


def chunk(rig: Rig) -> int:
    """A quarter of the largest allocation."""
    return max(1, rig.info.limits.alloc_nbytes // 4)


def exhaust(rig: Rig) -> list[Buffer]:
    """Allocate chunks until the device says OutOfMemory; gives them."""
    space = rig.info.space(SpaceKind.GLOBAL)
    expect.that(space is not None, "the device has no GLOBAL space, which alloc serves by default")
    nbytes, buffers = chunk(rig), list[Buffer]()
    most = (space.nbytes if space else 0) // nbytes
    while len(buffers) <= most:
        try:
            buffers.append(rig.device.alloc(nbytes, PLAIN))
        except OutOfMemory:
            expect.that(buffers, f"there was no room for a single buffer of {nbytes} bytes")
            return buffers
    raise expect.Wrong(f"{len(buffers)} buffers of {nbytes} bytes are more than the space has")


def filled(rig: Rig, nbytes: int) -> list[Buffer]:
    """As many buffers of so many bytes as the device has room for, sixty-four at most."""
    buffers: list[Buffer] = []
    with contextlib.suppress(OutOfMemory):
        while len(buffers) < 64:
            buffers.append(rig.device.alloc(nbytes, PLAIN))
    return buffers


def room(rig: Rig) -> int:
    """How many bytes the device gives: what is left is taken in ever smaller buffers, down to its
    granularity, and given back."""
    space = rig.info.space(SpaceKind.GLOBAL)
    expect.that(space is not None, "the device has no GLOBAL space, which alloc serves by default")
    least = max(ROOM_NBYTES, space.granularity if space else 0)
    nbytes, buffers = rig.info.limits.alloc_nbytes // least * least, list[Buffer]()
    while nbytes >= least:
        try:
            buffers.append(rig.device.alloc(nbytes, PLAIN))
        except OutOfMemory:
            nbytes = nbytes // 2 // least * least
    for buffer in buffers:
        rig.device.free(buffer)
    return sum(buffer.nbytes for buffer in buffers)


def check_usable(rig: Rig) -> None:
    """A small buffer can be had, written and read."""
    data = rig.noise(300)
    expect.same_bytes(rig.read(rig.buffer(data)), data, "a buffer after OutOfMemory")
