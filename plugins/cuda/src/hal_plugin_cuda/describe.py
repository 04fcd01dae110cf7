"""What a CUDA device says about itself, in the contract's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hal.core.description import (
    GUESSED,
    DeviceInfo,
    Feature,
    Limits,
    Link,
    MatrixUnit,
    MemorySpace,
    NumericProfile,
    SpaceKind,
)
from hal.core.dtypes import DType
from hal.core.values import CUDA_C, PTX
from hal_plugin_cuda.choice import PLUGIN, Choice
from hal_plugin_cuda.driver import Driver
from hal_plugin_cuda.find import summary

_THREADS, _GRID, _SHARED, _CLOCK, _UNITS, _ECC = 1, (5, 6, 7), 8, 13, 16, 32
_MEMORY_CLOCK, _BUS_BITS, _L2, _MAJOR, _MINOR = 36, 37, 38, 75, 76
"""Numbers of `CUdevice_attribute`."""

_GRANULARITY = 256
"""How memory of the driver is aligned."""
_QUEUES = 128
"""Streams cost a little memory each, and the driver names no limit."""
_PARAMETER_NBYTES = 4096
_LANES = 256
"""Threads of a block: enough to hide latency, and registers for all of them."""

_ULP = {"add": 0.5, "mul": 0.5, "fma": 0.5, "div": 0.5, "sqrt": 0.5} | {
    "exp": 2.0,
    "log": 1.0,
    "sin": 2.0,
    "cos": 2.0,
    "tanh": 2.0,
    "erf": 2.0,
    "pow": 16.0,
}
"""CUDA C++ Programming Guide, mathematical functions, single precision without fast options; `pow`
is the compiler's own."""


@dataclass(frozen=True, slots=True)
class _Rates:
    """Fused multiply-adds of a multiprocessor in a clock: of f32 and f64, and of matrix units on
    16-bit floats with f32 sums, by the instruction that programs use."""

    f32: int
    f64: int
    matrix: int


_RATES: Mapping[int, _Rates] = {
    80: _Rates(64, 32, 1024),
    86: _Rates(128, 2, 256),
    87: _Rates(128, 2, 512),
    89: _Rates(128, 2, 256),
    90: _Rates(128, 64, 1024),
    100: _Rates(128, 64, 1024),
    120: _Rates(128, 2, 256),
}
"""By compute capability: the throughput table of the CUDA C++ Programming Guide; matrix units by
the architectures' white papers. From 9.0 on larger instructions reach more than `mma.sync`, which
is what counts here."""

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
    clocks = 1e3 * fact(_CLOCK) * units
    rates = _RATES.get(cc) or _RATES.get(cc // 10 * 10)
    bandwidth = 2e3 * fact(_MEMORY_CLOCK) * fact(_BUS_BITS) / 8
    version = driver.made("int", "cuDriverGetVersion")
    facts = {
        "compute capability": f"{cc // 10}.{cc % 10}",
        "driver": f"CUDA {version // 1000}.{version % 1000 // 10}",
        "ecc": "on" if fact(_ECC) else "off",
        GUESSED: "dtypes, matrix_units",
    }
    return DeviceInfo(
        name=choice.name,
        plugin=PLUGIN,
        description=f"{summary(driver, device)} ({facts['driver']})",
        fingerprint=f"cuda sm_{cc} {units} units {_LANES} lanes {facts['driver']}",
        contract=1,
        limits=Limits(
            grid=(fact(_GRID[0]), fact(_GRID[1]), fact(_GRID[2])),
            args=_PARAMETER_NBYTES // 16,
            alloc_nbytes=capacity,
            queues=_QUEUES,
            instances=units,
            lanes=min(_LANES, fact(_THREADS)),
            caches=(fact(_L2),),
            progress_s=choice.progress_s,
        ),
        spaces=(
            MemorySpace("global", SpaceKind.GLOBAL, capacity, _GRANULARITY, bandwidth=bandwidth),
            MemorySpace("shared", SpaceKind.SCRATCHPAD, fact(_SHARED), 16),
        ),
        dtypes=_dtypes(rates, clocks),
        numeric=NumericProfile(
            ulp=_ULP, denormals=True, fma=True, accumulate={d: d.computed_in for d in DType}
        ),
        formats=(CUDA_C, PTX),
        features=frozenset(Feature) - _LACKING,
        matrix_units=_units(rates, clocks) if cc >= 80 else (),
        links=tuple(
            Link(f"{PLUGIN}:{i}", "host", 0, 0) for i in range(place.count) if i != place.index
        ),
        facts=facts,
    )


_LACKING = {Feature.MAP, Feature.IPC, Feature.GROUP_IPC, Feature.OPERATORS}


def _dtypes(rates: _Rates | None, clocks: float) -> dict[DType, float]:
    """Operations/s by element type; 0 where the chip's rates are not in the table."""
    known = dict.fromkeys(DType, 0.0)
    if rates is not None:
        known |= {DType.F32: 2 * clocks * rates.f32, DType.F64: 2 * clocks * rates.f64}
        known |= {d: known[DType.F32] for d in DType if d.is_narrow}  # computed in f32
    return known


def _units(rates: _Rates | None, clocks: float) -> tuple[MatrixUnit, ...]:
    """The instruction that a warp of 32 threads runs together, since compute capability 8.0."""
    rate = 2 * clocks * rates.matrix if rates else 0.0
    call = "mma.sync.aligned.m16n8k16.row.col.f32.{0}.{0}.f32"
    return tuple(
        MatrixUnit(16, 8, 16, d, DType.F32, together=2, rate=rate, call=call.format(name))
        for d, name in _MMA.items()
    )
