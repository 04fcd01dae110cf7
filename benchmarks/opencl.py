"""The OpenCL device that is measured, and a queue of its driver for peers on the same device."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

import hal

DEVICE = "opencl:0"


def absent() -> str:
    """Why the device cannot be measured; empty when it can."""
    if any(row.name == DEVICE for row in hal.devices()):
        return ""
    return f"no device {DEVICE}: pip install hal-plugin-opencl[pocl]"


def load() -> str:
    """How many threads of the machine want to run, ours among them."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def queue() -> Any:
    """A queue of pyopencl, which may be absent, on the device's hardware and in a context of its
    own."""
    cl, find = import_module("pyopencl"), import_module("hal_plugin_opencl.find")
    return cl.CommandQueue(cl.Context([find.devices()[0]]))


def buffer(queue: Any, content: npt.NDArray[np.float32]) -> Any:
    """A buffer in the queue's context."""
    cl = import_module("pyopencl")
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    return cl.Buffer(queue.context, flags, hostbuf=content)


def kernel(queue: Any, text: str, name: str) -> Any:
    """A kernel of a program in the queue's context."""
    cl = import_module("pyopencl")
    return cl.Kernel(cl.Program(queue.context, text).build(), name)
