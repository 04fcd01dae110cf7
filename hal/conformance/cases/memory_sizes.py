"""Sizes beyond those at which engines change: another path is taken, a counter wraps, a piece is
the last one."""

from __future__ import annotations

import numpy as np

from hal.conformance import expect
from hal.conformance.case import Cases, Level
from hal.conformance.cases.memory_alloc import fits
from hal.conformance.rig import Rig
from hal.core.values import AllocOptions, Buffer

memory_sizes = Cases("C", Level.CORE)

MIB = 1 << 20
POWERS = (1, 2, 4, 8, 16, 32)
"""Sizes in MiB; what is copied or filled is a little more than each."""
WAYS = ("in", "out", "across")
ZEROED = 64 * MIB
CANARY = 0xC5
EDGE = 64


def _blank(rig: Rig, nbytes: int) -> Buffer:
    """A buffer of canaries."""
    fits(rig, nbytes)
    buffer = rig.buffer(nbytes)
    rig.done(rig.device.fill(buffer.region(), bytes([CANARY]), rig.timeline(), ()))
    return buffer


def _check(rig: Rig, buffer: Buffer, wanted: np.ndarray, what: str) -> None:
    """The buffer holds the bytes, and canaries before and behind them."""
    edge = np.full(EDGE, CANARY, np.uint8)
    expect.same_bytes(rig.read(buffer), np.concatenate([edge, wanted, edge]).tobytes(), what)


@memory_sizes.case("copy-of-mib", "copy.exact", way=WAYS, mib=POWERS)
def _(rig: Rig, way: str, mib: int) -> None:
    """Every byte of a copy of a little more than a power of two arrives, and no other changes."""
    nbytes = mib * MIB + 13
    device, line = rig.device, rig.timeline()
    data = np.frombuffer(rig.noise(nbytes), np.uint8)
    what = f"{nbytes} bytes copied {way}"
    if way == "out":
        source = rig.buffer(data)
        host = np.full(nbytes + 2 * EDGE, CANARY, np.uint8)
        rig.done(device.copy(host[EDGE:-EDGE].data, source.region(), line, ()))
        edge = np.full(EDGE, CANARY, np.uint8)
        expect.same_bytes(host.tobytes(), np.concatenate([edge, data, edge]).tobytes(), what)
        return
    target = _blank(rig, nbytes + 2 * EDGE)
    given = data.data if way == "in" else rig.buffer(data).region()
    rig.done(device.copy(target.region(EDGE, nbytes), given, line, ()))
    _check(rig, target, data, what)


@memory_sizes.case("fill-of-mib", "fill.exact", width=(1, 2, 4, 8), mib=(1, 4, 8, 32))
def _(rig: Rig, width: int, mib: int) -> None:
    nbytes = mib * MIB + 3 * 8
    target, pattern = _blank(rig, nbytes + 2 * EDGE), rig.noise(width)
    rig.done(rig.device.fill(target.region(EDGE, nbytes), pattern, rig.timeline(), ()))
    wanted = np.tile(np.frombuffer(pattern, np.uint8), nbytes // width)
    _check(rig, target, wanted, f"{nbytes} bytes filled by a pattern of {width}")


@memory_sizes.case("zeroed-64-mib", "alloc.zero")
def _(rig: Rig) -> None:
    """Also where the memory was written and given back before."""
    fits(rig, ZEROED)
    nbytes = min(ZEROED, rig.info.limits.alloc_nbytes // 2)
    for _ in range(2):
        zeroed = rig.device.alloc(nbytes, AllocOptions(zero=True))
        found = np.frombuffer(rig.read(zeroed), np.uint8)
        expect.equal(int(np.count_nonzero(found)), 0, f"bytes of {nbytes} zeroed ones that are not")
        rig.done(rig.device.fill(zeroed.region(), b"\xff", rig.timeline(), ()))
        rig.device.free(zeroed)
