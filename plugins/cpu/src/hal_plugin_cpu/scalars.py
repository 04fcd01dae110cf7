"""Scalars as eight-byte argument slots."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from typing import Any

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.tile.numeric import constant, quiet


def scalar_bits(value: Any, dtype: DType, where: str) -> int:
    """The slot's 64 bits for a scalar of that type, little endian, upper bytes 0.

    Raises InvalidCall for a value of another kind or outside the type's range.
    """
    try:
        return _PACK[dtype](value)
    except (TypeError, OverflowError, struct.error) as error:
        raise InvalidCall(f"{where}: {value!r} is no {dtype.short}: {error}") from error


def _whole(dtype: DType) -> Callable[[Any], int]:
    low = -(1 << dtype.bits - 1) if dtype.kind == "i" else 0
    high = low + (1 << dtype.bits) - 1

    def pack(value: Any) -> int:
        number = operator.index(value)
        if not low <= number <= high:
            raise OverflowError(f"allowed are {low} to {high}")
        return number - low + low & (1 << dtype.bits) - 1

    return pack


def _floating(code: str) -> Callable[[Any], int]:
    packer = struct.Struct("<" + code)

    def pack(value: Any) -> int:
        return int.from_bytes(packer.pack(value), "little")

    return pack


_single = _floating("f")


def _brain(value: Any) -> int:
    bits = _single(value)
    if bits & 0x7FFFFFFF > 0x7F800000:
        return bits >> 16 | 0x40
    rounded = bits + 0x7FFF + (bits >> 16 & 1) >> 16
    if rounded & 0x7FFF == 0x7F80 and bits & 0x7FFFFFFF != 0x7F800000:
        raise OverflowError("the largest bf16 is 3.3895e38")
    return rounded


def _narrow(dtype: DType) -> Callable[[Any], int]:
    def pack(value: Any) -> int:
        _single(value)
        with quiet():
            rounded = constant(value, dtype)
        if math.isfinite(value) and not math.isfinite(rounded):
            raise OverflowError(f"the largest {dtype.short} is {dtype.largest:g}")
        return int.from_bytes(rounded.tobytes(), "little")

    return pack


def _truth(value: Any) -> int:
    if operator.index(value) not in (0, 1):
        raise OverflowError("allowed are False and True")
    return int(value)


_PACK: dict[DType, Callable[[Any], int]] = {
    DType.F64: _floating("d"),
    DType.F32: _single,
    DType.F16: _floating("e"),
    DType.BF16: _brain,
    DType.BOOL: _truth,
    **{d: _narrow(d) for d in DType if d.is_float and d.bits == 8},
} | {dtype: _whole(dtype) for dtype in DType if dtype.is_int}
