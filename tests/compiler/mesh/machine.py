"""Devices whose cores lie in a mesh."""

from __future__ import annotations

from dataclasses import replace

from hal.core.description import DeviceInfo, MemorySpace, SpaceKind
from hal.core.dtypes import DType
from tests.compiler.lowered import SIMD


def meshed(rows: int, columns: int, scratch_nbytes: int = 64 << 10) -> DeviceInfo:
    """Cores with registers of 64 bytes and so much scratchpad."""
    count = rows * columns
    limits = replace(SIMD.limits, instances=count, vector_nbytes=64, mesh=(rows, columns))
    spaces = (
        MemorySpace("global", SpaceKind.GLOBAL, 1 << 34, 128, bandwidth=51.2e9, latency=1.88e-7),
        MemorySpace("scratch", SpaceKind.SCRATCHPAD, scratch_nbytes, 64, dma_only=True),
    )
    rates = {DType.F64: 36e9, DType.F32: 36e9, DType.F16: 144e9}
    dtypes = {d: rate * count for d, rate in rates.items()}
    return replace(SIMD, limits=limits, spaces=spaces, dtypes=dtypes)
