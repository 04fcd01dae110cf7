"""Fills: the pattern over the whole region, and nothing else."""

from __future__ import annotations

import itertools

from hal.core.errors import InvalidCall, StaleHandle
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.cases.memory_alloc import allocatable, fits
from hal_conformance.rig import Rig

memory_fill = Cases("C", Level.CORE)

CANARY = b"\xc5"
PATTERN = b"\x01\x23\x45\x67\x89\xab\xcd\xef"
"""Eight bytes that differ, so that a pattern that starts at a wrong place is seen."""


def check_filled(rig: Rig, nbytes: int, repeats: int, offset: int, space: str = "") -> None:
    """`repeats` times the pattern of `nbytes`, between canaries."""
    pattern = PATTERN[:nbytes]
    size = nbytes * repeats
    buffer = rig.buffer(CANARY * (offset + size + 13), space=space)
    point = rig.device.fill(buffer.region(offset, size), pattern, rig.timeline(), ())
    wanted = CANARY * offset + pattern * repeats + CANARY * 13
    got = rig.read(buffer, waits=[point])
    expect.same_bytes(got, wanted, f"{repeats} times {nbytes} bytes from {offset}")


@memory_fill.case("fill", "fill.exact", nbytes=(1, 2, 4, 8))
def _(rig: Rig, nbytes: int) -> None:
    for repeats, start in itertools.product((1, 2, 3, 7, 16, 65, 1023), (0, 1, 3, 8)):
        check_filled(rig, nbytes, repeats, start * nbytes)


@memory_fill.case("fill-large", "fill.exact", nbytes=(1, 8))
def _(rig: Rig, nbytes: int) -> None:
    fits(rig, 3 << 20)
    check_filled(rig, nbytes, (2 << 20) // nbytes + 3, 3 * nbytes)


@memory_fill.case("fill-nothing", "fill.exact", nbytes=(1, 2, 4, 8))
def _(rig: Rig, nbytes: int) -> None:
    for start in (0, 5):
        check_filled(rig, nbytes, 0, start * nbytes)


@memory_fill.case("fill-each-space", "fill.exact", "alloc.spaces")
def _(rig: Rig) -> None:
    for space in allocatable(rig):
        check_filled(rig, 4, 100, 8, space.name)


@memory_fill.case("fill-to-the-end", "fill.exact")
def _(rig: Rig) -> None:
    for nbytes in (1, 2, 4, 8):
        buffer = rig.buffer(CANARY * 104)
        rig.done(rig.device.fill(buffer.region(64), PATTERN[:nbytes], rig.timeline(), ()))
        wanted = CANARY * 64 + PATTERN[:nbytes] * (40 // nbytes)
        expect.same_bytes(rig.read(buffer), wanted, "a buffer filled to its end")


@memory_fill.case("fill-over-a-fill", "fill.exact", "submit.order")
def _(rig: Rig) -> None:
    buffer = rig.buffer(bytes(256))
    rig.device.fill(buffer.region(), b"\x11", rig.timeline(), ())
    rig.device.fill(buffer.region(64, 128), b"\x22\x33", rig.timeline(), ())
    point = rig.device.fill(buffer.region(96, 8), PATTERN, rig.timeline(), ())
    wanted = bytearray(b"\x11" * 256)
    wanted[64:192] = b"\x22\x33" * 64
    wanted[96:104] = PATTERN
    expect.same_bytes(rig.read(buffer, waits=[point]), bytes(wanted), "three fills, one on another")


@memory_fill.case("fill-pattern-size", "fill.refused", nbytes=(0, 3, 5, 16))
def _(rig: Rig, nbytes: int) -> None:
    region = rig.buffer(240).region()
    expect.raises(InvalidCall, rig.device.fill, region, bytes(nbytes), rig.timeline(), ())


@memory_fill.case("fill-misaligned", "fill.refused", nbytes=(2, 4, 8))
def _(rig: Rig, nbytes: int) -> None:
    buffer = rig.buffer(CANARY * 64)
    for offset, size in ((1, nbytes), (nbytes // 2, nbytes), (0, nbytes + 1), (0, nbytes // 2)):
        region = buffer.region(offset, size)
        expect.raises(InvalidCall, rig.device.fill, region, PATTERN[:nbytes], rig.timeline(), ())
    expect.same_bytes(rig.read(buffer), CANARY * 64, "the buffer after refused fills")


@memory_fill.case("fill-past-the-end", "call.refused", "timeline.values")
def _(rig: Rig) -> None:
    buffer, t = rig.buffer(CANARY * 16), rig.timeline()
    before = rig.device.fill(buffer.region(), CANARY, t, ())
    for offset, size in ((8, 16), (16, 8), (0, 24), (-8, 8), (8, -8)):
        expect.raises(InvalidCall, rig.device.fill, buffer.region(offset, size), b"a", t, ())
    after = rig.device.fill(buffer.region(), CANARY, t, ())
    expect.equal(after.value, before.value + 1, "the value after refused fills")
    expect.same_bytes(rig.read(buffer), CANARY * 16, "the buffer after refused fills")


@memory_fill.case("fill-of-another-session", "handle.stale", "open.sessions")
def _(rig: Rig) -> None:
    theirs = rig.buffer(CANARY * 16, rig.open())
    expect.raises(StaleHandle, rig.device.fill, theirs.region(), b"a", rig.timeline(), ())
