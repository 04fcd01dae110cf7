"""Operators whose results have as many elements as values decide: the number is computed and waited
for, then they go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.bridge.torch.kernels import NAME, call, call_into, new_tensor
from stack.bridge.torch.rows import ROWS
from stack.bridge.torch.tape import Row
from stack.framework.expr import compact
from stack.framework.expr import elementwise as e


def nonzero(x: Tensor) -> Tensor:
    found = int(call(ROWS["count_nonzero"], (x,), {})[0].item()) if x.numel() else 0
    if not found:
        return new_tensor(x.device.index, (0, x.dim()), torch.int64)[0]
    return call(ROWS["nonzero"], (x, found), {})[0]


def _static(x: Node, size: int, fill: int) -> Node:
    mask = x if x.dtype is DType.BOOL else e.ne(x, 0)
    found = compact.columns(compact.places(mask, size), not x.shape)
    count = g.reshape(
        g.reduce("sum", g.cast(g.reshape(mask, (x.type.size,)), DType.I64), 0), (1, 1)
    )
    return e.where(e.lt(g.reshape(g.arange(size), (size, 1)), count), found, fill)


_STATIC = Row("nonzero_static", _static)


def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    if not x.numel() or not x.dim():
        return torch.full((size, x.dim()), fill_value, dtype=torch.int64, device=x.device)
    return call(_STATIC, (x, size, fill_value), {})[0]


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    wide, hit = torch.broadcast_tensors(x, mask)
    places = nonzero(hit.reshape(-1)).view(-1)
    found: Tensor = torch.ops.aten.index.Tensor(wide.reshape(-1), [places])
    return found


def index(x: Tensor, places: Sequence[Tensor | None]) -> Tensor:
    return call(ROWS["index.Tensor"], (x, _places(x, places)), {})[0]


def _places(x: Tensor, given: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Masks as places."""
    found: list[Tensor | None] = []
    for p in given:
        if p is not None and p.dtype in (torch.bool, torch.uint8):
            shown = x.shape[len(found) : len(found) + p.dim()]
            if p.shape != shown:
                raise IndexError(
                    f"The shape of the mask {list(p.shape)} at index {len(found)} does not match "
                    f"the shape of the indexed tensor {list(x.shape)} at index {len(found)}"
                )
            found += list(nonzero(_here(p, x)).unbind(1))
        else:
            found.append(None if p is None else _here(p, x))
    _check_together(found)
    return found


def _check_together(places: Sequence[Tensor | None]) -> None:
    """Refuse indices whose shapes do not meet, as torch does."""
    shapes = [tuple(p.shape) for p in places if p is not None]
    if len(set(shapes)) > 1:
        try:
            torch.broadcast_shapes(*shapes)
        except RuntimeError as error:
            shown = ", ".join(str(list(s)) for s in shapes)
            raise IndexError(
                "shape mismatch: indexing tensors could not be broadcast together with shapes "
                f"{shown}"
            ) from error


def _here(p: Tensor, x: Tensor) -> Tensor:
    """Indices may be on the CPU."""
    return p if p.device.type == NAME else p.to(x.device)


def index_put(x: Tensor, places: Any, values: Tensor, accumulate: bool = False,
              unsafe: bool = False) -> Tensor:  # fmt: skip
    first = places[0] if len(places) == 1 else None
    one = values.numel() == 1 and not accumulate
    is_mask = first is not None and first.dtype in (torch.bool, torch.uint8)
    if one and first is not None and is_mask and first.shape == x.shape[: first.dim()]:
        mask = _here(first, x)
        mask = mask.view(*mask.shape, *[1] * (x.dim() - mask.dim()))
        call_into(ROWS["masked_fill.Tensor"], [x], (x, mask, values.view(())), {})
        return x
    found = _places(x, places)
    if values.device.type == "cpu" and not values.dim():
        values = values.to(x.device)
    call_into(ROWS["index_put"], [x], (x, found, values, accumulate), {})
    return x


# Different elements

_FIRST = Row("first_of_runs", compact.first_of_runs)
_SELECTED = Row("selected", lambda x, mask, count: compact.selected(x, mask, count))
_NUMBERS = Row("numbers", compact.numbers)
_LENGTHS = Row("lengths", compact.lengths)


def _none(x: Tensor) -> Tensor:
    return new_tensor(x.device.index, (0,), torch.int64)[0]


def _of_runs(first: Tensor, order: Tensor | None, shape: Any, inverse: bool, counts: bool,
             count: int) -> tuple[Tensor, Tensor]:  # fmt: skip
    numbers = lengths = _none(first)
    if inverse:
        numbers = call(_NUMBERS, (first, order), {})[0].view(shape)
    if counts:
        lengths = call(_LENGTHS, (first, count), {})[0]
    return numbers, lengths


def _runs(row: Tensor, order: Tensor | None, x: Tensor, inverse: bool, counts: bool) -> Any:
    if not row.numel():
        return x.new_empty(0), torch.empty(x.shape, dtype=torch.int64, device=x.device), _none(x)
    first = call(_FIRST, (row,), {})[0]
    count = int(first.sum().item())
    values = call(_SELECTED, (row, first, count), {})[0]
    return (values, *_of_runs(first, order, x.shape, inverse, counts, count))


def unique(x: Tensor, sorted: bool = True, return_inverse: bool = False,
           return_counts: bool = False) -> Any:  # fmt: skip
    flat = x.detach().reshape(-1)
    row, order = flat.sort(stable=True)
    return _runs(row, order, x, return_inverse, return_counts)


def unique_consecutive(x: Tensor, return_inverse: bool = False, return_counts: bool = False,
                       dim: int | None = None) -> Any:  # fmt: skip
    if dim is None or x.dim() == 1:
        return _runs(x.detach().reshape(-1), None, x, return_inverse, return_counts)
    return _slices(x.detach(), None, dim, return_inverse, return_counts)


def unique_dim(x: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False,
               return_counts: bool = False) -> Any:  # fmt: skip
    """The different slices along an axis, ordered by their first difference: stable sorts by every
    element of a slice, the last one first."""
    rows = x.detach().movedim(dim, 0).reshape(x.shape[dim], -1)
    order = torch.arange(x.shape[dim], device=x.device)
    for i in reversed(range(rows.shape[1] if rows.numel() else 0)):
        order = order[rows[:, i][order].argsort(stable=True)]
    return _slices(x.detach().index_select(dim, order), order, dim, return_inverse, return_counts)


def _slices(x: Tensor, order: Tensor | None, dim: int, inverse: bool, counts: bool) -> Any:
    """The first slice of each run of equal ones."""
    n = x.shape[dim]
    rows = x.movedim(dim, 0).reshape(n, -1)
    first = torch.ones(n, dtype=torch.bool, device=x.device)
    if n > 1:
        first[1:] = (rows[1:] != rows[:-1]).any(1)
    places = nonzero(first).view(-1)
    made = _of_runs(first, order, (n,), inverse, counts, places.numel())
    return (x.index_select(dim, places), *made)


_TALLIED = Row("bincount", lambda x, weights, size: compact.tallied(x, weights, size))


def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    if x.dtype.is_floating_point:
        raise NotImplementedError(f"bincount of {x.dtype} on {x.device}: takes integers")
    if x.dim() != 1:
        raise RuntimeError(f"bincount only supports 1-d inputs, not {list(x.shape)}")
    size = minlength
    if x.numel():
        least, most = (int(v) for v in torch.stack([x.min(), x.max()]).tolist())
        if least < 0:
            raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
        size = max(size, most + 1)
    return call(_TALLIED, (x, weights, size), {})[0]


def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    """i64: each place as often as its number says."""
    ends = repeats.to(torch.int64).cumsum(0)
    count = output_size
    if count is None:
        count = int(ends[-1].item()) if repeats.numel() else 0
    places = torch.arange(count, device=repeats.device)
    return torch.searchsorted(ends, places, right=True)


KERNELS: dict[str, Any] = {
    "nonzero": nonzero,
    "nonzero_static": nonzero_static,
    "masked_select": masked_select,
    "index.Tensor": index,
    "index_put_": index_put,
    "_index_put_impl_": index_put,
    "_unique": lambda x, sorted=True, inverse=False: unique(x, sorted, inverse)[:2],
    "_unique2": unique,
    "unique_dim": unique_dim,
    "unique_consecutive": unique_consecutive,
    "unique_dim_consecutive": lambda x, dim, inverse=False, counts=False: unique_consecutive(
        x, inverse, counts, dim
    ),
    "bincount": bincount,
    "repeat_interleave.Tensor": repeat_interleave,
}
"""By operator."""
