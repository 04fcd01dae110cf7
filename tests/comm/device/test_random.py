"""Random calls on devices of several plugins, against numpy; by hand many more of them."""

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.core.values import Collective, CollectiveKind
from tests.comm.device import shadow
from tests.comm.device.devices import FAR, mixed
from tests.comm.device.seats import seated
from tests.comm.engine.test_operations import numbers

F32 = np.dtype(np.float32)


@pytest.mark.parametrize(
    ("names", "count"), [("mixed", 120), ([FAR] * 3, 40), (["cpu:0", "cpu:0"], 40)]
)
def test_random_calls(names, count):
    if names == "mixed":  # asked for here, as to look for devices takes each who collects a second
        names = mixed(4)
    shadow.run(names, count, seed=len(names))


def test_random_calls_between_hosts():
    shadow.run(["cpu:0", FAR, "cpu:0"], 40, seed=6, hosts=(0, 0, 1))


def test_equal_calls_give_equal_bits():
    count = 3001
    call = Collective(CollectiveKind.ALL_REDUCE, DType.F32, count)
    with seated(mixed(3)) as seats:
        found = set()
        for _ in range(100):
            put = [s.put(numbers(7, rank, count, F32)) for rank, s in enumerate(seats)]
            done = [
                s.parts[0, 1, 2].start(call, b.region(), b.region(), (there,))
                for s, (b, there) in zip(seats, put, strict=True)
            ]
            for s, (buffer, _), point in zip(seats, put, done, strict=True):
                found.add(s.get(buffer, F32, point).tobytes())
                s.device.free(buffer)
    assert len(found) == 1
