"""A device divided into parts, which work together as the members of a group."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest

import hal
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.values import Collective, CollectiveKind, Group, GroupSpec
from plugins.opencl.tests.conftest import WAIT_S, Bench

COUNT = 1000


def test_parts_of_a_device_sum_in_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    with hal.open("opencl:0") as whole:
        units = whole.info.limits.instances
    monkeypatch.setenv("HAL_OPENCL_PARTITION", str(units))
    with ExitStack() as stack:
        names = tuple(f"opencl:{index}" for index in range(units))
        devices = [stack.enter_context(hal.open(name)) for name in names]
        groups = _joined(devices, names)
        benches = [Bench(device) for device in devices]
        numbers = np.arange(COUNT, dtype=np.int32)
        buffers = [bench.put(numbers * (rank + 1)) for rank, bench in enumerate(benches)]
        call = Collective(CollectiveKind.ALL_REDUCE, DType.I32, COUNT)
        points = [
            bench.device.collective(group, call, b.region(), b.region(), bench.timeline, ())
            for bench, group, b in zip(benches, groups, buffers, strict=True)
        ]
        for bench, point, buffer in zip(benches, points, buffers, strict=True):
            bench.done(point)
            found = bench.get(buffer, np.int32)
            np.testing.assert_array_equal(found, numbers * (units * (units + 1) // 2))


def _joined(devices: list[Device], names: tuple[str, ...]) -> list[Group]:
    """A group of the devices, which join at once."""
    specs = [GroupSpec("parts", rank, names, WAIT_S) for rank in range(len(names))]
    joins: list[Callable[[], Group]] = [
        partial(device.create_group, spec) for device, spec in zip(devices, specs, strict=True)
    ]
    with ThreadPoolExecutor(len(joins)) as threads:
        return [join.result(WAIT_S) for join in [threads.submit(join) for join in joins]]
