"""Errors as code that was written for torch catches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch.distributed as dist

from hal.core.errors import DeadlineExceeded, FailureKind, HalError, InvalidCall, OperationFailed

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def torch_errors() -> Iterator[None]:
    """Raise a wrong call as RuntimeError, as backends of torch do, and what has ended a group as
    DistBackendError; that of a deadline speaks of a timeout, by which torch's callers know it."""
    try:
        yield
    except InvalidCall as error:
        raise RuntimeError(f"backend hal: {error}") from error
    except HalError as error:
        late = isinstance(error, OperationFailed) and error.failure.kind is FailureKind.HANG
        is_deadline = late or isinstance(error, DeadlineExceeded)
        told = f"Timed out: the timeout is over: {error}" if is_deadline else str(error)
        raise dist.DistBackendError(told) from error


def raises_torch_errors(method: Callable[P, T]) -> Callable[P, T]:
    """A function whose errors are as those of `torch_errors`."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch_errors():
            return method(*args, **kwargs)

    return called


def refuse(what: str, why: str) -> NoReturn:
    """Raise for a call of torch's that is wrong, in the words of torch's own backend where it has
    some."""
    raise RuntimeError(f"backend hal, {what}: {why}")


def check(right: Any, what: str, why: str) -> None:
    """`refuse` unless `right`."""
    if not right:
        refuse(what, why)
