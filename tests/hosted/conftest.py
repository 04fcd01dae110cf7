"""Hosted devices over a machine that is bytearrays and Python functions."""

import pytest

from hal.core.description import (
    DeviceInfo,
    Feature,
    Limits,
    Link,
    MemorySpace,
    NumericProfile,
    SpaceKind,
)
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.values import AllocOptions, KernelSource
from hal.core.wrappers.validation import validate
from hal.hosted.device import HostedDevice
from hal.hosted.machine import Machine
from hal.hosted.order import AdversarialOrder, Order

NAMES = ("tiny:0", "tiny:1", "tiny:2")


class TinyMachine(Machine):
    """`released` counts the memories that came back."""

    def __init__(self):
        self.released = 0

    def allocate(self, nbytes, options):
        return bytearray(nbytes)

    def release(self, memory):
        self.released += 1

    def read(self, memory, offset, nbytes):
        return bytes(memory[offset : offset + nbytes])

    def write(self, memory, offset, data):
        memory[offset : offset + len(data)] = data

    def compile(self, source):
        return PROGRAMS[source.text]

    def run(self, program, args, grid):
        program(*args)


def describe(name):
    return DeviceInfo(
        name=name,
        plugin="tiny",
        description="bytearrays",
        fingerprint="tiny",
        contract=1,
        limits=Limits((8, 8, 8), 4, 1 << 20, 200, 1, progress_s=0.05),
        spaces=(MemorySpace("ram", SpaceKind.GLOBAL, 1 << 20, 1),),
        dtypes=dict.fromkeys(DType, 0.0),
        numeric=NumericProfile({}, True, False, {}),
        formats=("python/1",),
        features=frozenset(Feature) - {Feature.OPERATORS, Feature.MAP, Feature.IPC},
        links=tuple(Link(other, "memory", 0, 0) for other in NAMES if other != name),
    )


def fail():
    raise ArithmeticError("never works")


PROGRAMS = {"fail": fail}


class Bench:
    """A device with one buffer and what the tests do with it again and again."""

    def __init__(self, name="tiny:0", order=None):
        self.machine = TinyMachine()
        self.device = Device(
            HostedDevice(describe(name), self.machine, order or Order()), name, [validate]
        )
        self.buffer = self.device.alloc(64, AllocOptions(zero=True))

    def timeline(self, host_driven=False):
        return self.device.create_timeline(host_driven)

    def fill(self, value, timeline, waits=()):
        return self.device.fill(self.buffer.region(), bytes([value]), timeline, waits)

    def broken_launch(self, timeline, waits=()):
        program = self.device.load(KernelSource("python/1", "fail", "fail", ()))
        return self.device.launch(self.device.bind(program, ()), (1, 1, 1), timeline, waits)

    def wait(self, *points, timeout_s=60.0):
        return self.device.wait(points, timeout_s, True)

    def content(self):
        out = bytearray(64)
        self.wait(self.device.copy(out, self.buffer.region(), self.timeline(), ()))
        return bytes(out)


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.device.close()


@pytest.fixture
def benches():
    made = [Bench(name) for name in NAMES]
    yield made
    for one in made:
        one.device.close()


@pytest.fixture
def nasty():
    """nasty(seed): a bench whose device runs in the nasty order."""
    made = []

    def open_with(seed):
        made.append(Bench(order=AdversarialOrder(seed)))
        return made[-1]

    yield open_with
    for one in made:
        one.device.close()
