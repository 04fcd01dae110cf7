"""Operators that wait for values, because these decide how many elements their results have."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any, overload

from hal.core.dtypes import DType
from stack.framework.create import arange
from stack.framework.errors import TensorError, where_called
from stack.framework.expr import compact, create, elementwise, index, movement
from stack.framework.expr.public import METHODS, operator
from stack.framework.faces import expose
from stack.framework.tensor import Several, Tensor, apply, call, show


@operator(waits=True, aten="nonzero", onnx="NonZero")
def nonzero(x: Tensor, as_tuple: bool = False) -> Any:
    """int64[count, axes]: where elements are not 0; as a tuple an index tensor for each axis.
    Waits for their number."""
    mask = x != 0 if x.dtype is not DType.BOOL else x
    places = tuple(call(compact.places, mask, counted(mask)))
    return places if as_tuple else apply(compact.columns, places, not x.ndim)


@overload
def where(condition: Tensor) -> tuple[Tensor, ...]: ...
@overload
def where(condition: Tensor, input: Tensor | float, other: Tensor | float) -> Tensor: ...
@operator(waits=True, method=False, aten="where", onnx="Where")
def where(
    condition: Tensor, input: Tensor | float | None = None, other: Tensor | float | None = None
) -> Any:
    """input where the condition holds, else other. Of a condition alone nonzero(as_tuple=True),
    which waits for the number of places."""
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    if input is None or other is None:
        raise TensorError(f"where: takes both values or none\n  called at {where_called()}")
    if isinstance(input, Several) or isinstance(other, Several):
        return Several.join("where", (condition, input, other))
    return call(elementwise.where, condition, input, other)


@operator(waits=True, aten="argwhere")
def argwhere(x: Tensor) -> Tensor:
    """nonzero."""
    found: Tensor = nonzero(x)
    return found


def counted(mask: Tensor) -> int:
    """How many elements hold; waits for them."""
    return int(mask.sum().item()) if mask.numel() else 0


@operator(waits=True, aten="masked_select")
def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """x's elements where the mask holds, which broadcasts with it, in a row. Waits for their
    number."""
    wide, hit = call(compact.together, x, mask)
    return apply(compact.selected, wide, hit, counted(hit))


@operator(waits=True, aten="_unique2", onnx="Unique")
def unique(
    x: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The different elements in order, the place among them of each element, and how often each is
    there; with dim the different slices along it, in the order of their elements. Waits for their
    number."""
    if dim is not None:
        rows = _slices(x, dim)
        order = arange(len(rows), device=x.device)
        for column in rows.unbind(1)[::-1]:
            order = order[column[order].argsort(stable=True)]
        return _slice_runs(rows[order], order, x, dim, return_inverse, return_counts)
    flat = x.detach().flatten()
    order = flat.argsort()
    return _runs(flat[order], order, x, return_inverse, return_counts)


@operator(waits=True, aten="unique_consecutive")
def unique_consecutive(
    x: Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The elements, or slices along dim, that differ from the one before, with places and numbers
    as in unique."""
    if dim is not None:
        return _slice_runs(_slices(x, dim), None, x, dim, return_inverse, return_counts)
    return _runs(x.detach().flatten(), None, x, return_inverse, return_counts)


def _runs(
    row: Tensor, order: Tensor | None, x: Tensor, return_inverse: bool, return_counts: bool
) -> Any:
    """The first element of each run of equal ones."""
    first = apply(compact.first_of_runs, row)
    count = counted(first)
    values = apply(compact.selected, row, first, count)
    if not (return_inverse or return_counts):
        return values
    inverse = apply(compact.numbers, first, order).reshape(x.shape) if return_inverse else None
    return _told(values, inverse, first, count, return_counts)


def _slices(x: Tensor, dim: int) -> Tensor:
    """The slices along an axis as rows."""
    rows = x.detach().movedim(dim, 0)
    if not x.numel() and len(rows):
        raise TensorError(
            f"unique: slices of {list(x.shape)} along dim {dim} have no elements to tell them "
            f"apart\n  called at {where_called()}"
        )
    return rows.reshape(len(rows), -1) if len(rows) else rows.reshape(0, 1)


def _slice_runs(
    rows: Tensor,
    order: Tensor | None,
    x: Tensor,
    dim: int,
    return_inverse: bool,
    return_counts: bool,
) -> Any:
    """The first slice of each run of equal rows."""
    first = rows.new_ones(len(rows), dtype=DType.BOOL)
    if len(rows) > 1:
        first[1:] = (rows[1:] != rows[:-1]).any(1)
    count = counted(first)
    shape = (count, *x.detach().movedim(dim, 0).shape[1:])
    values = rows[first.nonzero().squeeze(1)].reshape(shape).movedim(0, dim)
    if not (return_inverse or return_counts):
        return values
    inverse = apply(compact.numbers, first, order) if return_inverse else None
    return _told(values, inverse, first, count, return_counts)


def _told(
    values: Tensor, inverse: Tensor | None, first: Tensor, count: int, return_counts: bool
) -> Any:
    counts = apply(compact.lengths, first, count) if return_counts else None
    return tuple(v for v in (values, inverse, counts) if v is not None)


@operator(waits=True, aten="bincount")
def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each of 0, 1, ... is in x, or the sums of their weights. Waits for the greatest."""
    size = builtins.max(minlength, int(x.max().item()) + 1 if x.numel() else 0)
    return apply(compact.tallied, x, weights, size)


@operator(waits=True, aten="allclose")
def allclose(
    x: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether isclose holds for all elements. Waits for them."""
    return bool(x.isclose(other, rtol, atol, equal_nan).all().item())


@operator(waits=True, method=False, layer=True, aten="one_hot", onnx="OneHot")
def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """int64: 1 at the position that each entry names along a new last axis, 0 elsewhere. Waits for
    the greatest where num_classes is -1."""
    if num_classes < 0:
        num_classes = int(x.max().item()) + 1
    return apply(create.one_hot, x, num_classes)


@operator(waits=True, aten="repeat_interleave")
def repeat_interleave(
    x: Tensor, repeats: int | Tensor, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """x with each slice of an axis so often in a row. Waits for the sum of a tensor of numbers,
    which output_size says beforehand."""
    if isinstance(repeats, Tensor) and output_size is None:
        size = x.numel() if dim is None else x.size(dim)
        output_size = int(repeats.sum().item()) * (size if repeats.numel() == 1 else 1)
    return apply(index.repeat_interleave, x, repeats, dim, output_size=output_size)


@operator(waits=True, aten="tensor_split")
def tensor_split(
    x: Tensor, indices_or_sections: int | Sequence[int] | Tensor, dim: int = 0
) -> tuple[Tensor, ...]:
    """x in so many pieces along an axis, the first ones longer by one, or cut at these places.
    Waits for those of a tensor."""
    given = indices_or_sections
    places = given.tolist() if isinstance(given, Tensor) else given
    pieces: tuple[Tensor, ...] = show(movement.tensor_split, x, places, dim)
    return pieces


for _public in [p for p in METHODS.values() if p.face.waits]:
    expose(_public)
