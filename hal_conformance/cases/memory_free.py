"""Freeing: once, not under work in flight, and back to the device at once."""

from __future__ import annotations

from collections.abc import Callable

from hal.core.description import Feature
from hal.core.errors import Failure, FailureKind, Scope, StaleHandle
from hal.core.values import AllocOptions, Buffer, Point
from hal_conformance import expect
from hal_conformance.additions import add_number
from hal_conformance.case import Cases, Level
from hal_conformance.rig import Gate, Rig

memory_free = Cases("C", Level.CORE)

PLAIN = AllocOptions()
ZERO = AllocOptions(zero=True)
NBYTES = 4096


@memory_free.case("free-twice", "free.twice")
def _(rig: Rig) -> None:
    buffer, other = rig.buffer(16), rig.buffer(b"\x11" * 16)
    rig.device.free(buffer)
    expect.raises(StaleHandle, rig.device.free, buffer)
    again = rig.buffer(b"\x22" * 16)
    expect.raises(StaleHandle, rig.device.free, buffer)
    expect.equal(rig.read(other) + rig.read(again), b"\x11" * 16 + b"\x22" * 16, "live buffers")


@memory_free.case("free-of-another-session", "handle.stale", "open.sessions")
def _(rig: Rig) -> None:
    ours = rig.buffer(b"\x33" * 16)
    other = rig.open()
    expect.raises(StaleHandle, other.free, ours)
    expect.equal(rig.read(ours), b"\x33" * 16, "the buffer that another session tried to free")


@memory_free.case("free-then-use", "handle.stale")
def _(rig: Rig) -> None:
    gone, live, t = rig.buffer(16), rig.buffer(16), rig.timeline()
    rig.device.free(gone)
    device = rig.device
    expect.raises(StaleHandle, device.copy, gone.region(), bytes(16), t, ())
    expect.raises(StaleHandle, device.copy, bytearray(16), gone.region(), t, ())
    expect.raises(StaleHandle, device.copy, live.region(), gone.region(), t, ())
    expect.raises(StaleHandle, device.fill, gone.region(), b"a", t, ())
    expect.raises(StaleHandle, device.bind, rig.program(add_number(rig)), [gone])
    if Feature.MAP in rig.info.features:
        expect.raises(StaleHandle, device.map, gone.region(), False)


@memory_free.case("free-copy-source", "free.deferred")
def _(rig: Rig) -> None:
    data = rig.noise(NBYTES)
    source, target, gate = rig.buffer(data), rig.buffer(NBYTES), rig.gate()
    point = rig.device.copy(target.region(), source.region(), rig.timeline(), [gate.point])
    rig.device.free(source)
    junk(rig)
    gate.open()
    expect.same_bytes(rig.read(target, waits=[point]), data, "the copy of a buffer freed meanwhile")


@memory_free.case("free-read-source", "free.deferred")
def _(rig: Rig) -> None:
    data, host = rig.noise(NBYTES), bytearray(NBYTES)
    source, gate = rig.buffer(data), rig.gate()
    point = rig.device.copy(host, source.region(), rig.timeline(), [gate.point])
    rig.device.free(source)
    junk(rig)
    gate.open()
    rig.done(point)
    expect.same_bytes(bytes(host), data, "the bytes read from a buffer freed meanwhile")


def _copy(rig: Rig, target: Buffer, gate: Gate) -> Point:
    source = rig.buffer(b"\xff" * NBYTES)
    point = rig.device.copy(target.region(), source.region(), rig.timeline(), [gate.point])
    rig.device.free(source)
    return point


def _write(rig: Rig, target: Buffer, gate: Gate) -> Point:
    return rig.device.copy(target.region(), b"\xff" * NBYTES, rig.timeline(), [gate.point])


def _fill(rig: Rig, target: Buffer, gate: Gate) -> Point:
    return rig.device.fill(target.region(), b"\xff", rig.timeline(), [gate.point])


def _launch(rig: Rig, target: Buffer, gate: Gate) -> Point:
    program = rig.program(add_number(rig))
    return rig.launch(program, [target], waits=[gate.point])


_WRITERS: dict[str, Callable[[Rig, Buffer, Gate], Point]] = {
    "copy": _copy,
    "write": _write,
    "fill": _fill,
    "launch": _launch,
}


@memory_free.case("free-target-of", "free.deferred", by=tuple(_WRITERS))
def _(rig: Rig, by: str) -> None:
    gate, target = rig.gate(), rig.device.alloc(NBYTES, ZERO)
    point = _WRITERS[by](rig, target, gate)
    rig.device.free(target)
    fresh = junk(rig)
    gate.open()
    rig.done(point)
    for buffer in fresh:
        expect.same_bytes(rig.read(buffer), bytes(NBYTES), "a buffer allocated after the free")


@memory_free.case("free-two-uses", "free.deferred")
def _(rig: Rig) -> None:
    data = rig.noise(NBYTES)
    source, gate = rig.buffer(data), rig.gate()
    targets = [rig.buffer(NBYTES) for _ in range(2)]
    first = rig.device.copy(targets[0].region(), source.region(), rig.timeline(), ())
    point = rig.device.copy(targets[1].region(), source.region(), rig.timeline(), [gate.point])
    rig.device.free(source)
    rig.done(first)
    junk(rig)
    gate.open()
    expect.same_bytes(rig.read(targets[1], waits=[point]), data, "the copy of the second use")


@memory_free.case("free-does-not-wait", "free.deferred")
def _(rig: Rig) -> None:
    gate, buffer = rig.gate(), rig.buffer(64)
    point = rig.device.fill(buffer.region(), b"a", rig.timeline(), [gate.point])
    rig.device.free(buffer)
    expect.that(rig.pending(point), "the fill ran before its wait, or free waited for it")
    gate.open()
    rig.done(point)


@memory_free.case("free-gives-back", "free.returns")
def _(rig: Rig) -> None:
    for _ in range(20):
        rig.device.free(rig.device.alloc(rig.info.limits.alloc_nbytes, PLAIN))


@memory_free.case("free-after-use-gives-back", "free.returns")
def _(rig: Rig) -> None:
    for _ in range(5):
        whole = rig.device.alloc(rig.info.limits.alloc_nbytes, PLAIN)
        point = rig.device.fill(whole.region(0, 64), b"a", rig.timeline(), ())
        rig.device.free(whole)
        rig.done(point)


@memory_free.case(
    "free-counted-while-in-use", "free.deferred", "free.returns", needs=(Feature.STATS,)
)
def _(rig: Rig) -> None:
    buffer, gate = rig.buffer(NBYTES), rig.gate()
    before = rig.device.stats("").live_nbytes
    point = rig.device.fill(buffer.region(), b"a", rig.timeline(), [gate.point])
    rig.device.free(buffer)
    expect.equal(rig.device.stats("").live_nbytes, before, "live bytes while the fill waits")
    gate.open()
    rig.done(point)
    rig.until(
        lambda: rig.device.stats("").live_nbytes == before - NBYTES, "the return of the memory"
    )


@memory_free.case("free-behind-a-failure", "free.returns", "free.deferred", needs=(Feature.STATS,))
def _(rig: Rig) -> None:
    buffer, gate = rig.buffer(NBYTES), rig.gate()
    before = rig.device.stats("").live_nbytes
    point = rig.device.fill(buffer.region(), b"a", rig.timeline(), [gate.point])
    rig.device.free(buffer)
    gate.fail(Failure(FailureKind.ABORTED, Scope.OPERATION, rig.name, "test", "planted"))
    rig.failed(point)
    rig.until(
        lambda: rig.device.stats("").live_nbytes == before - NBYTES, "the return of the memory"
    )


def junk(rig: Rig) -> list[Buffer]:
    """Zeroed buffers of the size that was just freed: one of them gets its place, if it may."""
    return [rig.device.alloc(NBYTES, ZERO) for _ in range(4)]
