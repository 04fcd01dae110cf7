"""What PyTorch's programs ask of tensors and element types by functions."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from hal.core.dtypes import DType
from stack.framework.dtypes import category, promote, wider
from stack.framework.errors import TensorError
from stack.framework.expr.operand import broadcast_shape
from stack.framework.tensor import PRINTED, Extents, Tensor

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


def clone(input: Tensor, *, memory_format: str | None = None) -> Tensor:
    """The same values as a tensor of their own, in row-major order; gradients flow through it."""
    return input.clone(memory_format=memory_format)


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


def _as_it_is(function: Any = None, **options: Any) -> Any:
    """What it is given: Python runs as it is written."""
    return (lambda given: given) if function is None else function


SCRIPTING: dict[str, Any] = {
    **dict.fromkeys(("script", "script_method", "ignore", "unused", "export"), _as_it_is),
    "trace": lambda function, *inputs, **options: function,
    "is_scripting": lambda: False,
    "is_tracing": lambda: False,
    "Final": Final,
}
"""What PyTorch's programs ask of its compiler of Python, `torch.jit`."""

layout = memory_format = str


def set_num_threads(int: int) -> None:
    """Nothing: a device says itself how many cores it has, and `hal run` gives each rank its
    share."""


def get_num_threads() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0))


_PROFILES: dict[str, dict[str, Any]] = {
    "default": {"precision": 4, "threshold": 1000, "edgeitems": 3},
    "short": {"precision": 2, "threshold": 1000, "edgeitems": 2},
    "full": {"precision": 4, "threshold": sys.maxsize, "edgeitems": 3},
}


def set_printoptions(
    precision: int | None = None,
    threshold: int | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """How tensors are shown from now on: digits behind the point, from how many elements on parts
    are left out and how many stay at each end, characters of a line, and whether small numbers are
    shown without exponents (sci_mode False). `profile` is "default", "short" or "full"."""
    if profile is not None:
        PRINTED.update(_PROFILES[profile])
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems}
    given |= {"max_line_width": linewidth}
    PRINTED.update({k: v for k, v in given.items() if v is not None})
    if sci_mode is not None:
        PRINTED["suppress_small"] = not sci_mode


def unravel_index(indices: Tensor, shape: int | Sequence[int]) -> tuple[Tensor, ...]:
    """The places along each axis of elements with these numbers in row-major order."""
    found = []
    for n in reversed((shape,) if isinstance(shape, int) else tuple(shape)):
        found.append(indices % n)
        indices = indices // n
    return tuple(found[::-1])
