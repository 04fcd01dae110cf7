"""Wrappers by name, for `open` and for command lines."""

from __future__ import annotations

from hal.core.device import Wrapper
from hal.core.errors import InvalidCall
from hal.core.trace import Tracer
from hal.core.validation import validate

DEFAULT_WRAPPERS: tuple[str, ...] = ("validate",)


def wrapper(name: str) -> Wrapper:
    """The wrapper that a name means: "validate" checks every argument, "trace:FILE" writes a trace
    to FILE when the device closes.

    Raises InvalidCall for any other name.
    """
    kind, _, argument = name.partition(":")
    if name == "validate":
        return validate
    if kind == "trace" and argument:
        return Tracer(argument)
    raise InvalidCall(f'there is no wrapper {name!r}; there are "validate" and "trace:FILE"')
