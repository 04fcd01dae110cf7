"""Linear algebra, from the table of operators. The types are generated."""

from typing import Any

from stack.framework.errors import absent
from stack.framework.expr.public import LINALG
from stack.framework.faces import function_of

__all__ = sorted(LINALG)


def __getattr__(name: str) -> Any:
    if name not in LINALG:
        raise absent("linalg", name, LINALG)
    return function_of(LINALG[name])
