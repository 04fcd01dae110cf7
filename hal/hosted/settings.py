"""A plugin's settings: from the options of `open`, or else from environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hal.core.errors import InvalidCall, PluginError
from hal.core.values import OpenOptions


def numbers(where: str, variables: Mapping[str, str], options: OpenOptions) -> dict[str, float]:
    """The settings whose variables are given, as numbers; 0 where neither is set.

    Raises InvalidCall for an unknown setting or a value that is no number above 0, PluginError for
    such a variable.
    """
    if unknown := sorted(options.settings.keys() - variables.keys()):
        raise InvalidCall(
            f"{where}: unknown settings {', '.join(unknown)}; known are {', '.join(variables)}"
        )
    return {name: _number(name, variables[name], options) for name in variables}


def count(variable: str, text: str) -> int:
    """The whole number in what a variable says. Raises PluginError."""
    if not text.isdecimal():
        raise PluginError(f"{variable} must be a whole number, is {text!r}")
    return int(text)


def _number(name: str, variable: str, options: OpenOptions) -> float:
    given = name in options.settings
    text = options.settings[name] if given else os.environ.get(variable, "")
    try:
        number = float(text or "0")
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e15 or (given and not number):
        where = name if given else variable
        raise (InvalidCall if given else PluginError)(f"{where} must be above 0, is {text!r}")
    return number
