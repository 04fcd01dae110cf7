"""Keywords of PyTorch's that choose how memory is laid out, where here is one way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

from stack.framework.errors import TensorError, where_called

F = TypeVar("F", bound=Callable[..., Any])

strided = "strided"
contiguous_format, preserve_format = "contiguous_format", "preserve_format"
channels_last, channels_last_3d = "channels_last", "channels_last_3d"
"""Orders of axes in memory, by which PyTorch's programs choose: here what is made is in row-major
order, whichever of them is asked for."""

_LAST = {channels_last: (1, 3, 2, 0), channels_last_3d: (1, 4, 3, 2, 0)}
"""The axes, from the one whose neighbours lie next to each other on."""
_KEYWORDS = {
    "layout": (strided,),
    "memory_format": (contiguous_format, preserve_format, *_LAST),
    "pin_memory": (False, True),
}


def check_layout(keyword: str, given: Any) -> None:
    """Take a value of PyTorch's for one of these keywords, and look no further at it. Raises
    TensorError for others, as layouts of sparse tensors."""
    known = _KEYWORDS[keyword]
    if given is not None and given not in known:
        raise TensorError(
            f"{keyword} is {' or '.join(map(str, known))}, got {given!r}: tensors are dense, and "
            f"are made in row-major order\n  called at {where_called()}"
        )


def any_layout(function: F) -> F:
    """The function, which takes these keywords, too; they change nothing."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        for name in _KEYWORDS if kwargs else ():
            check_layout(name, kwargs.pop(name, None))
        return function(*args, **kwargs)

    return cast("F", called)


def has_channels_last(form: str, shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie one after the other with the channels, axis 1, varying fastest: `form`
    is channels_last for four axes, channels_last_3d for five."""
    order = _LAST[form]
    expected = 1
    for axis in order if len(order) == len(shape) else ():
        if shape[axis] != 1 and strides[axis] != expected:
            return False
        expected *= shape[axis]
    return len(order) == len(shape)
