"""A device over the driver that is Python, and short words for its use."""

from dataclasses import replace

import pytest

from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import OperationFailed
from hal.core.values import AllocOptions, KernelSource, Param, ParamKind
from hal.core.wrappers.validation import validate
from hal.hosted.device import HostedDevice
from hal.hosted.order import Order
from tests.hosted.conftest import describe
from tests.hosted.driver import Driver

ONE = (1, 1, 1)
PARAM = Param("x", ParamKind.BUFFER, DType.U8, True, True)


class Bench:
    def __init__(self, name="tiny:0", progress_s=0.05):
        self.driver, info = Driver(), describe(name)
        info = replace(info, limits=replace(info.limits, progress_s=progress_s))
        hosted = HostedDevice(info, self.driver, Order())
        self.device = Device(hosted, name, [validate])

    def buffer(self, nbytes=4):
        return self.device.alloc(nbytes, AllocOptions(zero=True))

    def program(self, name, arg):
        source = KernelSource("python/1", name, name, (PARAM,))
        return self.device.bind(self.device.load(source), [arg])

    def launch(self, name, arg, timeline, waits=()):
        return self.device.launch(self.program(name, arg), ONE, timeline, waits)

    def timeline(self, host_driven=False):
        return self.device.create_timeline(host_driven)

    def wait(self, *points, timeout_s=60.0):
        return self.device.wait(points, timeout_s, True)

    def content(self, buffer):
        out = bytearray(buffer.nbytes)
        assert self.wait(self.device.copy(out, buffer.region(), self.timeline(), ()))
        return bytes(out)

    def failure(self, point):
        with pytest.raises(OperationFailed) as caught:
            self.wait(point)
        return caught.value.failure


def given_to(driver):
    return sum(len(stream.marks) for stream in driver.streams)


@pytest.fixture(name="bench")
def opened_bench():
    made = Bench()
    yield made
    made.driver.paused = False
    made.device.close()
