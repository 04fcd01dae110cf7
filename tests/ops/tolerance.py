"""How near two results must be: the one table of tolerances for every operation."""

import numpy as np

from hal.core.dtypes import DType
from hal.tile.numeric import NUMPY

TOLERANCE = {DType.F64: 1e-12, DType.F32: 1e-5, DType.F16: 2e-3, DType.BF16: 2e-2}
TOLERANCE |= {DType.F8E4M3FN: 0.13, DType.F8E5M2: 0.26}
"""Relative to the greater of 1 and the expected value; everything else is exact."""


def assert_close(actual, expected, dtype):
    """Equal type and shape, and values equal within the type's tolerance; NaN equals NaN."""
    assert actual.dtype == NUMPY[dtype]
    assert actual.shape == expected.shape
    if dtype not in TOLERANCE:
        np.testing.assert_array_equal(actual, expected)
        return
    near = TOLERANCE[dtype]
    np.testing.assert_allclose(
        actual.astype(np.float64), expected.astype(np.float64), rtol=near, atol=near
    )
