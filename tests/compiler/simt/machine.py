"""Runs kernels in groups of lanes on an OpenCL device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hal.core.description import DeviceInfo
from hal.tile.kernel import Kernel
from stack.compiler.lower.simt import render_opencl
from tests.compiler.c.machine import launch
from tests.compiler.lowered import SIMD


def groups_of(lanes: int) -> DeviceInfo:
    """A device with at most so many lanes for an instance."""
    return replace(SIMD, limits=replace(SIMD.limits, vector_nbytes=0, lanes=lanes))


def run(
    kernel: Kernel,
    grid: tuple[int, ...],
    buffers: Mapping[str, np.ndarray],
    scalars: Mapping[str, Any] | None = None,
    lanes: int = 64,
) -> None:
    """Run a kernel over a grid, changing the buffers."""
    launch(render_opencl(kernel, groups_of(lanes)), grid, buffers, scalars)
