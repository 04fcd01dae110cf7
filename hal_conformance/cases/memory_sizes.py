"""Sizes beyond those at which engines change: another path is taken, a counter wraps, a piece is
the last one."""

from __future__ import annotations

import numpy as np

from hal.core.values import AllocOptions, Buffer
from hal_conformance import expect
from hal_conformance.additions import add_number, numbers
from hal_conformance.case import Cases, Level
from hal_conformance.cases.memory_alloc import fits
from hal_conformance.rig import Rig

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
    fits(rig, nbytes, 2)
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


@memory_sizes.case("copy-within", "copy.exact", kib=(4, 64, 1024, 8192))
def _(rig: Rig, kib: int) -> None:
    """From one half of a buffer to the other, beside each other."""
    nbytes = (kib << 10) + 5
    fits(rig, 2 * nbytes, 2)
    data = rig.noise(2 * nbytes)
    for to, of in ((0, nbytes), (nbytes, 0)):
        buffer = rig.buffer(data)
        dst, src = buffer.region(to, nbytes), buffer.region(of, nbytes)
        rig.done(rig.device.copy(dst, src, rig.timeline(), ()))
        half = data[of : of + nbytes]
        expect.same_bytes(rig.read(buffer), half * 2, f"{nbytes} bytes copied from {of} to {to}")


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


@memory_sizes.case("offset-beyond", "copy.exact", "fill.exact", power=(12, 16, 20, 24))
def _(rig: Rig, power: int) -> None:
    """Small copies and fills on both sides of a power of two, deep inside of a buffer."""
    size, place = (1 << power) + 256, 1 << power
    fits(rig, size, 2)
    target, source = _blank(rig, size), rig.buffer(rig.noise(size))
    device, line = rig.device, rig.timeline()
    wanted = bytearray(bytes([CANARY]) * size)
    copied = rig.read(source.region(place - 40, 80))
    data = rig.noise(24)
    rig.done(device.copy(target.region(place - 100, 24), data, line, ()))
    rig.done(device.copy(target.region(place + 3, 24), data, line, ()))
    rig.done(device.copy(target.region(place + 60, 80), source.region(place - 40, 80), line, ()))
    rig.done(device.fill(target.region(place + 200, 40), b"\x07", line, ()))
    wanted[place - 100 : place - 76] = wanted[place + 3 : place + 27] = data
    wanted[place + 60 : place + 140] = copied
    wanted[place + 200 : place + 240] = b"\x07" * 40
    found = bytearray(size)
    rig.done(device.copy(found, target.region(), line, ()))
    what = f"copies and fills at offsets around 2^{power}"
    expect.same_bytes(bytes(found), bytes(wanted), what)
    end = bytearray(90)
    rig.done(device.copy(end, target.region(place + 50, 90), line, ()))
    expect.same_bytes(
        bytes(end), bytes(wanted[place + 50 : place + 140]), f"{what}, read from there"
    )
    whole = bytearray(size)
    rig.done(device.copy(whole, source.region(), line, ()))
    expect.same_bytes(bytes(whole[place - 40 : place + 40]), copied, f"the source of {what}")


@memory_sizes.case("region-offset-beyond", "launch.exact", "bind.captures", power=(12, 16, 20, 24))
def _(rig: Rig, power: int) -> None:
    """A kernel's regions begin deep inside of a buffer."""
    size, place = (1 << power) + 4096, (1 << power) + 1024
    target = _blank(rig, size)
    before = numbers(rig)
    rig.write(target.region(place, before.nbytes), before.tobytes())
    bound = rig.device.bind(rig.program(add_number(rig, 3)), [target.region(place, before.nbytes)])
    rig.done(rig.device.launch(bound, (1, 1, 1), rig.timeline(), ()))
    wanted = bytearray(bytes([CANARY]) * size)
    wanted[place : place + before.nbytes] = (before + before.dtype.type(3)).tobytes()
    expect.same_bytes(rig.read(target), bytes(wanted), f"a region at the offset {place}")
