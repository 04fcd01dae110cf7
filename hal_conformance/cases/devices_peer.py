"""Copies between two devices of a plugin, without a stop at the host."""

from __future__ import annotations

import itertools
from functools import partial

from hal.core.description import Feature
from hal.core.device import Device
from hal.core.errors import Failure, FailureKind, InvalidCall, Scope, StaleHandle
from hal.core.values import AllocOptions, Buffer, Point
from hal_conformance import expect
from hal_conformance.additions import add_number, numbers
from hal_conformance.case import Cases, Level
from hal_conformance.crowd import together
from hal_conformance.rig import Rig

devices_peer = Cases("G", Level.DEVICES)

PEER = (Feature.PEER_COPY,)
CANARY = b"\xc5"
WAYS = ("put", "get")
"""To a peer's buffer, and from it."""
ZERO = AllocOptions(zero=True)
MIB = 1 << 20


def peers(rig: Rig) -> list[Device]:
    """Every device of the plugin that the device under test has a link to, opened."""
    return [rig.open(name) for name in _linked(rig)]


def peer(rig: Rig) -> Device:
    """The first of them alone."""
    return rig.open(_linked(rig)[0])


def _linked(rig: Rig) -> list[str]:
    linked = [link.peer for link in rig.info.links if link.peer in rig.setting.peers]
    if not linked:
        raise expect.Unfit("the device has no link to another one of its plugin")
    return linked


def check_copy(rig: Rig, way: str, other: Device, nbytes: int, to: int, of: int) -> None:
    """`nbytes` arrive at the place `to` from the place `of`; canaries on both sides stay."""
    data = rig.noise(of + nbytes + 5)
    source_device, target_device = (rig.device, other) if way == "put" else (other, rig.device)
    source = rig.buffer(data, source_device)
    target = rig.buffer(CANARY * (to + nbytes + 9), target_device)
    dst, src = target.region(to, nbytes), source.region(of, nbytes)
    rig.done(rig.device.copy(dst, src, rig.timeline(), ()))
    what = f"{way} of {nbytes} bytes from {of} to {to}, {other.name}"
    wanted = CANARY * to + data[of : of + nbytes] + CANARY * 9
    expect.same_bytes(rig.read(target, target_device), wanted, f"the target of the {what}")
    expect.same_bytes(rig.read(source, source_device), data, f"the source of the {what}")


@devices_peer.case("peer-copy", "copy.peer", "copy.exact", needs=PEER, devices=2, way=WAYS)
def _(rig: Rig, way: str) -> None:
    other = peer(rig)
    for nbytes, to, of in itertools.product((1, 33, 4096, 65537), (0, 3, 8), (0, 7)):
        check_copy(rig, way, other, nbytes, to, of)


@devices_peer.case("peer-copy-large", "copy.peer", needs=PEER, devices=2, way=WAYS)
def _(rig: Rig, way: str) -> None:
    check_copy(rig, way, peer(rig), 2 * MIB + 3, 1, 5)


@devices_peer.case("peer-copy-nothing", "copy.peer", needs=PEER, devices=2, way=WAYS)
def _(rig: Rig, way: str) -> None:
    check_copy(rig, way, peer(rig), 0, 4, 4)


@devices_peer.case("peer-copy-every-link", "copy.peer", needs=PEER, devices=2)
def _(rig: Rig) -> None:
    for other, way in itertools.product(peers(rig), WAYS):
        check_copy(rig, way, other, 500, 1, 2)


@devices_peer.case("peer-there-and-back", "copy.peer", needs=PEER, devices=2)
def _(rig: Rig) -> None:
    data, other = rig.noise(70_001), peer(rig)
    source, back = rig.buffer(data), rig.buffer(len(data))
    there = rig.buffer(len(data), other)
    rig.device.copy(there.region(), source.region(), rig.timeline(), ())
    rig.done(rig.device.copy(back.region(), there.region(), rig.timeline(), ()))
    expect.same_bytes(rig.read(back), data, "the bytes that came back")
    expect.same_bytes(rig.read(there, other), data, "the bytes on the peer")


@devices_peer.case("peer-both-directions-at-once", "copy.peer", needs=PEER, devices=2)
def _(rig: Rig) -> None:
    other = peer(rig)
    if rig.name not in [link.peer for link in other.info.links]:
        raise expect.Unfit(f"{other.name} has no link back")
    ends, points = (rig.device, other), list[tuple[Device, Point]]()
    data = [rig.noise(MIB) for _ in ends]
    sources = [rig.buffer(d, device) for d, device in zip(data, ends, strict=True)]
    targets = [rig.buffer(MIB, device) for device in reversed(ends)]
    gates = [rig.gate(device) for device in ends]
    for device, dst, src, gate in zip(ends, targets, sources, gates, strict=True):
        copied = device.copy(dst.region(), src.region(), rig.timeline(device), [gate.point])
        points.append((device, copied))
    for gate in gates:
        gate.open()
    for device, point in points:
        rig.done(point, device)
    for target, device, wanted in zip(targets, reversed(ends), data, strict=True):
        expect.same_bytes(rig.read(target, device), wanted, f"what arrived at {device.name}")


@devices_peer.case("peer-waits", "submit.waits", "copy.peer", needs=PEER, devices=2, way=WAYS)
def _(rig: Rig, way: str) -> None:
    other, gate, data = peer(rig), rig.gate(), rig.noise(300)
    ends = (rig.device, other) if way == "put" else (other, rig.device)
    source, target = rig.buffer(data, ends[0]), rig.buffer(CANARY * 300, ends[1])
    point = rig.device.copy(target.region(), source.region(), rig.timeline(), [gate.point])
    if ends[1] is other:
        expect.same_bytes(rig.read(target, other), CANARY * 300, "the target before the gate")
    expect.that(rig.pending(point), "the copy ran before its wait")
    gate.open()
    rig.done(point)
    expect.same_bytes(rig.read(target, ends[1]), data, "the target after the gate")


@devices_peer.case("peer-order", "submit.order", "copy.peer", needs=PEER, devices=2)
def _(rig: Rig) -> None:
    other, data = peer(rig), rig.noise(MIB)
    source, target = rig.buffer(data), rig.buffer(MIB, other)
    copied = rig.device.copy(target.region(), source.region(), rig.timeline(), ())
    rig.done(rig.device.fill(source.region(), b"\0", rig.timeline(), ()))
    expect.that(not rig.pending(copied), "a later operation was done before the copy")
    expect.same_bytes(rig.read(target, other), data, "the copy of a source that is filled later")


@devices_peer.case("peer-free-while-copying", "free.deferred", needs=PEER, devices=2, way=WAYS)
def _(rig: Rig, way: str) -> None:
    other, gate, data = peer(rig), rig.gate(), rig.noise(4096)
    ours, theirs = rig.buffer(data), rig.buffer(data[::-1], other)
    dst, src = (theirs, ours) if way == "put" else (ours, theirs)
    point = rig.device.copy(dst.region(), src.region(), rig.timeline(), [gate.point])
    other.free(theirs)
    fresh = [other.alloc(4096, ZERO) for _ in range(4)]
    gate.open()
    rig.done(point)
    for buffer in fresh:
        expect.same_bytes(rig.read(buffer, other), bytes(4096), "a buffer allocated meanwhile")
    wanted = data if way == "put" else data[::-1]
    expect.same_bytes(rig.read(ours), wanted, "the buffer on this side")


def _each_way(mine: Buffer, theirs: Buffer, nbytes: int) -> list[tuple[object, object]]:
    ours, other = mine.region(0, nbytes), theirs.region(0, nbytes)
    return [(ours, other), (other, ours)]


@devices_peer.case("peer-copy-refused", "copy.sizes", "copy.ranges", needs=PEER, devices=2)
def _(rig: Rig) -> None:
    ours, theirs, t = rig.buffer(32), rig.buffer(CANARY * 16, peer(rig)), rig.timeline()
    for dst, src in _each_way(ours, theirs, 17):
        expect.raises(InvalidCall, rig.device.copy, dst, src, t, ())
    expect.raises(InvalidCall, rig.device.copy, ours.region(0, 8), theirs.region(), t, ())
    expect.raises(InvalidCall, rig.device.copy, theirs.region(), ours.region(0, 8), t, ())


@devices_peer.case("peer-buffer-freed", "handle.stale", needs=PEER, devices=2)
def _(rig: Rig) -> None:
    other = peer(rig)
    ours, theirs = rig.buffer(16), rig.buffer(16, other)
    other.free(theirs)
    for dst, src in _each_way(ours, theirs, 16):
        expect.raises(StaleHandle, rig.device.copy, dst, src, rig.timeline(), ())


@devices_peer.case("peer-closed", "handle.stale", needs=PEER, devices=2)
def _(rig: Rig) -> None:
    other = peer(rig)
    ours, theirs = rig.buffer(16), rig.buffer(16, other)
    other.close()
    for dst, src in _each_way(ours, theirs, 16):
        expect.raises(StaleHandle, rig.device.copy, dst, src, rig.timeline(), ())


@devices_peer.case("peer-buffer-elsewhere", "handle.stale", needs=PEER, devices=2)
def _(rig: Rig) -> None:
    theirs = rig.buffer(numbers(rig), peer(rig))
    expect.raises(StaleHandle, rig.device.fill, theirs.region(), b"a", rig.timeline(), ())
    expect.raises(StaleHandle, rig.device.bind, rig.program(add_number(rig)), [theirs])
    expect.raises(StaleHandle, rig.device.free, theirs)


@devices_peer.case("peer-failure-stays-here", "submit.apart", "submit.fails", needs=PEER, devices=2)
def _(rig: Rig) -> None:
    other, gate = peer(rig), rig.gate()
    ours, theirs = rig.buffer(bytes(64)), rig.buffer(CANARY * 64, other)
    point = rig.device.copy(theirs.region(), ours.region(), rig.timeline(), [gate.point])
    cause = Failure(FailureKind.ABORTED, Scope.OPERATION, rig.name, "test", "planted")
    gate.fail(cause)
    expect.equal(rig.failed(point), cause, "the failure of the copy")
    expect.same_bytes(rig.read(theirs, other), CANARY * 64, "the peer's buffer, on the peer")


@devices_peer.case("peer-copies-from-threads", "call.threads", "copy.peer", needs=PEER, devices=2)
def _(rig: Rig) -> None:
    other = peer(rig)
    rig.timeline()

    def work(seed: int) -> None:
        data = bytes([seed]) * 10_001
        ours, theirs = rig.device.alloc(10_001, ZERO), other.alloc(10_001, ZERO)
        for _ in range(5):
            rig.write(ours.region(), data)
            rig.done(rig.device.copy(theirs.region(), ours.region(), rig.timeline(), ()))
            expect.same_bytes(rig.read(theirs, other), data, f"the copy of thread {seed}")

    rig.timeline(other)
    together([partial(work, seed) for seed in range(1, 5)])
