"""Runs kernels compiled and interpreted, and compares every buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from hal.tile.interpret import interpret
from hal.tile.kernel import Kernel
from hal.tile.numeric import DTYPES
from tests.compiler.llvm.machine import info, run

PRECISION = {d: d.mantissa + 1 for d in DType if d.is_float}
"""Bits of the significand."""


def assert_close(got: np.ndarray, want: np.ndarray, ulp: float, scale: Any = None) -> None:
    """Within `ulp` units in the last place of the wanted value, or of `scale` where that is larger;
    exact for integers and for 0 ulp but for the sign of zero and the payload of NaN."""
    dtype = DTYPES[want.dtype]
    if not dtype.is_float or ulp == 0:
        np.testing.assert_array_equal(
            got.astype(np.float64 if dtype.is_float else got.dtype),
            want.astype(np.float64 if dtype.is_float else want.dtype),
        )
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    np.testing.assert_array_equal(a[~finite], b[~finite])
    size = np.abs(b) if scale is None else np.maximum(np.abs(b), scale)
    smallest = 2.0 ** max(1 - dtype.bias, -126)
    unit = np.maximum(size, smallest) * 2.0 ** (1 - PRECISION[dtype])
    assert np.all((np.abs(a - b) <= ulp * unit)[finite]), (a - b)[finite].max()


def agree(
    kernel: Kernel,
    grid: tuple[int, ...],
    buffers: Mapping[str, np.ndarray],
    scalars: Mapping[str, Any] | None = None,
    *,
    ulp: float = 0,
    scale: Any = None,
    vector_nbytes: int = 32,
) -> dict[str, np.ndarray]:
    """Compare, where there are halves with masks for them and without; give the buffers as the
    interpreter left them."""
    wanted = {name: a.copy() for name, a in buffers.items()}
    interpret(kernel, grid, wanted, scalars or {})
    for masked_nbytes in (4, 2) if any(a.itemsize < 4 for a in buffers.values()) else (4,):
        got = {name: a.copy() for name, a in buffers.items()}
        run(kernel, grid, got, scalars, info(vector_nbytes, masked_nbytes))
        for name in buffers:
            assert_close(got[name], wanted[name], ulp, scale)
    return wanted
