"""Operators as functions of tensors, from the table of operators. The types are generated."""

from typing import Any

from stack.framework import counted as counted  # whose operators are in the table then
from stack.framework.errors import absent
from stack.framework.expr.public import FUNCTIONS
from stack.framework.tensor import function_of

__all__ = sorted(FUNCTIONS)


def __getattr__(name: str) -> Any:
    if name not in FUNCTIONS:
        raise absent("framework", name, FUNCTIONS)
    return function_of(FUNCTIONS[name])
