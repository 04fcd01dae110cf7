"""Element types as numpy knows them, and Python numbers as values of an element type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from hal.core.dtypes import DType
from stack.ir.error import GraphError

NUMPY: Mapping[DType, np.dtype[Any]] = {
    DType.F64: np.dtype(np.float64),
    DType.F32: np.dtype(np.float32),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.I64: np.dtype(np.int64),
    DType.I32: np.dtype(np.int32),
    DType.I16: np.dtype(np.int16),
    DType.I8: np.dtype(np.int8),
    DType.U64: np.dtype(np.uint64),
    DType.U32: np.dtype(np.uint32),
    DType.U16: np.dtype(np.uint16),
    DType.U8: np.dtype(np.uint8),
    DType.BOOL: np.dtype(np.bool_),
}


def int_range(dtype: DType) -> tuple[int, int]:
    """The least and greatest value of an integer type, or of bool."""
    if dtype is DType.BOOL:
        return False, True
    return (
        (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1)
        if dtype.kind == "i"
        else (0, (1 << dtype.bits) - 1)
    )


def lowest(dtype: DType) -> float | int:
    """The value that every other one is at least: -inf for floats."""
    return float("-inf") if dtype.is_float else int_range(dtype)[0]


def highest(dtype: DType) -> float | int:
    """The value that every other one is at most: +inf for floats."""
    return float("inf") if dtype.is_float else int_range(dtype)[1]


def identity(kind: str, dtype: DType) -> float | int:
    """What a reduction over no elements gives."""
    return {"sum": 0, "prod": 1, "min": highest(dtype), "max": lowest(dtype)}[kind]


def canonical(value: float | int | bool, dtype: DType) -> float | int | bool:
    """The Python number that equals `value` rounded to `dtype`: float, int or bool by the type's
    kind.

    Raises GraphError for an integer out of range and for a float that is not whole where an integer
    is due.
    """
    if dtype is DType.BOOL:
        return bool(value)
    if dtype.is_float:
        return _rounded(float(value), dtype)
    whole = int(value) if value == value and abs(value) != float("inf") else None
    low, high = int_range(dtype)
    if whole is None or whole != value or not low <= whole <= high:
        raise GraphError(f"{value!r} is not a value of {dtype.short}")
    return whole


def _rounded(value: float, dtype: DType) -> float:
    if dtype is DType.F64:
        return value
    with np.errstate(over="ignore"):
        return float(np.float64(value).astype(NUMPY[dtype]))
