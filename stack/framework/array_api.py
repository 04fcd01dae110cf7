"""The array API standard 2024.12: what `__array_namespace__` gives. Names that PyTorch has, too,
are those of the framework; others are here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from hal.core.dtypes import DType
from stack.framework import counted, create, dtypes, facts, functions, pairs
from stack.framework import fft as fft
from stack.framework import linalg as linalg
from stack.framework.errors import absent
from stack.framework.facts import newaxis as newaxis
from stack.framework.tensor import Tensor

_PLACES = (functions, create, facts, dtypes, pairs)
_OWN = {
    "astype": lambda x, dtype, /, *, copy=True, device=None: x.to(dtype, copy=copy),
    "bitwise_invert": lambda x, /: x.bitwise_not(),
    "bitwise_right_shift": lambda x, y, /: x >> y,
    "bitwise_left_shift": lambda x, y, /: x << y,
    "bool": dtypes.bool_,
    "broadcast_arrays": lambda *arrays: functions.broadcast_tensors(*arrays),
    "complex128": pairs.complex128,
    "complex64": pairs.complex64,
    "cumulative_prod": lambda x, /, **how: _cumulative("prod", x, **how),
    "cumulative_sum": lambda x, /, **how: _cumulative("sum", x, **how),
    "equal": lambda x, y, /: x == y,
    "expand_dims": lambda x, /, *, axis=0: x.unsqueeze(axis),
    "matrix_transpose": lambda x, /: x.mT,
    "permute_dims": lambda x, /, axes: x.permute(axes),
    "pow": lambda x, y, /: x**y,
    "repeat": lambda x, repeats, /, *, axis=None: counted.repeat_interleave(x, repeats, axis),
    "take": lambda x, indices, /, *, axis=0: x.index_select(axis, indices),
    "take_along_axis": lambda x, indices, /, *, axis=-1: x.take_along_dim(indices, axis),
    "unstack": lambda x, /, *, axis=0: x.unbind(axis),
    "vecdot": lambda x, y, /, *, axis=-1: linalg.vecdot(x, y, dim=axis),
}


def _cumulative(
    kind: str, x: Tensor, axis: int = 0, dtype: DType | None = None, include_initial: bool = False
) -> Tensor:
    x = x if dtype is None else x.to(dtype)
    found: Tensor = x.cumsum(axis) if kind == "sum" else x.cumprod(axis)
    if not include_initial:
        return found
    first = found.narrow(axis, 0, 1) * 0 + (kind == "prod")
    joined: Tensor = functions.cat([first, found], axis)
    return joined


class UniqueAll(NamedTuple):
    """What `unique_all` finds."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What `unique_counts` finds."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What `unique_inverse` finds."""

    values: Tensor
    inverse_indices: Tensor


def unique_values(x: Tensor, /) -> Tensor:
    """The different elements, in order."""
    found: Tensor = counted.unique(x)
    return found


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """The different elements, and how often each is there."""
    return UniqueCounts(*counted.unique(x, return_counts=True))


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """The different elements, and the place among them of each element."""
    return UniqueInverse(*counted.unique(x, return_inverse=True))


def unique_all(x: Tensor, /) -> UniqueAll:
    """The different elements, where each is first, the place among them of each element, and how
    often each is there."""
    values, inverse, counts = counted.unique(x, return_inverse=True, return_counts=True)
    order = inverse.flatten().argsort(stable=True)
    first = order.index_select(0, counts.cumsum(0) - counts)
    return UniqueAll(values, first, inverse, counts)


_KINDS = {
    "bool": lambda d: d is DType.BOOL,
    "signed integer": lambda d: isinstance(d, DType) and d.kind == "i",
    "unsigned integer": lambda d: isinstance(d, DType) and d.kind == "u",
    "integral": lambda d: isinstance(d, DType) and d.is_int,
    "real floating": lambda d: isinstance(d, DType) and d.is_float,
    "complex floating": lambda d: isinstance(d, pairs.ComplexType),
    "numeric": lambda d: d is not DType.BOOL,
}


def isdtype(dtype: Any, kind: Any, /) -> bool:
    """Whether an element type is one, or of a kind such as "integral", or of one of several."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    return bool(_KINDS[kind](dtype)) if isinstance(kind, str) else dtype is kind


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _OWN:
            return _OWN[name]
        for place in _PLACES:
            if hasattr(place, name):
                return getattr(place, name)
        raise absent("array_api", name, [*_OWN, *functions.__all__])


Tensor.namespace = sys.modules[__name__]
