"""Element types under PyTorch's names, and the rules by which mixed operands meet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes

from hal.core.dtypes import DType
from hal.tile.numeric import NUMPY
from stack.framework.errors import TensorError

float64 = double = DType.F64
float32 = float_ = DType.F32
float16 = half = DType.F16
bfloat16 = DType.BF16
float8_e4m3fn = DType.F8E4M3FN
float8_e5m2 = DType.F8E5M2
int64 = long = DType.I64
int32 = int_ = DType.I32
int16 = short = DType.I16
int8 = DType.I8
uint64 = DType.U64
uint32 = DType.U32
uint16 = DType.U16
uint8 = DType.U8
bool_ = DType.BOOL

dtype = DType

_PYTHONS = {bool: DType.BOOL, int: DType.I64, float: DType.F64}


def of(given: Any) -> Any:
    """The element type that Python's bool, int or float stands for; another value as it is."""
    return _PYTHONS.get(given, given) if type(given) is type else given


def finfo(type: DType = DType.F32) -> Any:
    """The limits of a float type: eps, max, min, tiny, smallest_normal, bits."""
    limits: Any = ml_dtypes.finfo
    return limits(NUMPY[type])


def iinfo(type: DType) -> Any:
    """The limits of an integer type: max, min, bits."""
    limits: Any = ml_dtypes.iinfo
    return limits(NUMPY[type])


NAMES = {d: d.numpy for d in DType}
"""How people know the element types."""


def of_scalar(value: float | int | bool) -> DType:
    """The element type of a tensor made of a Python number."""
    if isinstance(value, bool):
        return DType.BOOL
    return DType.I64 if isinstance(value, int) else DType.F32


def category(dtype: DType) -> int:
    """0 bool, 1 integer, 2 float: a higher one wins over a lower one."""
    return 2 if dtype.is_float else 1 if dtype.is_int else 0


def wider(a: DType, b: DType) -> DType:
    """The element type in which both meet, as in PyTorch. Raises TensorError when there is none."""
    if a is b:
        return a
    if category(a) != category(b):
        return a if category(a) > category(b) else b
    if a.is_float and 8 in (a.bits, b.bits):
        raise TensorError(
            f"{NAMES[a]} and {NAMES[b]} have no common element type; convert one with .to(...)"
        )
    if a.bits == b.bits and a.is_float:
        return DType.F32
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind == "i" else (b, a)
    return signed if signed.bits > unsigned.bits else _above(unsigned, signed)


def _above(unsigned: DType, signed: DType) -> DType:
    if unsigned.bits == 64:
        raise TensorError(
            f"no element type holds both uint64 and {NAMES[signed]}; convert one with .to(...)"
        )
    return {8: DType.I16, 16: DType.I32, 32: DType.I64}[unsigned.bits]


def promote(
    tensors: Iterable[tuple[DType, int]], scalars: Iterable[float | int | bool] = ()
) -> DType:
    """The common element type of operands, given as (dtype, rank), and of Python numbers.

    Tensors with axes decide; 0-d tensors, then Python numbers, only raise the category (bool < int
    < float).
    """
    operands = list(tensors)
    ranked = _join(d for d, rank in operands if rank)
    single = _join(d for d, rank in operands if not rank)
    number = _join(of_scalar(s) for s in scalars)
    result: DType | None = None
    for candidate in (ranked, single, number):
        if candidate and (result is None or category(candidate) > category(result)):
            result = candidate
    assert result is not None, "an operation has at least one operand"
    return result


def _join(dtypes: Iterable[DType]) -> DType | None:
    result: DType | None = None
    for d in dtypes:
        result = d if result is None else wider(result, d)
    return result
