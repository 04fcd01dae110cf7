"""What surrounds an operation: whether gradients are recorded, autocast's element type, and whether
gradients are for this rank alone.

All of it is part of the key under which `jit` keeps a captured plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from hal.core.dtypes import DType

F = TypeVar("F", bound=Callable[..., Any])

_grad: ContextVar[bool] = ContextVar("grad", default=True)
_cast: ContextVar[DType | None] = ContextVar("autocast", default=None)

_local: ContextVar[bool] = ContextVar("local gradients", default=False)


def gradients_are_local() -> bool:
    """Whether `backward` leaves the rules of gradients alone; see `local_gradients`."""
    return _local.get()


@contextmanager
def local_gradients() -> Iterator[None]:
    """Gather gradients on this rank alone within the block: those of all but the last part of a
    batch."""
    token = _local.set(True)
    try:
        yield
    finally:
        _local.reset(token)


grad_enabled: Callable[[], bool] = _grad.get

autocast_dtype: Callable[[], DType | None] = _cast.get
"""The element type of matrix products now, or None outside autocast."""


class set_grad_enabled(ContextDecorator):
    """Record operations for backward, or not: from here on, within the block, or within the
    decorated function."""

    def __init__(self, mode: bool) -> None:
        self.mode, self._before = mode, [_grad.get()]
        _grad.set(mode)

    def __call__(self, func: F) -> F:
        _grad.set(self._before[0])
        return super().__call__(func)

    def __enter__(self) -> None:
        if len(self._before) > 1:
            self._before.append(_grad.get())
        else:
            self._before *= 2
        _grad.set(self.mode)

    def __exit__(self, *error: object) -> None:
        _grad.set(self._before.pop())


class _Switch(ContextDecorator):
    """A mode of recording within a block, or within the function that it decorates, with or without
    brackets."""

    mode: bool

    def __new__(cls, func: Callable[..., Any] | None = None) -> Any:
        made = super().__new__(cls)
        made._before = []
        return made(func) if callable(func) else made

    def __init__(self, func: object = None) -> None:
        self._before: list[bool]

    def _recreate_cm(self) -> _Switch:
        return type(self)()

    def __enter__(self) -> None:
        self._before.append(_grad.get())
        _grad.set(self.mode)

    def __exit__(self, *error: object) -> None:
        _grad.set(self._before.pop())


class no_grad(_Switch):
    """Record nothing for backward within the block (or the decorated function)."""

    mode = False


class enable_grad(_Switch):
    """Record for backward again within the block (or the decorated function)."""

    mode = True


class inference_mode(_Switch):
    """`no_grad()`; `inference_mode(False)` changes nothing."""

    mode = False

    def __new__(cls, mode: Callable[..., Any] | bool = True) -> Any:
        made = super().__new__(cls, mode if callable(mode) else None)
        if mode is False:
            made.mode = _grad.get()
        return made


class autocast(ContextDecorator):
    """Matrix products within the block (or the decorated function) take and give `dtype`; norms,
    softmax and losses compute in float32.

    Given as autocast(dtype), or as PyTorch's autocast(device_type, dtype, enabled), where the
    device's name changes nothing. Parameters keep their own element type: they are cast in the
    graph. None, or enabled=False, switches autocast off.
    """

    def __init__(
        self,
        device_type: str | DType | None = "",
        dtype: DType | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        chosen = device_type if not isinstance(device_type, str) else dtype or DType.BF16
        self.dtype = chosen if enabled else None
        self._before: list[DType | None] = []

    def __enter__(self) -> None:
        self._before.append(_cast.get())
        _cast.set(self.dtype)

    def __exit__(self, *error: object) -> None:
        _cast.set(self._before.pop())


def key() -> Hashable:
    """A value that is equal whenever a traced function would be traced in the same way."""
    return _grad.get(), _cast.get(), _local.get()
