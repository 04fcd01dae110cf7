"""What surrounds an operation: whether gradients are recorded, autocast's element type, which
modules evaluate, and who shares gradients with other ranks.

All of it is part of the key under which `jit` keeps a captured plan.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar, Token
from itertools import count
from typing import Protocol
from weakref import WeakSet

from hal.core.dtypes import DType

_grad: ContextVar[bool] = ContextVar("grad", default=True)
_cast: ContextVar[DType | None] = ContextVar("autocast", default=None)

_local: ContextVar[bool] = ContextVar("local gradients", default=False)

evaluating: WeakSet[object] = WeakSet()
"""The modules that were put into evaluation mode."""


class Sharer(Protocol):
    """Shares gradients with other ranks: `share` is called after every `backward` that does not run
    within `local_gradients`."""

    def share(self) -> None: ...


_numbers = count()
sharers: dict[int, Sharer] = {}
"""In the order in which they came, which is the same on all ranks of a program."""


def add_sharer(sharer: Sharer) -> None:
    """Let it share gradients until `drop_sharer`."""
    sharers[next(_numbers)] = sharer


def drop_sharer(sharer: Sharer) -> None:
    """Share no gradients any more. Idempotent."""
    for number in [n for n, s in sharers.items() if s is sharer]:
        del sharers[number]


def share_gradients() -> None:
    """A `backward` has ended: let all ranks have the gradients that it is for."""
    if not _local.get():
        for sharer in list(sharers.values()):
            sharer.share()


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
    return _grad.get(), _cast.get(), frozenset(map(id, evaluating)), _local.get(), tuple(sharers)
