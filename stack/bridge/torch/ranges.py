"""Indices out of range, which the device does not stop at: with HAL_TORCH_CHECK=1 each operator
that takes indices also records whether they are in range, and the next wait tells."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.bridge.torch import kernels
from stack.bridge.torch.names import NAME
from stack.bridge.torch.tape import Row
from stack.framework.expr import elementwise as e

CHECK = "HAL_TORCH_CHECK"
_INSIDE = -(2**63)
"""What stands where nothing is out of range."""

Indices = Iterable[tuple[Any, int, int]]
"""Indices, the least that is in range, and the first behind the range."""


def is_on() -> bool:
    """Whether indices are checked."""
    return os.environ.get(CHECK) == "1"


def _worst(indices: Node, low: int, high: int, but: int) -> Node:
    """i64: the largest index out of range and other than `but`; `_INSIDE` if there is none."""
    wide = g.reshape(g.cast(indices, DType.I64), (indices.type.size,))
    wrong = e.logical_or(e.lt(wide, low), e.ge(wide, high))
    wrong = e.logical_and(wrong, e.ne(wide, but))
    return g.reduce("max", e.where(wrong, wide, g.full_like(wide, _INSIDE)), 0)


_WORST = Row("the range of indices", _worst)


def _of_list(x: Tensor, places: Any, *rest: Any, **options: Any) -> Indices:
    axis = 0
    for place in places:
        if place is not None and place.dtype in (torch.bool, torch.uint8):
            axis += place.dim()
            continue
        if place is not None:
            yield place, -x.shape[axis], x.shape[axis]
        axis += 1


def _of_classes(x: Tensor, target: Tensor, *rest: Any, **options: Any) -> Indices:
    yield target, 0, x.shape[1 if x.dim() > 1 else 0]


_TAKERS: dict[str, Callable[..., Indices]] = {
    **dict.fromkeys(("index", "index_put", "_index_put_impl"), _of_list),
    **dict.fromkeys(
        ("embedding", "_embedding_bag", "_embedding_bag_forward_only"),
        lambda weight, indices, *rest, **options: [(indices, 0, weight.shape[0])],
    ),
    **dict.fromkeys(
        ("take", "put"),
        lambda x, index, *rest, **options: [(index, -x.numel(), x.numel())],
    ),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _of_classes),
    "multi_margin_loss": lambda x, target, *rest, **options: [
        (target, 0, x.shape[-1] if x.dim() else 1)
    ],
    **dict.fromkeys(
        ("index_select", "gather", "scatter", "scatter_add", "scatter_reduce", "index_add",
         "index_copy", "index_fill", "index_reduce"),
        lambda x, dim, index, *rest, **options: [(index, 0, x.shape[dim] if x.dim() else 1)],
    ),
}  # fmt: skip
"""What an operator takes as indices, by its name without an overload."""

_IGNORED_CLASS = 4
"""The place of `ignore_index` among the arguments of a loss."""


def takes_indices(name: str) -> bool:
    """Whether an operator's indices are looked at."""
    return _base(name) in _TAKERS


def _base(name: str) -> str:
    return name.partition(".")[0].removesuffix("_")


def checked(name: str, kernel: Any) -> Any:
    """The kernel of an operator, which with HAL_TORCH_CHECK=1 records a check first."""
    taken = _TAKERS.get(_base(name))
    if taken is None:
        return kernel

    @functools.wraps(kernel)
    def checking(*args: Any, **kwargs: Any) -> Any:
        if is_on():
            loss = taken is _of_classes and len(args) > _IGNORED_CLASS
            but = args[_IGNORED_CLASS] if loss else -100 if taken is _of_classes else _INSIDE
            for index, low, high in taken(*args, **kwargs):
                if isinstance(index, Tensor) and index.device.type == NAME and index.numel():
                    made = kernels.call(_WORST, (index, low, high, but), {})[0]
                    kernels.waited.append(functools.partial(_tell, name, made, low, high))
        return kernel(*args, **kwargs)

    return checking


def _tell(name: str, worst: Tensor, low: int, high: int) -> None:
    found = int(kernels.host(worst).item())
    if found != _INSIDE:
        raise IndexError(f"{name}: index {found} is out of range; it takes {low} to {high - 1}")
