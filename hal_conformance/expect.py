"""What a case expects, as functions that raise `Wrong` with both sides in the message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.errors import Failure, FailureKind, OperationFailed, Scope


class Wrong(Exception):
    """The device did not do what the contract says."""


class Unfit(Exception):
    """The device is right, and the case cannot say anything about it: it has not what the case
    looks at (the reason is the message)."""


class Unproved(Unfit):
    """The device may be wrong, and no case can tell: the run says at its end what it did not
    prove."""

    PREFIX = "not proved: "

    def __init__(self, why: str) -> None:
        super().__init__(f"{self.PREFIX}{why}")


def that(holds: object, text: str) -> None:
    """`holds` is true."""
    if not holds:
        raise Wrong(text)


def equal(got: object, wanted: object, what: str) -> None:
    """Two values are equal."""
    if got != wanted:
        raise Wrong(f"{what}: got {_shown(got)}, expected {_shown(wanted)}")


def same_bytes(got: bytes, wanted: bytes, what: str) -> None:
    """Two byte strings are equal; the message has the first place that differs."""
    if got == wanted:
        return
    if len(got) != len(wanted):
        raise Wrong(f"{what}: got {len(got)} bytes, expected {len(wanted)}")
    bad = np.flatnonzero(np.frombuffer(got, np.uint8) != np.frombuffer(wanted, np.uint8))
    at = int(bad[0])
    raise Wrong(
        f"{what}: {len(bad)} of {len(wanted)} bytes differ, the first at {at}: "
        f"got {got[at]:#04x}, expected {wanted[at]:#04x}"
    )


def same(got: NDArray[Any], wanted: NDArray[Any], what: str) -> None:
    """Two arrays have equal values; NaN equals NaN, and zeros of two signs are equal."""
    bad = ~((got == wanted) | ((got != got) & (wanted != wanted)))
    _no_bad(bad, got, wanted, what)


def near(got: NDArray[Any], wanted: NDArray[Any], tolerance: NDArray[Any], what: str) -> None:
    """|got - wanted| <= tolerance, element by element; NaN and infinities must agree."""
    with np.errstate(all="ignore"):
        close = np.abs(got.astype(np.float64) - wanted.astype(np.float64)) <= tolerance
    bad = ~(close | (got == wanted) | ((got != got) & (wanted != wanted)))
    _no_bad(bad, got, wanted, what)


def raises(
    error: type[Exception] | tuple[type[Exception], ...], call: Callable[..., Any], *args: Any
) -> Any:
    """The call raises that error; gives it."""
    name = getattr(call, "__name__", "the call")
    try:
        result = call(*args)
    except error as raised:
        return raised
    except Exception as other:
        raise Wrong(
            f"{name} raised {type(other).__name__} ({other}), expected {_names(error)}"
        ) from other
    raise Wrong(f"{name} returned {_shown(result)}, expected {_names(error)}")


def failure(error: object, kind: FailureKind | None = None, scope: Scope | None = None) -> Failure:
    """The error carries a failure of that kind and scope; gives the failure."""
    if not isinstance(error, OperationFailed):
        raise Wrong(f"got {error!r}, expected an OperationFailed")
    found = error.failure
    if kind is not None:
        equal(found.kind, kind, "the failure's kind")
    if scope is not None:
        equal(found.scope, scope, "the failure's scope")
    return found


def _no_bad(bad: NDArray[Any], got: NDArray[Any], wanted: NDArray[Any], what: str) -> None:
    if not bad.any():
        return
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    raise Wrong(
        f"{what}: {int(bad.sum())} of {bad.size} elements differ, the first at {at}: "
        f"got {got[at]!r}, expected {wanted[at]!r}"
    )


def _names(error: type[Exception] | tuple[type[Exception], ...]) -> str:
    return " or ".join(e.__name__ for e in (error if isinstance(error, tuple) else (error,)))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
