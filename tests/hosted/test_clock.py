"""A machine with a clock of its own: the spans have its time."""

from hal.core.device import Device
from hal.core.values import AllocOptions, CopyCommand, FillCommand, KernelSource, LaunchCommand
from hal.hosted.device import HostedDevice
from hal.hosted.order import Order
from tests.hosted.conftest import PROGRAMS, TinyMachine, describe


class Clocked(TinyMachine):
    def copy_ns(self, nbytes, peer):
        return 2.0 * nbytes

    def fill_ns(self, nbytes):
        return 1.0 * nbytes

    def run(self, program, args, grid):
        return 1000.0


def spans_of(machine, monkeypatch):
    """The spans of a graph of a fill, a launch and a copy."""
    monkeypatch.setitem(PROGRAMS, "nothing", lambda: None)
    with Device(HostedDevice(describe("tiny:0"), machine, Order()), "tiny:0") as device:
        dst, src = (device.alloc(64, AllocOptions()).region() for _ in range(2))
        program = device.load(KernelSource("python/1", "nothing", "nothing", ()))
        commands = [
            FillCommand(src, b"\1"),
            LaunchCommand(device.bind(program, ()), (1, 1, 1)),
            CopyCommand(dst, src),
        ]
        point = device.replay(device.record(commands), (), device.create_timeline(False), ())
        assert device.wait([point], 60, True)
        return device.timestamps(point)


def test_each_span_tells_the_machines_own_time(monkeypatch):
    assert [s.device_ns for s in spans_of(Clocked(), monkeypatch)] == [64, 1000, 128]


def test_a_machine_without_a_clock_tells_none(monkeypatch):
    assert [s.device_ns for s in spans_of(TinyMachine(), monkeypatch)] == [None] * 3
