"""Element types as numpy knows them, and Python numbers as values of an element type."""

from __future__ import annotations

from numbers import Real
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from hal.core.dtypes import DType
from hal.tile.numeric import NUMPY, bounds, constant, quiet
from hal.tile.size import is_symbolic, terms_of
from stack.ops.error import GraphError

__all__ = ["NUMPY", "canonical", "highest", "identity", "lowest"]


def lowest(dtype: DType) -> float | int:
    """The value that every other one is at least: -inf for floats."""
    return float("-inf") if dtype.is_float else bounds(dtype)[0]


def highest(dtype: DType) -> float | int:
    """The value that every other one is at most: +inf for floats."""
    return float("inf") if dtype.is_float else bounds(dtype)[1]


def identity(kind: str, dtype: DType) -> float | int:
    """What a reduction over no elements gives."""
    return {"sum": 0, "prod": 1, "min": highest(dtype), "max": lowest(dtype)}[kind]


_SINGLE = Struct("f")
_LARGEST = DType.F32.largest


def element(value: Any, dtype: DType) -> npt.NDArray[Any] | None:
    """A Python number as an array without axes; None for what `canonical` refuses."""
    try:
        return np.asarray(canonical(value, dtype), NUMPY[dtype])
    except GraphError:
        return None


def canonical(value: float | int | bool, dtype: DType) -> float | int | bool:
    """The Python number that equals `value` rounded to `dtype`: float, int or bool by its kind.

    Raises GraphError for an integer out of range, for a float that is not whole where an integer is
    due, and for what is no real number.
    """
    if type(value) is float and dtype is DType.F32 and abs(value) <= _LARGEST:
        single: float = _SINGLE.unpack(_SINGLE.pack(value))[0]  # as below, in less time
        return single
    given: object = value  # whatever a user wrote beside a tensor
    if is_symbolic(given) and (dtype.is_float or (dtype.is_int and terms_of(given) is not None)):
        return value  # rounded when it is known
    if not isinstance(given, Real):
        raise GraphError(f"{value!r} is not a number")
    if dtype is DType.BOOL:
        return bool(value)
    if dtype.is_float:
        try:
            double = float(value)
        except OverflowError as error:
            raise GraphError(f"{value!r} is not a value of {dtype.short}: {error}") from None
        if dtype is DType.F64:
            return double
        with quiet():
            return float(constant(double, dtype))
    whole = int(value) if value == value and abs(value) != float("inf") else None
    low, high = bounds(dtype)
    if whole is None or whole != value or not low <= whole <= high:
        raise GraphError(f"{value!r} is not a value of {dtype.short}")
    return whole
