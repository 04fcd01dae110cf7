"""A long training needs no more than it did after its second step."""

import json
import sys
from pathlib import Path

import pytest

LONG_RUN = Path(__file__).with_name("long_run.py")
CONSTANT = (
    "device_allocations",
    "device_buffers",
    "pool_nbytes",
    "pool_peak_nbytes",
    "live_set_nbytes",
    "plans",
    "arrays",
    "nodes",
    "pending",
)
GROWTH_NBYTES = 8 << 20
"""What buffers of bounded size in the allocator and the device's timelines may still grow by."""


@pytest.mark.slow
def test_a_thousand_steps_allocate_nothing_and_leak_nothing(commands):
    ended = commands.ended(commands.start(sys.executable, LONG_RUN, 2, 100, 1000))
    assert ended.code == 0, ended.err
    second, hundredth, last = map(json.loads, ended.out.splitlines())
    assert last["step"] == 1000
    assert {n: second[n] for n in CONSTANT} == {n: last[n] for n in CONSTANT}
    assert last["objects"] <= hundredth["objects"]
    assert last["resident_nbytes"] - hundredth["resident_nbytes"] < GROWTH_NBYTES
    assert 0 < last["pool_peak_nbytes"] <= 1.3 * last["live_set_nbytes"]
