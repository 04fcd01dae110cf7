"""The operators that are layers, as functions of tensors, from the table of operators. The types
are generated."""

from typing import Any

from stack.framework import counted as counted  # whose operators are in the table then
from stack.framework.errors import absent
from stack.framework.expr.public import LAYERS
from stack.framework.tensor import function_of

__all__ = sorted(LAYERS)


def __getattr__(name: str) -> Any:
    if name not in LAYERS:
        raise absent("functional", name, LAYERS)
    return function_of(LAYERS[name])
