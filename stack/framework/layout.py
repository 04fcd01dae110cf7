"""Keywords of PyTorch's that choose how memory is laid out, where here is one way."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_KEYWORDS = ("layout", "memory_format", "pin_memory")


def any_layout(function: F) -> F:
    """The function, which takes these keywords, too, and looks no further at them."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        for name in _KEYWORDS if kwargs else ():
            kwargs.pop(name, None)
        return function(*args, **kwargs)

    return cast("F", called)
