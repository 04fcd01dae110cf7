"""Whether two results are the same but for roundings."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hal.core.dtypes import DType

ROUNDINGS, OF_NARROW = 1024, 4
"""How many roundings of its largest number a result may be off: sums in another order differ by
more of them than the one at the end of a sum in a wider type."""


def difference(found: npt.NDArray[Any], expected: npt.NDArray[Any], dtype: DType) -> str:
    """How `found` differs from `expected`, "" where only by roundings; other numbers than floats
    must be equal."""
    if not dtype.is_float:
        wrong = int(np.count_nonzero(found != expected))
        return f"{wrong} of {found.size} {dtype.short} elements differ" if wrong else ""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return f"infinities or NaN at other places than expected in {dtype.short} elements"
    finite = np.isfinite(b)
    scale = float(np.abs(b[finite]).max(initial=0.0))
    error = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    roundings = OF_NARROW if dtype.is_narrow else ROUNDINGS
    if error <= roundings * 2.0**-dtype.mantissa * scale:
        return ""
    return f"{dtype.short} elements are up to {error:.3g} off, where the largest is {scale:.3g}"
