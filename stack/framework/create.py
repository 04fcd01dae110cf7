"""New tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Any

from hal.core.dtypes import DType
from hal.tile.node import Node
from hal.tile.size import is_fixed
from stack import ops as g
from stack.framework.devices import placed
from stack.framework.dtypes import of_scalar, promote
from stack.framework.errors import TensorError, where_called
from stack.framework.expr import create
from stack.framework.expr.operand import Number
from stack.framework.host import host_array
from stack.framework.tensor import Tensor, put
from stack.ops.error import GraphError


def tensor(
    data: Any,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor with a copy of host data: numbers, nested lists, numpy arrays, or another tensor's
    values."""
    if isinstance(data, Tensor):
        data = data.numpy()
    array, kind = host_array(data, dtype)
    name = placed(device)
    return Tensor(put(array, kind, name), name, owns=True).requires_grad_(requires_grad)


def from_numpy(array: Any) -> Tensor:
    """A tensor with a copy of a numpy array, of its element type."""
    return tensor(array)


def as_tensor(data: Any, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """The tensor itself (converted where asked), or a new one from host data."""
    if not isinstance(data, Tensor):
        return tensor(data, dtype=dtype, device=device)
    moved = data if device is None else data.to(device)
    return moved if dtype is None else moved.to(dtype)


def made(
    function: Callable[..., Node], *args: Any, device: str | None, requires_grad: bool = False
) -> Tensor:
    """A tensor of an expression that depends on no other tensor."""
    try:
        node = function(*args)
    except (GraphError, TensorError) as error:
        raise TensorError(f"{function.__name__}: {error}\n  called at {where_called()}") from None
    result = Tensor(node, placed(device))
    return result.requires_grad_() if requires_grad else result


def _shape(sizes: tuple[int | Sequence[int], ...]) -> tuple[int, ...]:
    """Sizes that are given one by one or as one sequence. Raises TensorError."""
    first = sizes[0] if len(sizes) == 1 else sizes
    given: Iterable[Any] = first if isinstance(first, Iterable) else sizes
    try:
        return tuple([index(n) if is_fixed(n) else n for n in given])
    except TypeError:
        raise TensorError(
            f"sizes are integers, one by one or as one sequence: got {sizes}\n"
            f"  called at {where_called()}"
        ) from None


def full(
    size: Sequence[int],
    fill_value: Number,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor with one number everywhere."""
    kind = dtype or of_scalar(fill_value)
    return made(g.full, tuple(size), fill_value, kind, device=device, requires_grad=requires_grad)


def zeros(
    *size: int | Sequence[int],
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    return made(
        g.full, _shape(size), 0, dtype or DType.F32, device=device, requires_grad=requires_grad
    )


def ones(
    *size: int | Sequence[int],
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    return made(
        g.full, _shape(size), 1, dtype or DType.F32, device=device, requires_grad=requires_grad
    )


empty = zeros


def full_like(
    x: Tensor,
    fill_value: Number,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of x's shape, device and element type with one number everywhere."""
    kind, place = dtype or x.dtype, device or x.device
    return full(x.shape, fill_value, dtype=kind, device=place, requires_grad=requires_grad)


def zeros_like(
    x: Tensor,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    return full_like(x, 0, dtype=dtype, device=device, requires_grad=requires_grad)


def ones_like(
    x: Tensor,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    return full_like(x, 1, dtype=dtype, device=device, requires_grad=requires_grad)


empty_like = zeros_like


def arange(
    start: Number,
    end: Number | None = None,
    step: Number = 1,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """start (0 when only the end is given), start + step, ... below end."""
    first, last = (0, start) if end is None else (start, end)
    kind = dtype or promote([], [first, last, step])
    return made(create.arange, first, last, step, kind, device=device, requires_grad=requires_grad)


def linspace(
    start: Number,
    end: Number,
    steps: int,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """`steps` evenly spaced numbers from start to end, both included."""
    given = float(start), float(end), steps, dtype or DType.F32
    return made(create.linspace, *given, device=device, requires_grad=requires_grad)


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """1 on the diagonal of n rows and m (or n) columns, 0 elsewhere."""
    sizes = n, n if m is None else m
    return made(create.eye, *sizes, dtype or DType.F32, device=device, requires_grad=requires_grad)
