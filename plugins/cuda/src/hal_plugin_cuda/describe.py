"""What a CUDA device says about itself, in the contract's words."""

from __future__ import annotations

from collections.abc import Mapping

from hal.core.description import (
    DeviceInfo,
    Feature,
    Limits,
    MatrixUnit,
    MemorySpace,
    NumericProfile,
    SpaceKind,
)
from hal.core.dtypes import DType
from hal.core.values import CUDA_C, PTX
from hal.hosted.describe import ACCUMULATE, FREE, described
from hal.hosted.plugin import Choice
from hal_plugin_cuda.driver import Driver, shown
from hal_plugin_cuda.find import summary
from hal_plugin_cuda.lt import operators
from hal_plugin_cuda.wheels import nccl

_THREADS, _GRID, _CLOCK, _UNITS, _ECC, _SHARED = 1, (5, 6, 7), 13, 16, 32, 97
_MEMORY_CLOCK, _BUS_BITS, _L2, _MAJOR, _MINOR, _HOST_POINTERS = 36, 37, 38, 75, 76, 91
_MAPPING, _DESCRIPTORS = 102, 103
"""Numbers of `CUdevice_attribute`."""

_GRANULARITY = 256
"""How memory of the driver is aligned."""
_QUEUES = 128
"""Streams cost a little memory each, and the driver names no limit."""
_PARAMETER_NBYTES = 4096
_LANES = 256
"""Threads of a block: enough to hide latency, and registers for all of them."""

_ULP = (
    dict.fromkeys(("add", "mul", "fma", "div", "sqrt"), 0.5)
    | dict.fromkeys(("exp", "sin", "cos", "tanh", "erf"), 2.0)
    | {"log": 1.0, "pow": 16.0}
)
"""CUDA C++ Programming Guide, mathematical functions, single precision without fast options; `pow`
is the compiler's own."""


_RATES: Mapping[int, tuple[int, int, int]] = {
    80: (64, 32, 1024),
    86: (128, 2, 256),
    87: (128, 2, 512),
    89: (128, 2, 256),
    90: (128, 64, 1024),
    100: (128, 64, 1024),
    120: (128, 2, 256),
}
"""Fused multiply-adds of a multiprocessor in a clock, by compute capability: of f32 and f64 by the
throughput table of the CUDA C++ Programming Guide, of matrix units on 16-bit floats with f32 sums
by the white papers. From 9.0 on larger instructions than `mma.sync`, which counts here, do more."""

_MMA = {DType.BF16: "bf16", DType.F16: "f16"}


def capability(driver: Driver, device: int) -> int:
    """The compute capability, 80 for 8.0."""
    return 10 * driver.attribute(_MAJOR, device) + driver.attribute(_MINOR, device)


def describe(driver: Driver, device: int, choice: Choice) -> DeviceInfo:
    """The description of a device by the driver's attributes."""

    def fact(number: int) -> int:
        return driver.attribute(number, device)

    place, cc, units = choice.place, capability(driver, device), fact(_UNITS)
    total = int(driver.made("size_t", "cuDeviceTotalMem_v2", device))
    capacity = choice.memory_nbytes or total // place.shared
    known = _RATES.get(cc) or _RATES.get(cc // 10 * 10) or (0, 0, 0)
    f32, f64, matrix = (2e3 * fact(_CLOCK) * units * rate for rate in known)
    bandwidth = 2e3 * fact(_MEMORY_CLOCK) * fact(_BUS_BITS) / 8
    facts = {
        "compute capability": f"{cc // 10}.{cc % 10}",
        "driver": f"CUDA {shown(driver.version)}",
        "ecc": "on" if fact(_ECC) else "off",
    }
    narrow = dict.fromkeys((d for d in DType if d.is_narrow), f32)
    return described(
        choice,
        description=f"{summary(driver, device)} ({facts['driver']})",
        fingerprint=f"cuda sm_{cc} {units} units {_LANES} lanes {facts['driver']}",
        limits=Limits(
            grid=(fact(_GRID[0]), fact(_GRID[1]), fact(_GRID[2])),
            args=_PARAMETER_NBYTES // 16,
            alloc_nbytes=capacity,
            queues=_QUEUES,
            instances=units,
            lanes=min(_LANES, fact(_THREADS)),
            caches=(fact(_L2),),
            progress_s=choice.progress_s or 60.0,
        ),
        spaces=(
            MemorySpace("global", SpaceKind.GLOBAL, capacity, _GRANULARITY, bandwidth=bandwidth),
            MemorySpace("shared", SpaceKind.SCRATCHPAD, fact(_SHARED), 16),
        ),
        dtypes=dict.fromkeys(DType, 0.0) | narrow | {DType.F32: f32, DType.F64: f64},
        numeric=NumericProfile(_ULP, denormals=True, fma=True, accumulate=ACCUMULATE),
        formats=(CUDA_C, PTX),
        features=FREE
        | ({Feature.IMPORT_HOST} if fact(_HOST_POINTERS) else set())
        | ({Feature.IPC} if fact(_MAPPING) and fact(_DESCRIPTORS) else set())
        | ({Feature.GROUP_IPC} if nccl() and place.shared == 1 else set())
        | ({Feature.OPERATORS} if operators(driver.major) else set()),
        matrix_units=_units(cc, matrix),
        guessed=("dtypes", "matrix_units"),
        facts=facts,
    )


def _units(cc: int, rate: float) -> tuple[MatrixUnit, ...]:
    """The instruction that a warp of 32 threads runs together, since compute capability 8.0, and
    in 9.0 that of four warps, of any number of columns, at twice its rate."""
    calls = [(16, 1, "mma.sync.aligned.m16n8k16.row.col.f32.{0}.{0}.f32")] * (cc >= 80)
    calls += [(64, 2, "wgmma.mma_async.sync.aligned.m64n{{}}k16.f32.{0}.{0}")] * (cc == 90)
    return tuple(
        MatrixUnit(m, 8, 16, d, DType.F32, together=2, rate=rate * by, call=call.format(name))
        for m, by, call in calls
        for d, name in _MMA.items()
    )
