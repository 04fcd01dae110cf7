"""Memory that runs out, and kernels that never end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hal_plugin_opencl import rounds

import hal
from hal.core.errors import OutOfMemory, PluginError
from hal.core.values import AllocOptions
from plugins.opencl.tests.conftest import Bench

HANGS = """
import json, hal
from hal.core.dtypes import DType
from hal.core.errors import DeviceLost
from hal.core.values import *

text = '''__kernel void spin(__global uchar *x_base, ulong x_offset) {
  volatile __global int *x = (volatile __global int *)(x_base + x_offset);
  while (!x[0]);
}'''
param = Param("x", ParamKind.BUFFER, DType.I32, True, True)
device = hal.open("opencl:0", options=OpenOptions(settings={"progress_s": "0.2"}))
buffer = device.alloc(4, AllocOptions(zero=True))
launchable = device.bind(device.load(KernelSource(OPENCL_C, text, "spin", (param,))), [buffer])
point = device.launch(launchable, (1, 1, 1), device.create_timeline(False), ())
try:
    device.wait([point], 30, True)
except DeviceLost as error:
    failure = error.failure
epoch = device.reset()
device.close()
print(json.dumps([failure.kind.value, failure.scope.value, failure.operation, epoch]))
"""


def test_a_kernel_that_never_ends_is_a_hang() -> None:
    """In a process of its own, which ends although the kernel does not."""
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, check=True, timeout=120
    )
    assert json.loads(done.stdout) == ["hang", "device", "launch spin", 1]


def test_a_driver_that_leaves_loops_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_KEPT", set())
    monkeypatch.setattr(rounds, "_WANTED", rounds._WANTED + 1)
    with pytest.raises(PluginError, match=r"opencl:0 .* leaves loops before their end"):
        hal.open("opencl:0")


def test_memory_that_runs_out(open_bench: Callable[..., Bench]) -> None:
    bench = open_bench(memory_nbytes="1048576")
    kept = bench.put(np.ones(1 << 18, np.uint8))
    with pytest.raises(OutOfMemory) as caught:
        bench.device.alloc(1 << 20, AllocOptions())
    assert caught.value.available == (1 << 20) - (1 << 18)
    assert bench.get(kept, np.uint8).all()


def test_zeroed_memory_is_zero(bench: Bench) -> None:
    zeroed = bench.device.alloc(1000, AllocOptions(zero=True))
    assert not bench.get(zeroed, np.uint8).any()
