"""What surrounds an operation: whether gradients are recorded, autocast's element type, which
modules evaluate, and whether gradients are for this rank alone.

All of it is part of the key under which `jit` keeps a captured plan.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar, Token
from weakref import WeakSet

from hal.core.dtypes import DType

_grad: ContextVar[bool] = ContextVar("grad", default=True)
_cast: ContextVar[DType | None] = ContextVar("autocast", default=None)

_local: ContextVar[bool] = ContextVar("local gradients", default=False)

evaluating: WeakSet[object] = WeakSet()
"""The modules that were put into evaluation mode."""


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


def grad_enabled() -> bool:
    return _grad.get()


def autocast_dtype() -> DType | None:
    """The element type of matrix products now, or None outside autocast."""
    return _cast.get()


class set_grad_enabled(ContextDecorator):
    """Record operations for backward, or not, within the block (or the decorated function)."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.tokens: list[Token[bool]] = []

    def __enter__(self) -> None:
        self.tokens.append(_grad.set(self.enabled))

    def __exit__(self, *error: object) -> None:
        _grad.reset(self.tokens.pop())


def no_grad() -> set_grad_enabled:
    """Record nothing for backward within the block (or the decorated function)."""
    return set_grad_enabled(False)


def enable_grad() -> set_grad_enabled:
    """Record for backward again within the block (or the decorated function)."""
    return set_grad_enabled(True)


@contextmanager
def autocast(dtype: DType | None = DType.BF16) -> Iterator[None]:
    """Matrix products within the block take and give `dtype`; norms, softmax and losses compute in
    float32.

    Parameters keep their own element type: they are cast in the graph. None switches autocast off.
    """
    token = _cast.set(dtype)
    try:
        yield
    finally:
        _cast.reset(token)


def key() -> Hashable:
    """A value that is equal whenever a traced function would be traced in the same way."""
    modules = frozenset(map(id, evaluating)) if evaluating else None
    return _grad.get(), _cast.get(), modules, _local.get()
