"""Conversions: every pair of element types, saturation, and one rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.dtypes import DType
from hal.tile.build import bitcast, cast
from hal.tile.numeric import NUMPY, bounds
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.cases.kernels_floats import special
from hal_conformance.cases.kernels_integers import ends
from hal_conformance.kernels import agree, computed, need
from hal_conformance.rig import Rig

kernels_casts = Cases("E", Level.CORE)

F16, F32, F64, BF16 = DType.F16, DType.F32, DType.F64, DType.BF16
INTEGERS = tuple(d for d in DType if d.is_int)
NARROW = tuple(d for d in DType if d.is_narrow)


def _values(dtype: DType) -> NDArray[Any]:
    if dtype is DType.BOOL:
        return np.array([False, True])
    if dtype.is_int:
        return ends(dtype)
    edges = [2.0**n + d for n in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1.0, -0.5, 0.0, 0.5)]
    with np.errstate(all="ignore"):
        both = np.array([*edges, *(-x for x in edges)]).astype(NUMPY[dtype])
    return np.concatenate([special(dtype), both])


@kernels_casts.case("cast-from", "launch.exact", dtype=tuple(DType))
def _(rig: Rig, dtype: DType) -> None:
    """To every other type of the device."""
    others = [d for d in DType if d in rig.info.dtypes and d is not dtype]
    agree(
        rig,
        lambda x: [cast(x, d) for d in others],
        [_values(dtype)],
        others,
        f"{dtype.short} to {', '.join(d.short for d in others)}",
    )


@kernels_casts.case("cast-saturates", "launch.exact", dtype=INTEGERS)
def _(rig: Rig, dtype: DType) -> None:
    """Floats that an integer type cannot hold give its nearest end; NaN gives 0."""
    values = np.array([1e30, -1e30, np.inf, -np.inf, np.nan, 2.0**dtype.bits], np.float32)
    (got,) = computed(rig, lambda x: [cast(x, dtype)], [values], [dtype])
    low, high = bounds(dtype)
    wanted = np.array([high, low, high, low, 0, high], NUMPY[dtype])
    expect.same(got, wanted, f"float32 to {dtype.short}")


@kernels_casts.case("cast-rounds-to-even", "launch.exact", dtype=NARROW)
def _(rig: Rig, dtype: DType) -> None:
    """float32 to a narrower type: at, just below and just above the middle of two neighbours, and
    what is too large for the type."""
    need(rig, F32, dtype)
    every = 127 if dtype.bits == 16 else 1
    codes = np.arange(0, (1 << dtype.bits - 1) - 1, every, dtype=f"u{dtype.nbytes}")
    with np.errstate(all="ignore"):
        narrow = codes.view(NUMPY[dtype]).astype(np.float32)
        above = (codes + codes.dtype.type(1)).view(NUMPY[dtype]).astype(np.float32)
        middle = (narrow.astype(np.float64) + above.astype(np.float64)) / 2
        middle = middle[np.isfinite(middle)].astype(np.float32)
        around = [np.nextafter(middle, np.float32(s * np.inf)) for s in (-1, 1)]
        beyond = dtype.largest * (1 + np.array([0.2, 0.6, 1, 2, 64]) * 2.0 ** -(dtype.mantissa + 1))
        beyond = beyond.astype(np.float32)  # bfloat16 reaches as far as float32: some are infinite
    values = np.concatenate([middle, *around, beyond])
    if not rig.info.numeric.denormals:
        values = values[np.abs(values) >= np.finfo(np.float32).tiny * 256]
    values = np.concatenate([values, -values])
    (got,) = computed(rig, lambda x: [cast(x, dtype)], [values], [dtype])
    with np.errstate(all="ignore"):
        wanted = values.astype(NUMPY[dtype])
    expect.same(got, wanted, f"float32 to {dtype.short}")
    expect.same(np.signbit(got), np.signbit(wanted), "the signs")


@kernels_casts.case("cast-by-way-of-f32", "launch.exact", dtype=NARROW)
def _(rig: Rig, dtype: DType) -> None:
    """Above the middle of two neighbours by less than float32 tells: float64 becomes the middle,
    and then the even neighbour."""
    step, count = 2.0**-dtype.mantissa, min(8, 1 << dtype.mantissa)
    values = np.array([1 + (n + 0.5) * step + 2.0**-40 for n in range(count)])
    (got,) = computed(rig, lambda x: [cast(x, dtype)], [values], [dtype])
    wanted = np.array([1 + (n + n % 2) * step for n in range(count)]).astype(NUMPY[dtype])
    expect.same(got, wanted, f"float64 to {dtype.short}")


@kernels_casts.case("cast-widens-exactly", "launch.exact", dtype=NARROW)
def _(rig: Rig, dtype: DType) -> None:
    """All numbers of a narrow type."""
    values = np.arange(1 << dtype.bits, dtype=f"u{dtype.nbytes}").view(NUMPY[dtype])
    if dtype is BF16 and not rig.info.numeric.denormals:
        values = values[(values == 0) | (np.abs(values.astype(np.float32)) >= 2.0**-126)]
    (got,) = computed(rig, lambda x: [cast(x, F32)], [values], [F32], width=256)
    with np.errstate(all="ignore"):
        expect.same(got, values.astype(np.float32), f"{dtype.short} to float32")


@kernels_casts.case("cast-large-integers", "launch.exact", dtype=(DType.I64, DType.U64))
def _(rig: Rig, dtype: DType) -> None:
    """Numbers that a float does not hold are rounded to the nearest, once."""
    low, high = bounds(dtype)
    powers = [2**n + d for n in (24, 25, 53, 54, 62) for d in (-3, -1, 0, 1, 2, 3, 5)]
    around = [2**40 + 2**16 + d for d in (-1, 0, 1)] + [2**60 + 2**36 + d for d in (-1, 0, 1)]
    values = [*powers, *around, high, high - 1, low]
    inputs = [np.array(values, NUMPY[dtype])]
    agree(rig, lambda x: [cast(x, F32)], inputs, [F32], f"{dtype.short} to float32")
    if F64 in rig.info.dtypes:
        agree(rig, lambda x: [cast(x, F64)], inputs, [F64], f"{dtype.short} to float64")


@kernels_casts.case("bitcast", "launch.exact", bits=(8, 16, 32, 64))
def _(rig: Rig, bits: int) -> None:
    """Bits stay as they are, among all types of one width and back."""
    same = [d for d in DType if d.bits == bits and d is not DType.BOOL and d in rig.info.dtypes]
    if len(same) < 2:
        raise expect.Unfit(f"the device has {len(same)} types of {bits} bits")
    whole = next(d for d in same if d.is_int)
    values = np.concatenate([ends(whole), np.frombuffer(rig.noise(bits * 8), NUMPY[whole])])
    if bits > 8:  # a signalling NaN may become a quiet one on its way
        floats = [d for d in same if d.is_float]
        nan = np.any([np.isnan(values.view(NUMPY[d]).astype(np.float64)) for d in floats], axis=0)
        values = np.where(nan, 1, values).astype(NUMPY[whole])
    got = computed(
        rig, lambda x: [bitcast(bitcast(x, d), whole) for d in same], [values], [whole] * len(same)
    )
    for dtype, found in zip(same, got, strict=True):
        expect.same(found, values, f"{whole.short} as {dtype.short} and back")
    others = [d for d in same if d is not whole]
    for dtype, found in zip(
        others,
        computed(rig, lambda x: [bitcast(x, d) for d in others], [values], others),
        strict=True,
    ):
        expect.same_bytes(found.tobytes(), values.tobytes(), f"{whole.short} as {dtype.short}")
