"""Errors of the framework. Each says what failed, in which line of the user's program, and what to
do."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

_BETWEEN = "framework", "parallel", "recorder"
_PASSED = (contextlib.__file__, *(str(Path(__file__).parents[1] / name) for name in _BETWEEN))
"""Where files lie that are between the user's program and what fails."""


class TensorError(TypeError):
    """A tensor operation's operands do not fit it: shapes, element types, devices, arguments."""


class RangeError(TensorError, IndexError):
    """An index, a label or a token is out of range."""


class TracingError(RuntimeError):
    """A function under `jit` did what a captured plan cannot do, such as read a value while it is
    traced."""


class GradientError(RuntimeError):
    """There is no gradient to be had: nothing requires one, or the graph behind a value is out of
    date."""


class CheckpointError(ValueError):
    """A checkpoint cannot be written, read, or put into the model. The message names the file."""


INSTEAD = {
    "nn.SyncBatchNorm": "BatchNorm1d to 3d: under stack.parallel statistics are of the whole batch",
    "nn.utils.prune": "nn.utils.parametrize lays a mask over a parameter",
    "optim.Adafactor": "Adam, AdamW, or a class of your own over optim.Optimizer",
    "optim.SparseAdam": "Adam: gradients are dense here",
    "utils.data.DistributedSampler": "under stack.parallel each rank takes its part of the batch",
    "utils.data.distributed": "under stack.parallel each rank takes its part of the batch",
    "framework.distributed": "stack.parallel trains on several ranks, started by hal run",
    "framework.gradient": "autograd.grad, or diff for differences of neighbours",
    "framework.masked": "where, masked_fill and masked_select",
    "framework.multiprocessing": "Python's multiprocessing takes and gives tensors by pickle",
    "framework.sparse": "tensors are dense here",
    "framework.sparse_coo": "tensors are dense here",
    "framework.sparse_csr": "tensors are dense here",
    "framework.range": "arange",
    "framework.chain_matmul": "linalg.multi_dot",
}
"""What a program takes in the place of names that are left out on purpose."""


def absent(space: str, name: str, present: Iterable[str]) -> AttributeError:
    """The error of a name that a module does not have, with the nearest ones that it has."""
    if instead := INSTEAD.get(f"{space}.{name}"):
        return AttributeError(f"{space}.{name} is not here; instead: {instead}", name=name)
    near: list[str] = []
    if not name.startswith("__"):  # every import from a module asks it for its __path__
        from difflib import get_close_matches  # noqa: PLC0415  (for a message alone)

        near = get_close_matches(name, list(present), 3)
    hint = f"; the nearest names are {', '.join(near)}" if near else ""
    return AttributeError(f"{space}.{name} is not here{hint}", name=name)


def name_of(function: Callable[..., Any]) -> str:
    """What an error calls a function: that of which a partial one is made, and its type where it
    has no name."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def where_called() -> str:
    """ "file:line" of the innermost caller outside this package, the recorder and `stack.parallel`,
    and outside of context managers, by which these are called."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PASSED):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
