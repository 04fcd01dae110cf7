"""Functions of statistics and physics, from the table of operators. The types are generated."""

from typing import Any

from stack.framework.expr.public import SPECIAL
from stack.framework.tensor import function_of

__all__ = sorted(SPECIAL)


def __getattr__(name: str) -> Any:
    if name not in SPECIAL:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return function_of(SPECIAL[name])
