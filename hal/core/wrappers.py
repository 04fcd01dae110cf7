"""Wrappers by name, for `open` and for command lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hal.core.device import Wrapper
from hal.core.errors import InvalidCall
from hal.core.fallbacks import reported_fallbacks
from hal.core.faults import Faults
from hal.core.races import races
from hal.core.trace import Tracer
from hal.core.validation import validate

DEFAULT_WRAPPERS: tuple[str, ...] = ("validate",)


_PLAIN: Mapping[str, Callable[[], Wrapper]] = {
    "validate": lambda: validate,
    "races": lambda: races,
    "fallbacks": reported_fallbacks,
}
_WITH_ARGUMENT: Mapping[str, Callable[[str], Wrapper]] = {"trace": Tracer, "faults": Faults}


def wrapper(name: str) -> Wrapper:
    """The wrapper that a name means.

    "validate" checks every argument; "trace:FILE" writes a trace to FILE when the device closes;
    "races" raises for operations that race; "fallbacks" says at close what was done the slow way;
    "faults:PLAN" makes operations fail as a plan says, which is a file or the plan's text.

    Raises InvalidCall for any other name.
    """
    kind, _, argument = name.partition(":")
    if name in _PLAIN:
        return _PLAIN[name]()
    if kind in _WITH_ARGUMENT and argument:
        return _WITH_ARGUMENT[kind](argument)
    raise InvalidCall(f"there is no wrapper {name!r}; there are {_KNOWN}")


_KNOWN = '"validate", "races", "fallbacks", "trace:FILE" and "faults:PLAN"'
