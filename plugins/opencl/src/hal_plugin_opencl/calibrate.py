"""What the devices do in practice: the figures of `DeviceInfo.declared`."""

from __future__ import annotations

from collections.abc import Mapping

from hal.core.values import OPENCL_C
from hal.hosted import calibrate
from hal_plugin_opencl.choice import Choice
from hal_plugin_opencl.machine import opened

_ADDITION = """
/* variant {number} */
__kernel void add(__global uchar *a_base, ulong a_offset, __global uchar *b_base, ulong b_offset,
                  __global uchar *c_base, ulong c_offset) {{
  size_t i = get_global_id(0) + get_global_size(0) * get_global_id(1);
  ((__global float *)(c_base + c_offset))[i] =
      ((__global float *)(a_base + a_offset))[i] + ((__global float *)(b_base + b_offset))[i];
}}
"""
TEXTS = calibrate.Texts(OPENCL_C, "__kernel void empty() {}", _ADDITION)


def figures(choices: tuple[Choice, ...]) -> Mapping[str, float]:
    """What devices so opened do; measured once in a process."""
    names = tuple(choice.name for choice in choices)
    return calibrate.figures(choices, names, lambda index: opened(choices[index], "", {}), TEXTS)
