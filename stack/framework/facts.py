"""What PyTorch's programs ask of tensors and element types by functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hal.core.dtypes import DType
from stack.framework.dtypes import category, promote, wider
from stack.framework.errors import TensorError
from stack.framework.expr.operand import broadcast_shape
from stack.framework.tensor import Extents, Tensor

e, pi, inf, nan, newaxis = math.e, math.pi, math.inf, math.nan, None


def is_tensor(obj: Any) -> bool:
    return isinstance(obj, Tensor)


def is_floating_point(input: Tensor) -> bool:
    """Whether the element type is a float."""
    return input.is_floating_point()


def is_nonzero(input: Tensor) -> bool:
    """Whether the single element is not 0."""
    return input.is_nonzero()


def is_signed(input: Tensor) -> bool:
    """Whether the element type has negative numbers."""
    return input.is_signed()


def is_same_size(input: Tensor, other: Tensor) -> bool:
    return input.shape == other.shape


def numel(input: Tensor) -> int:
    """The number of elements."""
    return input.numel()


def clone(input: Tensor) -> Tensor:
    """The same values as a tensor of their own; gradients flow through it."""
    return input.clone()


def detach(input: Tensor) -> Tensor:
    """A window on the same memory, through which no gradient flows."""
    return input.detach()


def get_default_dtype() -> DType:
    """float32, which tensors of Python's floats are of."""
    return DType.F32


def set_default_dtype(d: DType) -> None:
    """Nothing for float32. Raises TensorError for others: give dtype where a tensor is made, or
    move a module with `.to(dtype)`."""
    if d is not DType.F32:
        raise TensorError(
            f"tensors of Python's floats are float32, not {d.short}; give dtype= where they are "
            "made, or move a module with .to(dtype)"
        )


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Nothing: equal programs on equal values give equal results on a device, always."""


def are_deterministic_algorithms_enabled() -> bool:
    """True: see `use_deterministic_algorithms`."""
    return True


def set_float32_matmul_precision(precision: str) -> None:
    """Nothing: "high" and "medium" allow products of float32 to be less exact than they are."""
    if precision not in ("highest", "high", "medium"):
        raise ValueError(f'the precision is "highest", "high" or "medium", not {precision!r}')


def get_float32_matmul_precision() -> str:
    """ "highest"."""
    return "highest"


def promote_types(type1: DType, type2: DType) -> DType:
    """The element type in which two tensors meet."""
    return wider(type1, type2)


def result_type(tensor1: Tensor | float, tensor2: Tensor | float) -> DType:
    """The element type of operations on both, of which one may be a number."""
    both = (tensor1, tensor2)
    tensors = [(x.dtype, x.ndim) for x in both if isinstance(x, Tensor)]
    return promote(tensors, [x for x in both if not isinstance(x, Tensor)])


def can_cast(from_: DType, to: DType) -> bool:
    """Whether an operation in place may give values of one type to a tensor of another one."""
    lost_sign = from_.kind in "if" and to.kind == "u" and category(from_) == category(to)
    return category(from_) <= category(to) and not lost_sign


def broadcast_shapes(*shapes: int | Sequence[int]) -> Extents:
    """The common shape by the rules of broadcasting. Raises TensorError."""
    return Extents(broadcast_shape((s,) if isinstance(s, int) else tuple(s) for s in shapes))


def compile(model: Any = None, **options: Any) -> Any:
    """What it is given, or a decorator that gives that: values are computed by compiled plans
    anyway; `jit` captures a whole step. The options choose how PyTorch compiles and change
    nothing."""
    return (lambda function: function) if model is None else model
