"""Operators as functions of tensors, from the table of operators. The types are generated."""

from typing import Any

from stack.framework import counted as counted  # whose operators are in the table then
from stack.framework import drawn as drawn
from stack.framework.errors import absent
from stack.framework.expr.public import FUNCTIONS
from stack.framework.faces import function_of, written_by

__all__ = sorted(FUNCTIONS)


def __getattr__(name: str) -> Any:
    base = FUNCTIONS.get(name.removesuffix("_"))
    if name not in FUNCTIONS and base is not None and base.face.in_place:
        return written_by(base)
    if name not in FUNCTIONS:
        raise absent("framework", name, FUNCTIONS)
    return function_of(FUNCTIONS[name])
