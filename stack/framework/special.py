"""Functions of statistics and physics, from the table of operators. The types are generated."""

from typing import Any

from stack.framework.errors import absent
from stack.framework.expr.public import SPECIAL
from stack.framework.faces import function_of

__all__ = sorted(SPECIAL)


def __getattr__(name: str) -> Any:
    if name not in SPECIAL:
        raise absent("special", name, SPECIAL)
    return function_of(SPECIAL[name])
