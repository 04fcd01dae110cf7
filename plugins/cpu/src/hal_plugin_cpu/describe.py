"""What the device says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from hal.core.description import (
    DeviceInfo,
    Feature,
    Limits,
    Link,
    MatrixUnit,
    NumericProfile,
)
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal_plugin_cpu import machine
from hal_plugin_cpu._native import lib
from hal_plugin_cpu.launches import MAX_GRID
from hal_plugin_cpu.memory import spaces
from hal_plugin_cpu.processor import Processor
from hal_plugin_cpu.programs import FORMATS
from hal_plugin_cpu.timelines import MAX_TIMELINES

MAX_ARGS = 4096
FEATURES = frozenset(Feature) - {Feature.OPERATORS, Feature.GROUP_IPC}

_FUNCTIONS = {
    "exp": 1.6,
    "log": 1.0,
    "sin": 1.5,
    "cos": 1.5,
    "tanh": 2.0,
    "erf": 2.1,
    "pow": 1.0,
}
"""The larger of two errors: what the GNU C library's manual bounds, and what the compiler that
writes our format states for its own polynomials."""
_WIDTHS = {
    "avx512f": (64, 32),
    "avx2": (32, 16),
    "avx": (32, 16),
    "sse2": (16, 16),
    "neon": (16, 32),
}
"""(bytes of a vector register, number of them) by the first of these features that the processor
has."""

_SCALE = "llvm.x86.avx512.mask.scalef.ps.512"


@dataclass(frozen=True, slots=True)
class Shape:
    """What an opened device is given: its index among `count` devices, workers, bytes of memory,
    the seconds without progress after which it gives an operation up, and measured performance."""

    index: int
    count: int
    threads: int
    capacity: int
    progress_s: float
    declared: Mapping[str, float] = field(default_factory=dict)


def device_name(index: int) -> str:
    """The contract's name of a device."""
    return f"cpu:{index}"


def describe(shape: Shape, processor: Processor) -> DeviceInfo:
    """The description of a device of that shape on this host."""
    features = processor.features
    vector_nbytes, registers = next((w for f, w in _WIDTHS.items() if features.get(f)), (0, 0))
    # The hardware's own operations round correctly.
    ulp = _FUNCTIONS | dict.fromkeys(("add", "mul", "div", "sqrt", "fma"), 0.5)
    single, double = machine.fma_rates()
    known = {DType.F32: single * shape.threads, DType.F64: double * shape.threads}
    return DeviceInfo(
        name=device_name(shape.index),
        plugin="cpu",
        description=summary(shape.threads),
        fingerprint=processor.fingerprint,
        contract=1,
        limits=Limits(
            grid=MAX_GRID,
            args=MAX_ARGS,
            alloc_nbytes=shape.capacity,
            queues=MAX_TIMELINES,
            instances=shape.threads,
            progress_s=shape.progress_s,
            vector_nbytes=vector_nbytes,
            registers=registers,
            masked_nbytes=2 if features.get("avx512bw") and features.get("avx512vl") else 4,
            caches=machine.caches(),
        ),
        spaces=spaces(shape.capacity),
        dtypes={dtype: known.get(dtype, 0.0) for dtype in DType},
        numeric=NumericProfile(
            ulp=ulp,
            denormals=True,
            fma=features.get("fma", False) or features.get("neon", False),
            accumulate={d: d.computed_in for d in DType},
        ),
        formats=FORMATS,
        features=FEATURES,
        matrix_units=_matrix_units(shape.threads),
        scale=_SCALE if lib.hc_has_unit(lib.HC_SCALE) else "",
        links=tuple(
            Link(device_name(i), "memory", 0, 0) for i in range(shape.count) if i != shape.index
        ),
        declared=shape.declared,
        facts={
            "processor": machine.processor(),
            "target": processor.name,
            "llvm": processor.llvm,
            "llvmlite": processor.llvmlite,
            "features": " ".join(sorted(name for name, has in features.items() if has)),
        },
    )


def summary(threads: int) -> str:
    """The device in a line."""
    return f"{machine.processor()}, {threads} threads"


def _tiles(k: int, left: DType, sums: DType, right: DType | None, name: str) -> MatrixUnit:
    """A unit of AMX, whose registers are 16 rows of 64 bytes. It takes denormals of floats for
    zero."""
    return MatrixUnit(
        *(16, 16, k, left, sums, right),
        together=32 // left.bits,
        denormals=not left.is_float,
        call=f"llvm.x86.{name}.internal",
        register="x86_amx",
        registers=8,
        clear="llvm.x86.tilezero.internal",
        load="llvm.x86.tileloadd64.internal",
        store="llvm.x86.tilestored64.internal",
    )


UNITS = (
    (
        lib.HC_DOT_BF16,
        MatrixUnit(
            1, 16, 2, DType.BF16, DType.F32, together=2, denormals=False,
            call="llvm.x86.avx512bf16.dpbf16ps.512",
        ),
    ),
    (
        lib.HC_DOT_I8,
        MatrixUnit(
            1, 16, 4, DType.U8, DType.I32, DType.I8, together=4,
            call="llvm.x86.avx512.vpdpbusd.512",
        ),
    ),
    (
        lib.HC_DOT_I8_256,
        MatrixUnit(
            1, 8, 4, DType.U8, DType.I32, DType.I8, together=4,
            call="llvm.x86.avx512.vpdpbusd.256",
        ),
    ),
    (lib.HC_TILE_BF16, _tiles(32, DType.BF16, DType.F32, None, "tdpbf16ps")),
    (lib.HC_TILE_F16, _tiles(32, DType.F16, DType.F32, None, "tdpfp16ps")),
    (lib.HC_TILE_I8, _tiles(64, DType.I8, DType.I32, None, "tdpbssd")),
    (lib.HC_TILE_I8, _tiles(64, DType.U8, DType.I32, DType.I8, "tdpbusd")),
)  # fmt: skip
"""Instructions that work on vector registers, and those that work on tile registers."""


def _matrix_units(threads: int) -> tuple[MatrixUnit, ...]:
    rates = ((unit, machine.dot_rate(number)) for number, unit in UNITS)
    return tuple(
        replace(unit, rate=rate * threads * 2 * unit.m * unit.n * unit.k)
        for unit, rate in rates
        if rate
    )
