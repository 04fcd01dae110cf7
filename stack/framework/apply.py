"""How an expression on nodes becomes an operation on tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from stack.framework import store
from stack.framework.cell import Cell, check_crossing, tracing, under_way
from stack.framework.errors import RangeError, TensorError, where_called
from stack.framework.modes import grad_enabled
from stack.ops.error import GraphError


def cells_in(values: Iterable[Any]) -> list[Cell]:
    """The cells among arguments, also within lists and tuples."""
    found: list[Cell] = []
    for value in values:
        if isinstance(value, Cell):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += cells_in(value)
    return found


def evaluate(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, str, bool]:
    """function on the arguments' nodes: its result, the device, and whether gradients are tracked.

    Raises TensorError with the function's name and the caller's place.
    """
    cells = cells_in((*args, *kwargs.values()))
    if not cells:
        raise TensorError(f"{_name(function)}: needs a tensor\n  called at {where_called()}")
    trace = None
    if under_way:
        check_crossing(cells)
        trace = tracing()
    tracked = grad_enabled() and True in [c.requires_grad for c in cells]
    noted = len(trace.needs) if trace is not None else 0
    try:
        result = function(
            *[_node(a, tracked) for a in args], **{k: _node(v, tracked) for k, v in kwargs.items()}
        )
    except RangeError as error:
        raise RangeError(f"{_name(function)}: {error}\n  called at {where_called()}") from None
    except (GraphError, TensorError) as error:
        raise TensorError(f"{_name(function)}: {error}\n  called at {where_called()}") from None
    except (AttributeError, KeyError, TypeError) as error:  # of an argument that is of no such kind
        given = [*map(_kind, args), *(f"{name}={_kind(v)}" for name, v in kwargs.items())]
        raise TensorError(
            f"{_name(function)}({', '.join(given)}): {error}\n  called at {where_called()}"
        ) from error
    if trace is not None and len(trace.needs) > noted:
        name, place = _name(function), where_called()
        new = trace.needs[noted:]
        trace.needs[noted:] = [replace(n, operation=name, place=place) for n in new]
    return result, common_device(cells), tracked


def _kind(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of {', '.join(map(_kind, value)) or 'nothing'}"
    return repr(value) if isinstance(value, int | float | str) else type(value).__name__


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
        n = value.node
        if not tracked or value.requires_grad or value.owns or n.op in ("const", "arange"):
            return n
        # A barrier keeps gradients from flowing to what the value was computed from.
        return store.barrier(n)
    if isinstance(value, list | tuple):
        return type(value)(_node(v, tracked) for v in value)
    if isinstance(value, np.ndarray):
        raise TensorError("got a numpy array as an operand; make it a tensor with tensor(...)")
    return value.item() if isinstance(value, np.generic) else value
