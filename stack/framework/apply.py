"""How an expression on nodes becomes an operation on tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hal.tile.node import Node
from stack.framework import store
from stack.framework.cell import Cell
from stack.framework.errors import TensorError, where_called
from stack.framework.mode import grad_enabled
from stack.ops.error import GraphError


def cells_in(value: Any) -> list[Cell]:
    """The cells in an argument, also within lists and tuples."""
    if isinstance(value, Cell):
        return [value]
    if isinstance(value, list | tuple):
        return [c for item in value for c in cells_in(item)]
    return []


def evaluate(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, str, bool]:
    """function on the arguments' nodes: its result, the device, and whether gradients are tracked.

    Raises TensorError with the function's name and the caller's place.
    """
    cells = cells_in([*args, *kwargs.values()])
    if not cells:
        raise TensorError(f"{_name(function)}: needs a tensor\n  called at {where_called()}")
    tracked = grad_enabled() and any(c.requires_grad for c in cells)
    try:
        result = function(
            *[_node(a, tracked) for a in args], **{k: _node(v, tracked) for k, v in kwargs.items()}
        )
    except (GraphError, TensorError) as error:
        raise TensorError(f"{_name(function)}: {error}\n  called at {where_called()}") from None
    return result, common_device(cells), tracked


def _name(function: Callable[..., Any]) -> str:
    return function.__name__.strip("_")


def common_device(cells: list[Cell]) -> str:
    """The one device of all. Raises TensorError when there are several."""
    device = cells[0].device
    for c in cells:
        if c.device != device:
            raise TensorError(
                f"tensors are on {device} and on {c.device}; move one with .to({device!r})\n"
                f"  called at {where_called()}"
            )
    return device


def _node(value: Any, tracked: bool) -> Any:
    if isinstance(value, Cell):
        return _tracked_operand(value) if tracked else value.node
    if isinstance(value, list | tuple):
        return type(value)(_node(v, tracked) for v in value)
    if isinstance(value, np.ndarray):
        raise TensorError("got a numpy array as an operand; make it a tensor with tensor(...)")
    return value.item() if isinstance(value, np.generic) else value


def _tracked_operand(cell: Cell) -> Node:
    """The cell's node; behind a barrier when gradients must not flow to what it was computed
    from."""
    if cell.requires_grad or cell.owns or cell.node.op in ("const", "arange"):
        return cell.node
    return store.barrier(cell.node)
