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


def element_type(given: Any) -> DType:
    """The element type asked for. Raises TensorError for what is none, such as a name."""
    found = of(given)
    if isinstance(found, DType):
        return found
    raise TensorError(f"an element type is one of this package's, such as float32, not {given!r}")


class finfo:
    """The limits of a float type, as Python's numbers."""

    def __init__(self, type: DType = DType.F32) -> None:
        limits_of: Any = ml_dtypes.finfo
        limits = limits_of(NUMPY[type])
        self.bits, self.dtype = int(limits.bits), type.numpy
        self.eps, self.max, self.min = float(limits.eps), float(limits.max), float(limits.min)
        self.tiny = self.smallest_normal = float(limits.smallest_normal)
        self.resolution = float(limits.resolution)

    def __repr__(self) -> str:
        return f"finfo({', '.join(f'{name}={value}' for name, value in vars(self).items())})"


class iinfo:
    """The limits of an integer type."""

    def __init__(self, type: DType) -> None:
        limits_of: Any = ml_dtypes.iinfo
        limits = limits_of(NUMPY[type])
        self.bits, self.dtype = int(limits.bits), type.numpy
        self.max, self.min = int(limits.max), int(limits.min)

    def __repr__(self) -> str:
        return f"iinfo({', '.join(f'{name}={value}' for name, value in vars(self).items())})"


NAMES = {d: d.numpy for d in DType}
"""How people know the element types."""


TENSORS = {
    kind: f"torch.{name}Tensor"
    for kind, name in {
        **{d: d.numpy.capitalize() for d in DType},
        float64: "Double",
        float32: "Float",
        float16: "Half",
        bfloat16: "BFloat16",
        int64: "Long",
        int32: "Int",
        int16: "Short",
        int8: "Char",
        uint8: "Byte",
    }.items()
}
"""What old programs call tensors of an element type."""


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
    if signed.bits > unsigned.bits:
        return signed
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


def is_plain(value: object, dtype: DType) -> bool:
    """Whether a Python number is of an element type's own kind, so that it is rounded and no more:
    an int is a float, but neither a bool, nor the other way round."""
    if dtype is DType.BOOL:
        return type(value) is bool
    return type(value) is int or (dtype.is_float and type(value) is float)
