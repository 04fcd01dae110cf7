"""Copies: every byte of the range, and no other."""

from __future__ import annotations

from hal.conformance import expect
from hal.conformance.case import Cases, Level
from hal.conformance.rig import Rig
from hal.core.errors import InvalidCall

memory_copy = Cases("C", Level.CORE)

CANARY = 0xC5


@memory_copy.case("copy-in-odd-offset", "copy.exact", offset=(1, 3, 7))
def _(rig: Rig, offset: int) -> None:
    buffer = rig.buffer(bytes([CANARY]) * 64)
    data = rig.noise(33)
    rig.write(buffer.region(offset, 33), data)
    wanted = bytearray([CANARY]) * 64
    wanted[offset : offset + 33] = data
    expect.same_bytes(rig.read(buffer), bytes(wanted), "the buffer after the copy")


@memory_copy.case("copy-past-the-end", "copy.ranges")
def _(rig: Rig) -> None:
    buffer = rig.buffer(16)
    expect.raises(InvalidCall, rig.device.copy, buffer.region(8, 9), bytes(9), rig.timeline(), ())
