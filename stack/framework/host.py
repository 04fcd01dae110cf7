"""Data of the host as arrays: numbers, nested lists, numpy's arrays."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from hal.tile.numeric import NUMPY, bounds, quiet
from stack.framework import dtypes
from stack.framework.devices import NDArray
from stack.framework.errors import TensorError, where_called

_BY_NUMPY = {v: k for k, v in NUMPY.items()}
_PLAIN = {"b": DType.BOOL, "i": DType.I64, "f": DType.F32}
_BEYOND = 2.0**63


def host_array(data: Any, dtype: DType | None) -> tuple[NDArray, DType]:
    """Host data as an array of the asked element type, or of the one that PyTorch would choose.

    Numpy's arrays are converted as numpy does it. Raises TensorError for other data with a number
    that the element type does not have, and for what are no real numbers.
    """
    is_numpy = isinstance(data, np.ndarray | np.generic)
    try:
        array = np.asarray(data)
        if not is_numpy:
            _check_numbers(array, data, dtype)
        if dtype is not None:
            with quiet():
                return array.astype(NUMPY[dtype]), dtype
    except (ValueError, TypeError, OverflowError) as error:
        raise TensorError(
            f"a tensor cannot be made of this {type(data).__name__}: {error}\n  "
            f"called at {where_called()}"
        ) from error
    dtype = _BY_NUMPY.get(array.dtype) if is_numpy else _PLAIN.get(array.dtype.kind)
    if dtype is None:
        raise TensorError(
            f"a tensor cannot hold {type(data).__name__} data of numpy's {array.dtype}\n  "
            f"called at {where_called()}"
        )
    with quiet():
        return array.astype(NUMPY[dtype]), dtype


def _check_numbers(array: NDArray, data: Any, dtype: DType | None) -> None:
    """Raise ValueError where an integer type is asked, or follows, and a number does not fit into
    it. As in PyTorch an unsigned type takes the negatives of its values, too, if they are whole."""
    kind = array.dtype.kind
    if kind not in "biufO":
        raise ValueError(f"numpy's {array.dtype} is no type of real numbers")
    if kind == "O" and (wrong := [x for x in array.flat if not isinstance(x, Real)]):
        raise ValueError(f"{wrong[0]!r} is not a number")
    if not array.size:
        return
    ends = [x.item() if isinstance(x, np.generic) else x for x in (array.min(), array.max())]
    if dtype is None and (kind in "uO" or (kind == "f" and _only_integers(ends, data))):
        dtype = DType.I64
    if dtype is None or not dtype.is_int:
        return
    lowest, highest = bounds(dtype)
    if dtype.kind == "u" and kind != "f":
        lowest = -highest
    for number in ends:  # a NaN is both
        if not lowest <= number <= highest:
            name = dtypes.NAMES[dtype]
            raise ValueError(f"{number} cannot be converted to {name} without overflow")


def _only_integers(ends: list[float], data: Any) -> bool:
    """Whether numpy has made floats of integers, because some are beyond 64 bits."""
    if not max(-ends[0], ends[1]) >= _BEYOND:
        return False
    return all(isinstance(x, Integral) for x in np.asarray(data, dtype=object).flat)
