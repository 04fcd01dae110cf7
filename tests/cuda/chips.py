"""Descriptions of CUDA devices as the plugin would give them, without a driver."""

from __future__ import annotations

from dataclasses import replace

from hal.core.description import DeviceInfo, Limits, MatrixUnit, MemorySpace, SpaceKind
from hal.core.dtypes import DType
from hal.core.values import CUDA_C
from stack.compiler.lower.simt.dialect import CUDA_GROUPS
from tests.compiler.lowered import SIMD

ARCHS = (80, 90, 100)
"""The compute capabilities that every kernel is compiled for."""

UNITS = tuple(
    MatrixUnit(16, 8, 16, dtype, DType.F32, together=2, call=call)
    for call in CUDA_GROUPS.units
    for dtype in (DType.BF16, DType.F16)
    if f".{dtype.short}." in call
)

CHIP: DeviceInfo = replace(
    SIMD,
    name="cuda:0",
    plugin="cuda",
    description="a chip with blocks of 256 threads and 99 KiB of shared memory",
    limits=Limits(((1 << 31) - 1, 65535, 65535), 256, 1 << 34, 128, 132, lanes=256),
    spaces=(
        MemorySpace("global", SpaceKind.GLOBAL, 1 << 34, 256),
        MemorySpace("shared", SpaceKind.SCRATCHPAD, 99 << 10, 16),
    ),
    dtypes=dict.fromkeys(DType, 0.0),
    formats=(CUDA_C,),
    matrix_units=UNITS,
)
"""All chips from compute capability 8.0 on, as far as programs are concerned."""

WIDE: DeviceInfo = replace(
    CHIP,
    matrix_units=(
        *UNITS,
        *(
            MatrixUnit(64, 8, 16, dtype, DType.F32, together=2, call=call)
            for call in CUDA_GROUPS.wide
            for dtype in (DType.BF16, DType.F16)
            if f".{dtype.short}." in call
        ),
    ),
)
"""Those of compute capability 9.0, whose units of four warps read their operands themselves."""

CHIPS = tuple(WIDE if arch == 90 else CHIP for arch in ARCHS)
"""What each of `ARCHS` is."""
