"""Operand values: random ones of a useful size mixed with the awkward ones of each element type."""

import numpy as np

from hal.tile.numeric import NUMPY, bounds

AWKWARD = (0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e30)


def smooth(rng, shape, dtype, low=-2.0, high=2.0):
    """Ordinary numbers in a range."""
    if dtype.is_float:
        return np.asarray(rng.uniform(low, high, shape)).astype(NUMPY[dtype])
    if dtype.is_int:
        return np.asarray(rng.integers(0 if dtype.kind == "u" else -5, 6, shape)).astype(
            NUMPY[dtype]
        )
    return np.asarray(rng.random(shape) < 0.5)


def awkward(rng, shape, dtype):
    """Ordinary numbers, a third of them replaced by special floats or the ends of the range."""
    x = smooth(rng, shape, dtype, -4.0, 4.0)
    if dtype.kind == "b":
        return x
    ends = AWKWARD if dtype.is_float else (*bounds(dtype), dtype.bits, 0, 1, bounds(dtype)[1] // 3)
    with np.errstate(over="ignore"):
        special = rng.choice(np.array(ends, np.float64 if dtype.is_float else object), shape)
        special = np.asarray(special).astype(NUMPY[dtype])
    return np.where(rng.random(shape) < 1 / 3, special, x)
