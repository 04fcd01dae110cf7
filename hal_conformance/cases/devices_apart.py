"""Several devices at once: none sees another one's handles, memory, waits or failures."""

from __future__ import annotations

import tempfile
from functools import partial

import numpy as np

from hal.core.description import Feature
from hal.core.device import Device
from hal.core.errors import Failure, FailureKind, HalError, Scope, StaleHandle
from hal.core.values import Buffer, Point, Program, Waits
from hal_conformance import expect
from hal_conformance.additions import add_number, numbers
from hal_conformance.case import Cases, Level
from hal_conformance.cases.devices_links import MOST
from hal_conformance.cases.memory_exhausted import exhaust
from hal_conformance.crowd import together
from hal_conformance.rig import Rig
from stack.compiler.targets import choose

devices_apart = Cases("G", Level.DEVICES)

ROUNDS = 6


class Adder:
    """A device with a program that adds `number`, a buffer, and what the buffer must hold."""

    def __init__(self, rig: Rig, device: Device, number: int) -> None:
        self._rig = rig
        self._device = device
        self._number = number
        self._wanted = numbers(rig)
        self._buffer = rig.buffer(self._wanted, device)
        self._program = rig.program(add_number(rig, number), device)
        self._bound = device.bind(self._program, [self._buffer])

    def launch(self, waits: Waits = ()) -> Point:
        """One more addition."""
        self._wanted = self._wanted + self._wanted.dtype.type(self._number)
        timeline = self._rig.timeline(self._device)
        return self._device.launch(self._bound, (1, 1, 1), timeline, waits)

    def check(self) -> None:
        """The buffer holds what it must."""
        got = np.frombuffer(self._rig.read(self._buffer, self._device), self._wanted.dtype)
        expect.same(got, self._wanted, f"the buffer of {self._device.name}")


def several(rig: Rig) -> list[Device]:
    """Up to MOST devices of the plugin, the one under test first."""
    return rig.devices(min(MOST, len(rig.setting.peers)))


@devices_apart.case("interleaved", "launch.exact", "submit.order", devices=2)
def _(rig: Rig) -> None:
    adders = [Adder(rig, device, i + 1) for i, device in enumerate(several(rig))]
    for _ in range(ROUNDS):
        for adder in adders:
            adder.launch()
    for adder in reversed(adders):
        adder.check()


@devices_apart.case("interleaved-from-threads", "call.threads", "launch.exact", devices=2)
def _(rig: Rig) -> None:
    devices = several(rig)
    for device in devices:
        rig.timeline(device)

    def work(seed: int) -> None:
        adders = [Adder(rig, device, seed + i) for i, device in enumerate(devices)]
        for _ in range(ROUNDS):
            for adder in adders:
                adder.launch()
        for adder in adders:
            adder.check()

    together([partial(work, seed) for seed in (1, 2)])


@devices_apart.case("a-thread-for-each-device", "call.threads", devices=2)
def _(rig: Rig) -> None:
    adders = [Adder(rig, device, 2 * i + 1) for i, device in enumerate(several(rig))]

    def work(adder: Adder) -> None:
        for _ in range(ROUNDS):
            adder.launch()
            adder.check()

    together([partial(work, adder) for adder in adders])


@devices_apart.case("used-from-another-thread", "call.threads", devices=2)
def _(rig: Rig) -> None:
    adders = [Adder(rig, device, i + 3) for i, device in enumerate(several(rig))]
    for adder in adders:
        together([adder.launch])
    for adder in reversed(adders):
        together([adder.check])


@devices_apart.case("foreign-buffers", "handle.stale", devices=2)
def _(rig: Rig) -> None:
    device, other = rig.devices(2)
    theirs = rig.buffer(b"\x44" * 16, other)
    expect.raises(StaleHandle, device.fill, theirs.region(), b"a", rig.timeline(), ())
    expect.raises(StaleHandle, device.bind, rig.program(add_number(rig)), [theirs])
    expect.raises(StaleHandle, device.free, theirs)
    expect.equal(rig.read(theirs, other), b"\x44" * 16, "the other device's buffer")


@devices_apart.case("foreign-programs", "handle.stale", devices=2)
def _(rig: Rig) -> None:
    device, other = rig.devices(2)
    theirs: Program = rig.program(add_number(rig), other)
    bound = other.bind(theirs, [rig.buffer(numbers(rig), other)])
    expect.raises(StaleHandle, device.bind, theirs, [rig.buffer(numbers(rig))])
    expect.raises(StaleHandle, device.launch, bound, (1, 1, 1), rig.timeline(), ())
    expect.raises(StaleHandle, device.free, theirs)


@devices_apart.case("foreign-timelines", "handle.stale", devices=2)
def _(rig: Rig) -> None:
    device, other = rig.devices(2)
    gate, buffer = rig.gate(other), rig.buffer(bytes(16))
    expect.raises(StaleHandle, device.fill, buffer.region(), b"a", rig.timeline(other), ())
    expect.raises(StaleHandle, device.fill, buffer.region(), b"a", rig.timeline(), [gate.point])
    expect.raises(StaleHandle, device.wait, [gate.point], 0, True)
    expect.raises(StaleHandle, device.signal, gate.timeline, 1, None)
    expect.equal(rig.read(buffer), bytes(16), "the buffer after refused calls")


@devices_apart.case("memory-apart", "alloc.apart", "copy.exact", devices=2)
def _(rig: Rig) -> None:
    devices = several(rig)
    buffers: list[Buffer] = []
    for i, device in enumerate(devices):
        buffers.append(rig.buffer(10_000, device))
        rig.write(buffers[i].region(), bytes([i + 1]) * 10_000, device)
    for i, device in enumerate(devices):
        wanted = bytes([i + 1]) * 10_000
        expect.same_bytes(rig.read(buffers[i], device), wanted, f"the buffer of {device.name}")


@devices_apart.case("stats-apart", "stats.exact", needs=(Feature.STATS,), devices=2)
def _(rig: Rig) -> None:
    device, other = rig.devices(2)
    before, held = other.stats(""), rig.buffer(12_345)
    expect.equal(other.stats(""), before, "the other device's counts")
    expect.equal(device.stats("").live_nbytes, held.nbytes, "this device's live bytes")


@devices_apart.case("exhausted-alone", "alloc.exhausted", devices=2)
def _(rig: Rig) -> None:
    _, other = rig.devices(2)
    buffers, data = exhaust(rig), rig.noise(5000)
    there = rig.buffer(data, other)
    expect.same_bytes(rig.read(there, other), data, "a buffer of the device that has memory left")
    for buffer in buffers:
        rig.device.free(buffer)


@devices_apart.case("held-back-alone", "timeline.independent", devices=2)
def _(rig: Rig) -> None:
    device, other = rig.devices(2)
    gate, buffer = rig.gate(), rig.buffer(64)
    point = device.fill(buffer.region(), b"a", rig.timeline(), [gate.point])
    adder = Adder(rig, other, 3)
    rig.done(adder.launch(), other)
    adder.check()
    expect.that(rig.pending(point), "the fill ran before its wait")
    gate.open()
    rig.done(point)


@devices_apart.case("closed-alone", "close.live", devices=2)
def _(rig: Rig) -> None:
    _, other = rig.devices(2)
    adder, gone = Adder(rig, rig.device, 4), Adder(rig, other, 5)
    gone.launch()
    adder.launch()
    other.close()
    adder.launch()
    adder.check()
    expect.raises(StaleHandle, gone.launch)


@devices_apart.case("failed-alone", "submit.apart", devices=2)
def _(rig: Rig) -> None:
    device, other = rig.devices(2)
    gate, buffer, adder = rig.gate(), rig.buffer(64), Adder(rig, other, 2)
    point = device.fill(buffer.region(), b"a", rig.timeline(), [gate.point])
    adder.launch()
    cause = Failure(FailureKind.ABORTED, Scope.OPERATION, rig.name, "test", "planted")
    gate.fail(cause)
    expect.equal(rig.failed(point), cause, "the failure here")
    rig.done(adder.launch(), other)
    adder.check()


@devices_apart.case("bridge-by-the-host", "signal.wakes", "submit.waits", devices=2)
def _(rig: Rig) -> None:
    ends = rig.devices(2)
    adders = [Adder(rig, device, i + 1) for i, device in enumerate(ends)]
    for turn in range(ROUNDS):
        of, to = turn % 2, 1 - turn % 2
        gate = rig.gate(ends[to])
        point = adders[to].launch([gate.point])
        rig.done(adders[of].launch(), ends[of])
        expect.that(rig.pending(point, ends[to]), "the second device ran before the host's signal")
        gate.open()
        rig.done(point, ends[to])
    for adder in adders:
        adder.check()


@devices_apart.case(
    "bridge-by-host-calls", "host_call.order", "signal.wakes", needs=(Feature.HOST_CALL,), devices=2
)
def _(rig: Rig) -> None:
    device, other = rig.devices(2)
    first, second = Adder(rig, device, 1), Adder(rig, other, 2)
    here, there = rig.gate(), rig.gate(other)
    device.host_call(there.open, rig.timeline(), [here.point])
    buffer = rig.buffer(bytes(64), other)
    point = other.fill(buffer.region(), b"\x0f", rig.timeline(other), [there.point])
    expect.that(rig.pending(point, other), "the other device's work ran before the host call")
    here.open()
    rig.done(point, other)
    for adder in (first, second):
        adder.launch()
        adder.check()


@devices_apart.case("through-the-host", "copy.exact", devices=2)
def _(rig: Rig) -> None:
    data = rig.noise(100_003)
    for device in several(rig):
        data = rig.read(rig.buffer(data, device), device)
    again = rig.read(rig.buffer(data))
    expect.same_bytes(again, data, "the bytes after a way over every device")


@devices_apart.case("through-the-host-to-another-plugin", "copy.exact", "handle.stale")
def _(rig: Rig) -> None:
    with _of_another_plugin(rig) as other:
        _check_beside(rig, other)


def _check_beside(rig: Rig, other: Device) -> None:
    data = rig.noise(50_001)
    theirs = rig.buffer(data, other)
    ours = rig.buffer(rig.read(theirs, other))
    expect.same_bytes(rig.read(ours), data, "the bytes of the other plugin's device")
    expect.raises(StaleHandle, rig.device.free, theirs)
    expect.raises(StaleHandle, other.free, ours)
    adders = [Adder(rig, rig.device, 1)]
    if set(other.info.dtypes) >= set(rig.info.dtypes):
        adders.append(Adder(rig, other, 2))
    for _ in range(ROUNDS):
        for adder in adders:
            adder.launch()
    for adder in adders:
        adder.check()


def _of_another_plugin(rig: Rig) -> Device:
    """The first device of any other plugin that this machine can open and compile for."""
    plugin = rig.info.plugin
    for found in rig.setting.registry().found():
        if found.name == plugin or found.cause:
            continue
        try:
            device = rig.setting.registry().open(f"{found.name}:0")
        except HalError:
            continue
        if set(device.info.formats) & set(choose(device.info).writers):
            return device
        device.close()
    raise expect.Unfit("no other plugin has a device here")


@devices_apart.case("one-cache-for-all", "load.cache", devices=2)
def _(rig: Rig) -> None:
    names = [device.name for device in several(rig)]
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(2):
            for name in names:
                device = rig.open(name, cache_dir=cache)
                adder = Adder(rig, device, 7)
                adder.launch()
                adder.check()
                device.close()
