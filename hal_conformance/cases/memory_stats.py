"""Accounting to the byte, and a long seeded walk of allocations and frees."""

from __future__ import annotations

from hal.core.description import Feature, SpaceKind
from hal.core.errors import InvalidCall, OutOfMemory
from hal.core.values import AllocOptions, Buffer, MemoryStats
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.cases.memory_alloc import allocatable
from hal_conformance.rig import Rig

memory_stats = Cases("C", Level.CORE)

STATS = (Feature.STATS,)
PLAIN = AllocOptions()
MANY = 300


@memory_stats.case("stats-of-a-new-session", "stats.exact", needs=STATS)
def _(rig: Rig) -> None:
    expect.equal(rig.device.stats(""), MemoryStats(0, 0, 0, 0), "the counts")


@memory_stats.case("stats-count", "stats.exact", needs=STATS)
def _(rig: Rig) -> None:
    a, b = rig.device.alloc(1000, PLAIN), rig.device.alloc(3333, PLAIN)
    expect.equal(rig.device.stats(""), MemoryStats(4333, 4333, 2, 2), "the counts of two buffers")
    rig.device.free(a)
    expect.equal(rig.device.stats(""), MemoryStats(3333, 4333, 2, 1), "the counts after one free")
    c = rig.device.alloc(500, PLAIN)
    expect.equal(rig.device.stats(""), MemoryStats(3833, 4333, 3, 2), "the counts of two again")
    rig.device.free(b)
    rig.device.free(c)
    expect.equal(rig.device.stats(""), MemoryStats(0, 4333, 3, 0), "the counts after all frees")


@memory_stats.case("stats-of-large-buffers", "stats.exact", needs=STATS)
def _(rig: Rig) -> None:
    """Beyond each power of two at which a count may wrap, as far as the device has the memory."""
    for bits in (16, 24, 26):
        nbytes = (1 << bits) + 3
        before = rig.device.stats("")
        try:
            large = rig.device.alloc(nbytes, PLAIN)
        except OutOfMemory:
            break
        after = rig.device.stats("")
        peak = max(before.peak_nbytes, before.live_nbytes + nbytes)
        told = (after.live_nbytes - before.live_nbytes, after.peak_nbytes)
        expect.equal(told, (nbytes, peak), f"(live, peak) bytes with a buffer of {nbytes}")
        rig.device.free(large)


@memory_stats.case("stats-of-many", "stats.exact", needs=STATS)
def _(rig: Rig) -> None:
    """Each of many live buffers counts, and no longer when it is freed."""
    buffers = [rig.device.alloc(10, PLAIN) for _ in range(MANY)]
    wanted = MemoryStats(10 * MANY, 10 * MANY, MANY, MANY)
    expect.equal(rig.device.stats(""), wanted, f"the counts of {MANY} buffers")
    for buffer in buffers[: MANY // 2]:
        rig.device.free(buffer)
    left = MANY - MANY // 2
    wanted = MemoryStats(10 * left, 10 * MANY, MANY, left)
    expect.equal(rig.device.stats(""), wanted, f"the counts after {MANY // 2} were freed")


@memory_stats.case("stats-of-empty-buffers", "stats.exact", needs=STATS)
def _(rig: Rig) -> None:
    empty = rig.device.alloc(0, PLAIN)
    expect.equal(rig.device.stats(""), MemoryStats(0, 0, 1, 1), "the counts of an empty buffer")
    rig.device.free(empty)
    expect.equal(rig.device.stats(""), MemoryStats(0, 0, 1, 0), "the counts after its free")


@memory_stats.case("stats-of-each-space", "stats.exact", needs=STATS)
def _(rig: Rig) -> None:
    spaces = allocatable(rig)
    buffers = [
        rig.device.alloc(100 * (i + 1), AllocOptions(space=space.name))
        for i, space in enumerate(spaces)
    ]
    for buffer in buffers:
        told = rig.device.stats(buffer.space)
        wanted = MemoryStats(buffer.nbytes, buffer.nbytes, 1, 1)
        expect.equal(told, wanted, f"the counts of {buffer.space}")


@memory_stats.case("stats-default-space", "stats.exact", needs=STATS)
def _(rig: Rig) -> None:
    buffer, space = rig.device.alloc(123, PLAIN), rig.info.space(SpaceKind.GLOBAL)
    named = rig.device.stats(space.name if space else "")
    expect.equal(rig.device.stats(""), named, "the counts of the empty name")
    expect.equal(named.live_nbytes, buffer.nbytes, "live bytes")


@memory_stats.case("stats-unknown-space", "call.refused", needs=STATS)
def _(rig: Rig) -> None:
    expect.raises(InvalidCall, rig.device.stats, "no such space")


@memory_stats.case("stats-of-work", "stats.exact", needs=STATS)
def _(rig: Rig) -> None:
    buffers = [rig.device.alloc(1000, PLAIN) for _ in range(2)]
    before = rig.device.stats("")
    for _ in range(10):
        rig.write(buffers[0].region(), bytes(1000))
        rig.done(rig.device.copy(buffers[1].region(), buffers[0].region(), rig.timeline(), ()))
        rig.read(buffers[1])
    expect.equal(rig.device.stats(""), before, "the counts after copies")


@memory_stats.case("alloc-walk", "alloc.apart", "copy.exact")
def _(rig: Rig) -> None:
    walk = Walk(rig)
    for _ in range(4000):
        walk.step()
    while walk.live:
        walk.drop(0)
    walk.check_counts()


class Walk:
    """A random walk of allocations and frees, and what every live buffer must hold."""

    MOST = 48

    def __init__(self, rig: Rig) -> None:
        self.live: list[tuple[Buffer, bytes]] = []
        self._rig = rig
        self._count = 0
        self._counted = Feature.STATS in rig.info.features

    def step(self) -> None:
        """Allocate and fill, or check and free."""
        random = self._rig.random
        full = len(self.live) == self.MOST
        if full or (self.live and random.random() < 0.45):
            self.drop(int(random.integers(len(self.live))))
        else:
            self.grow(int(2 ** random.uniform(0, 13)))
        if self._count % 64 == 0:
            self.check_counts()

    def grow(self, nbytes: int) -> None:
        """A buffer filled with its own number."""
        self._count += 1
        buffer, mark = self._rig.device.alloc(nbytes, PLAIN), bytes([self._count % 255 + 1])
        self._rig.device.fill(buffer.region(), mark, self._rig.timeline(), ())
        self.live.append((buffer, mark))

    def drop(self, index: int) -> None:
        """A buffer still holds its number; it is freed."""
        buffer, mark = self.live.pop(index)
        what = f"a buffer of {buffer.nbytes} bytes, {len(self.live)} others being live"
        expect.same_bytes(self._rig.read(buffer), mark * buffer.nbytes, what)
        self._rig.device.free(buffer)

    def check_counts(self) -> None:
        """The device counts what is live, where it counts."""
        if not self._counted:
            return
        told = self._rig.device.stats("")
        wanted = (sum(b.nbytes for b, _ in self.live), len(self.live), self._count)
        got = (told.live_nbytes, told.live_buffers, told.allocations)
        expect.equal(got, wanted, "live bytes, live buffers and allocations")
