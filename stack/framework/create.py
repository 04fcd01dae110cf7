"""New tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Any, cast, overload

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node
from hal.tile.size import is_fixed
from stack import ops as g
from stack.framework import dtypes
from stack.framework.devices import placed
from stack.framework.dtypes import of_scalar, promote
from stack.framework.errors import TensorError, where_called
from stack.framework.expr import create
from stack.framework.expr.operand import Number
from stack.framework.expr.public import Public, publish
from stack.framework.faces import expose
from stack.framework.host import host_array
from stack.framework.layout import any_layout
from stack.framework.pairs import (
    ComplexTensor,
    ComplexType,
    complex64,
    complex128,
    complex_tensor,
    holds_complex,
)
from stack.framework.tensor import Extents, Tensor, put
from stack.ops.error import GraphError
from stack.ops.operator import Face


@overload
def tensor(
    data: Any,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor: ...
@overload
def tensor(
    data: Any,
    *,
    dtype: ComplexType,
    device: str | None = None,
    requires_grad: bool = False,
) -> ComplexTensor: ...


@any_layout
def tensor(
    data: Any,
    *,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Any:
    """A tensor with a copy of host data: numbers, nested lists, numpy arrays, or another tensor's
    values. Complex numbers become a `ComplexTensor`."""
    if isinstance(data, Tensor):
        data = data.numpy()
    if isinstance(dtype, ComplexType) or holds_complex(data):
        return complex_tensor(data, dtype, placed(device), requires_grad)
    array, kind = host_array(data, dtypes.of(dtype))
    name = placed(device)
    return Tensor(put(array, kind, name), name, owns=True).requires_grad_(requires_grad)


def new_tensor(
    x: Tensor,
    data: Any,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Host data as a tensor of x's element type and device."""
    kind, place = dtype or x.dtype, device or x.device
    return tensor(data, dtype=kind, device=place, requires_grad=requires_grad)


expose(
    publish(Public(new_tensor, Face("new_tensor", function=False, waits=True, aten="new_tensor")))
)


def new(x: Tensor, *data: Any) -> Tensor:
    """Of x's element type and device, of these sizes, or with a list's or an array's values: what
    old programs call."""
    sizes = data[0] if len(data) == 1 and isinstance(data[0], Extents) else data
    if all(isinstance(n, int) for n in sizes):
        return zeros(*(sizes or (0,)), dtype=x.dtype, device=x.device)
    return tensor(data[0], dtype=x.dtype, device=x.device)


expose(publish(Public(new, Face("new", function=False, waits=True))))


def _complex_of(x: Tensor, kind: ComplexType) -> ComplexTensor:
    real = x.to(kind.part)
    return ComplexTensor(real, zeros_like(real))


def cfloat(x: Tensor) -> Any:
    """The values as complex64, whose imaginary parts are 0."""
    return _complex_of(x, complex64)


def cdouble(x: Tensor) -> Any:
    """The values as complex128, whose imaginary parts are 0."""
    return _complex_of(x, complex128)


for _method in (cfloat, cdouble):
    expose(publish(Public(_method, Face(_method.__name__, function=False, waits=True))))


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
    """A tensor of an expression that depends on no other tensor; its last argument is an element
    type. Numbers of a complex one are a `ComplexTensor`."""
    try:
        *given, kind = args
        if isinstance(kind, ComplexType) and function is g.full:
            shape, value = given[0], complex(given[1])
            parts = [
                made(function, shape, part, kind.part, device=device, requires_grad=requires_grad)
                for part in (value.real, value.imag)
            ]
            return cast("Tensor", ComplexTensor(*parts))
        node = function(*given, dtypes.element_type(kind))
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


@any_layout
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


@any_layout
def zeros(
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    return made(
        g.full,
        _shape(sizes if size is None else (size,)),
        0,
        dtype or DType.F32,
        device=device,
        requires_grad=requires_grad,
    )


@any_layout
def ones(
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    return made(
        g.full,
        _shape(sizes if size is None else (size,)),
        1,
        dtype or DType.F32,
        device=device,
        requires_grad=requires_grad,
    )


empty = zeros


@any_layout
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


@any_layout
def zeros_like(
    x: Tensor,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    return full_like(x, 0, dtype=dtype, device=device, requires_grad=requires_grad)


@any_layout
def ones_like(
    x: Tensor,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    return full_like(x, 1, dtype=dtype, device=device, requires_grad=requires_grad)


empty_like = zeros_like


@any_layout
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


@any_layout
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


@any_layout
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


asarray = as_tensor


def from_dlpack(ext_tensor: Any) -> Tensor:
    """A copy of what lies in the host's memory and says how by DLPack."""
    return tensor(np.from_dlpack(ext_tensor))


@any_layout
def scalar_tensor(
    s: Number, *, dtype: DType | None = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """A number as a 0-d tensor, of float32 unless another type is asked for."""
    return full((), s, dtype=dtype or DType.F32, device=device, requires_grad=requires_grad)


@any_layout
def logspace(
    start: Number,
    end: Number,
    steps: int,
    base: float = 10.0,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """base to the powers of `steps` evenly spaced numbers from start to end."""
    powers = linspace(start, end, steps, dtype=DType.F64, device=device)
    made: Tensor = (powers * math.log(base)).exp().to(dtype or DType.F32)
    return made.requires_grad_() if requires_grad else made


def _triangle(
    row: int, col: int, offset: int, lower: bool, dtype: DType | None, device: str | None
) -> Tensor:
    inside = np.tri(row, col, offset if lower else offset - 1, dtype=bool)
    places = np.stack(np.nonzero(inside if lower else ~inside))
    return tensor(places.astype(np.int64), dtype=dtype, device=device)


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """int64[2, count]: the rows and columns at and below a diagonal."""
    return _triangle(row, col, offset, True, dtype, device)


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """int64[2, count]: the rows and columns at and above a diagonal."""
    return _triangle(row, col, offset, False, dtype, device)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of r elements of a vector, in order, as rows."""
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = list(choose(range(input.shape[0]), r))
    index = np.array(places, np.int64).reshape(len(places), r)
    return input[tensor(index, device=input.device)]


def _window(name: str, weights: Sequence[float], doc: str) -> Callable[..., Tensor]:
    """A sum of cosines of whole periods over a window."""

    def window(
        window_length: int,
        periodic: bool = True,
        *,
        dtype: DType | None = None,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> Tensor:
        n = window_length - (not periodic)
        angle = arange(window_length, dtype=DType.F64, device=device) * (2 * math.pi / max(n, 1))
        total = angle * 0.0 + (weights[0] if window_length > 1 else 1.0)
        for k, weight in enumerate(weights[1:] if window_length > 1 else (), 1):
            total = total + (angle * k).cos() * weight
        made: Tensor = total.to(dtype or DType.F32)
        return made.requires_grad_() if requires_grad else made

    window.__name__ = window.__qualname__ = name
    window.__doc__ = doc
    return window


hann_window = _window("hann_window", (0.5, -0.5), "(1 - cos) / 2 over a period.")
hamming_window = _window("hamming_window", (0.54, -0.46), "0.54 - 0.46 cos over a period.")
blackman_window = _window(
    "blackman_window", (0.42, -0.5, 0.08), "0.42 - 0.5 cos + 0.08 cos of twice the angle."
)


def bartlett_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A triangle from 0 to 1 and back."""
    n = max(window_length - (not periodic), 1)
    at = arange(window_length, dtype=DType.F64, device=device) * (2 / n) - 1
    made: Tensor = (1 - at.abs() if window_length > 1 else at + 2).to(dtype or DType.F32)
    return made.requires_grad_() if requires_grad else made


def kaiser_window(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """i0(beta sqrt(1 - x * x)) / i0(beta) for x from -1 to 1."""
    n = max(window_length - (not periodic), 1)
    x = arange(window_length, dtype=DType.F64, device=device) * (2 / n) - 1
    made: Tensor = ((1 - x * x).clamp(min=0).sqrt() * beta).i0() / float(np.i0(beta))
    made = (made if window_length > 1 else x + 2).to(dtype or DType.F32)
    return made.requires_grad_() if requires_grad else made
