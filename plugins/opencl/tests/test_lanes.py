"""How a device says whether a work-item or a group of them runs an instance."""

from __future__ import annotations

import pytest

import hal
from hal.core.errors import InvalidCall
from hal.core.values import OpenOptions


def test_a_processor_runs_an_instance_by_one_work_item_with_vectors() -> None:
    with hal.open("opencl:0") as device:
        limits = device.info.limits
    assert (limits.lanes, limits.vector_nbytes > 0) == (1, True)


def test_groups_of_lanes_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with hal.open("opencl:0", options=OpenOptions(settings={"lanes": "64"})) as device:
        asked = device.info
    monkeypatch.setenv("HAL_OPENCL_LANES", "64")
    with hal.open("opencl:0") as device:
        assert device.info == asked
    monkeypatch.setenv("HAL_OPENCL_LANES", "1")
    with hal.open("opencl:0") as device:
        alone = device.info
    assert (asked.limits.lanes, asked.limits.vector_nbytes) == (64, 0)
    assert asked.fingerprint != alone.fingerprint


def test_more_lanes_than_the_device_runs_are_refused() -> None:
    with pytest.raises(InvalidCall, match="at most"):
        hal.open("opencl:0", options=OpenOptions(settings={"lanes": "1000000"}))
