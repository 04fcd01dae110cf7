"""PyTorch's classes of tensors by element type, for annotations, `isinstance` and old programs."""

from __future__ import annotations

from typing import Any

from hal.core.dtypes import DType
from stack.framework.create import empty, tensor
from stack.framework.tensor import Extents, Tensor


class _OfType(type):
    """The type of classes whose instances are the tensors of one element type."""

    dtype: DType

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Tensor) and value.dtype is cls.dtype

    def __call__(cls, *data: Any) -> Any:
        """A tensor of host data, or of these sizes, whose elements are to be written."""
        if all(isinstance(n, int) for n in data):
            return empty(*data or (0,), dtype=cls.dtype)
        (values,) = data
        if isinstance(values, Extents):
            return empty(values, dtype=cls.dtype)
        if isinstance(values, Tensor) and values.dtype is cls.dtype:
            return values.detach()
        return tensor(values, dtype=cls.dtype)


def _class(name: str, dtype: DType) -> Any:
    return _OfType(name, (), {"dtype": dtype, "__module__": __name__, "__doc__": f"{dtype.numpy}."})


DoubleTensor = _class("DoubleTensor", DType.F64)
FloatTensor = _class("FloatTensor", DType.F32)
HalfTensor = _class("HalfTensor", DType.F16)
BFloat16Tensor = _class("BFloat16Tensor", DType.BF16)
LongTensor = _class("LongTensor", DType.I64)
IntTensor = _class("IntTensor", DType.I32)
ShortTensor = _class("ShortTensor", DType.I16)
CharTensor = _class("CharTensor", DType.I8)
ByteTensor = _class("ByteTensor", DType.U8)
BoolTensor = _class("BoolTensor", DType.BOOL)

Tensor.of_data = FloatTensor
