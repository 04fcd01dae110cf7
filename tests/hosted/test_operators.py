"""Vendor operators of a machine, which are programs like others."""

from __future__ import annotations

import numpy as np
import pytest

from hal.core.description import DeviceInfo, Feature
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import Unsupported
from hal.core.values import AllocOptions, Operator
from hal.core.wrappers.validation import validate
from hal.hosted.device import HostedDevice
from hal.hosted.operators import matmuls
from hal.hosted.order import Order
from tests.hosted.conftest import TinyMachine, describe

(MATMUL,) = matmuls([DType.F32], 8)


class Multiplying(TinyMachine):
    def operators(self):
        return (MATMUL,)

    def prepare(self, operator, constants):
        m, n, k = (constants[name] for name in "mnk")

        def run(a, b, c):
            left, right = (
                np.frombuffer(x.memory, np.float32, size).reshape(shape)
                for x, size, shape in ((a, m * k, (m, k)), (b, k * n, (k, n)))
            )
            c.memory[: 4 * m * n] = (left @ right).tobytes()

        return run


@pytest.fixture
def device():
    facts = describe("tiny:0")
    info = DeviceInfo(
        **{name: getattr(facts, name) for name in DeviceInfo.__dataclass_fields__}
        | {"features": facts.features | {Feature.OPERATORS}}
    )
    made = Device(HostedDevice(info, Multiplying(), Order()), "tiny:0", [validate])
    yield made
    made.close()


def test_an_operator_is_launched_as_a_program(device) -> None:
    (operator,) = device.operators()
    assert operator.conditions == {"m": 1, "n": 2, "k": 2}
    program = device.load_operator(operator, {"m": 3, "n": 2, "k": 4})
    assert program.params == operator.params
    a, b = (np.arange(n, dtype=np.float32) for n in (12, 8))
    buffers = [device.alloc(n, AllocOptions()) for n in (48, 32, 24)]
    line, found = device.create_timeline(False), bytearray(24)
    for buffer, data in zip(buffers, (a, b), strict=False):
        device.copy(buffer.region(), data.tobytes(), line, ())
    device.launch(device.bind(program, buffers), (1, 1, 1), line, ())
    device.wait((device.copy(found, buffers[2].region(), line, ()),), 60.0, True)
    wanted = a.reshape(3, 4) @ b.reshape(4, 2)
    np.testing.assert_array_equal(np.frombuffer(found, np.float32).reshape(3, 2), wanted)


def test_what_an_operator_does_not_take_is_refused(device) -> None:
    for constants, why in (
        ({"m": 1, "n": 3, "k": 2}, "n is 3, and must be a multiple of 2"),
        ({"m": 0, "n": 2, "k": 2}, "m is 0"),
        ({"m": 1, "n": 2}, "takes the constants m, n, k"),
    ):
        with pytest.raises(Unsupported, match=why):
            device.load_operator(MATMUL, constants)
    with pytest.raises(Unsupported, match="'norm' is no operator"):
        device.load_operator(Operator("norm", MATMUL.params, MATMUL.conditions), {"m": 1})
