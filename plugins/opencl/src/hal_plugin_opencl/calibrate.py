"""What the devices do in practice: the figures of `DeviceInfo.declared`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache

from hal.core.device import Device
from hal.core.values import OPENCL_C
from hal.hosted.calibrate import Texts, measured
from hal_plugin_opencl.machine import opened
from hal_plugin_opencl.plugin import PLUGIN, Choice

_ADDITION = """
/* variant {number} */
__kernel void add(__global uchar *a_base, ulong a_offset, __global uchar *b_base, ulong b_offset,
                  __global uchar *c_base, ulong c_offset) {{
  size_t i = get_global_id(0) + get_global_size(0) * get_global_id(1);
  ((__global float *)(c_base + c_offset))[i] =
      ((__global float *)(a_base + a_offset))[i] + ((__global float *)(b_base + b_offset))[i];
}}
"""
TEXTS = Texts(OPENCL_C, "__kernel void empty() {}", _ADDITION)

_calibrating = threading.Lock()


def figures(choice: Choice) -> Mapping[str, float]:
    """What devices so opened do; measured once in a process."""
    with _calibrating:
        return _figures(replace(choice, index=0))


@cache
def _figures(choice: Choice) -> Mapping[str, float]:
    with ExitStack() as stack:
        devices = []
        for index in range(choice.count):
            position = index if choice.shared == 1 else choice.position
            one = opened(replace(choice, index=index, position=position), "", {})
            devices.append(stack.enter_context(closing(Device(one, f"{PLUGIN}:{index}"))))
        return measured(devices, TEXTS)
