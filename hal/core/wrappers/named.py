"""Wrappers by name, for `open` and for command lines.

A wrapper's module is loaded when its name is first used: to open a device must stay quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from hal.core.device import Wrapper
from hal.core.errors import InvalidCall

DEFAULT_WRAPPERS: tuple[str, ...] = ("validate",)

_PLAIN: Mapping[str, str] = {
    "validate": "hal.core.wrappers.validation:validate",
    "races": "hal.core.wrappers.races:races",
    "fallbacks": "hal.core.wrappers.fallbacks:reported_fallbacks",
}
"""Where the wrapper is that a name alone means."""

_WITH_ARGUMENT: Mapping[str, str] = {
    "trace": "hal.core.wrappers.trace:Tracer",
    "faults": "hal.core.wrappers.faults:Faults",
}
"""Where the class of a wrapper is that takes what follows the colon."""

_KNOWN = '"validate", "races", "fallbacks", "trace:FILE" and "faults:PLAN"'


def wrapper(name: str) -> Wrapper:
    """The wrapper that a name means.

    "validate" checks every argument; "trace:FILE" writes a trace to FILE when the device closes;
    "races" raises for operations that race; "fallbacks" says at close what was done the slow way;
    "faults:PLAN" makes operations fail as a plan says, which is a file or the plan's text.

    Raises InvalidCall for any other name.
    """
    kind, _, argument = name.partition(":")
    found: Wrapper
    if name in _PLAIN:
        found = _at(_PLAIN[name])
        return found
    if kind in _WITH_ARGUMENT and argument:
        found = _at(_WITH_ARGUMENT[kind])(argument)
        return found
    raise InvalidCall(f"there is no wrapper {name!r}; there are {_KNOWN}")


def _at(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
