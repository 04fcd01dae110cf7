"""The contract's operators, as the libraries of vendors have them."""

from __future__ import annotations

from collections.abc import Iterable

from hal.core.dtypes import DType
from hal.core.values import Operator, Param, ParamKind


def matmuls(dtypes: Iterable[DType], row_nbytes: int) -> tuple[Operator, ...]:
    """A product for each element type, whose rows are multiples of so many bytes."""
    return tuple(_matmul(dtype, row_nbytes // dtype.nbytes) for dtype in dtypes)


def _matmul(dtype: DType, whole: int) -> Operator:
    uses = (("a", False), ("b", False), ("c", True))
    params = (Param(n, ParamKind.BUFFER, dtype, not writes, writes) for n, writes in uses)
    return Operator("matmul", tuple(params), {"m": 1, "n": whole, "k": whole})
