"""The operators that are layers, as functions of tensors, from the table of operators. The types
are generated."""

from typing import Any

from stack.framework import composed as composed  # whose operators are in the table then
from stack.framework import counted as counted
from stack.framework import drawn as drawn
from stack.framework.errors import absent
from stack.framework.expr.public import LAYERS
from stack.framework.faces import function_of, written_by

__all__ = sorted(LAYERS)


def __getattr__(name: str) -> Any:
    base = LAYERS.get(name.removesuffix("_"))
    if name not in LAYERS and base is not None and base.face.in_place:
        return written_by(base)
    if name not in LAYERS:
        raise absent("functional", name, LAYERS)
    return function_of(LAYERS[name])
