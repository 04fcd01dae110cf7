"""Operators as functions of tensors, from the table of operators. The types are generated."""

from typing import Any

from stack.framework import counted as counted  # whose operators are in the table then
from stack.framework.expr.public import FUNCTIONS
from stack.framework.tensor import function_of

__all__ = sorted(FUNCTIONS)


def __getattr__(name: str) -> Any:
    if name not in FUNCTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return function_of(FUNCTIONS[name])
