"""Some of PyTorch's own samples for some of the names that are right, drawn anew in each run.

All of them: `python -m tests.ops.opinfo`.
"""

import warnings
from pathlib import Path

import pytest
import torch

from stack.framework import devices
from stack.framework.cell import here
from tests.draw import stream
from tests.framework.conftest import InterpretedEngine
from tests.ops.opinfo import judge, names

RIGHT = Path(__file__).with_name("opinfo_right.txt").read_text().split()
"""The names that `python -m tests.ops.opinfo` found right."""

COUNTS = {"interpreter:0": (8, 4), "cpu:0": (3, 2), "opencl:0": (1, 1), "sunway:0": (1, 1)}
"""How many names each device is asked for, and how many samples of each."""


def drawn():
    rng = stream("opinfo")
    for device, (count, most) in COUNTS.items():
        for name in rng.sample(RIGHT, count):
            needs = () if device == "interpreter:0" else (pytest.mark.device(device),)
            yield pytest.param(name, device, most, marks=needs, id=f"{name}-{device}")


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(("name", "device", "most"), list(drawn()))
def test_a_name_that_is_right_stays_right(name, device, most, monkeypatch):
    if device == "interpreter:0":
        monkeypatch.setitem(devices.engines, device, InterpretedEngine())
    monkeypatch.setattr(devices, "_default", [device])
    monkeypatch.setattr(here, "generators", {})  # one of an engine that ends with the test
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in names((name,))[name]:
            if torch.float32 in op.dtypes:
                _, wrong = judge(op, most)
                assert not wrong, f"{name}: {wrong}"
