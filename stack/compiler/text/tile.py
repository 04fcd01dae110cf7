"""A tile kernel as it is, program format hal-tile/1."""

from __future__ import annotations

from hal.core.description import DeviceInfo
from hal.core.values import HAL_TILE, KernelSource
from hal.tile.kernel import Kernel
from hal.tile.printer import print_kernel


def render(kernel: Kernel, info: DeviceInfo) -> KernelSource:
    """The kernel in the portable format."""
    return KernelSource(HAL_TILE, print_kernel(kernel), kernel.name, kernel.params)
