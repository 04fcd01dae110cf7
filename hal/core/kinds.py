"""Whether a value is what an annotation of the contract says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hal.core.errors import InvalidCall

MOST = 2**63 - 1
"""The largest count, size, offset or value: what drivers take."""

_SHOWN = 200


def shown(value: object) -> str:
    """The value for a message: short, and whatever its own `repr` does."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 a number of too many digits, or foreign code
        text = f"a {type(value).__name__} that cannot be shown: {error}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def check_kind(where: str, what: str, value: object, hint: Any) -> None:
    """`value` is of the type `hint`: a class, also with fields of their own types where it is a
    dataclass, or one of these of `typing`. Raises InvalidCall that names the field that is not."""
    if misfit := _misfit(what, value, hint):
        raise InvalidCall(f"{where}: {misfit}")


def _misfit(what: str, value: object, hint: Any) -> str:
    """What is wrong; empty when the value fits."""
    if hint is Any:
        return ""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        hints = get_args(hint)
        found = [_misfit(what, value, hint) for hint in hints]
        if not all(found):
            return ""
        for hint, misfit in zip(hints, found, strict=True):
            if isinstance(hint, type) and isinstance(value, hint):
                return misfit  # it is of the right class, and something inside is wrong
        return f"{what} must be {' or '.join(map(_named, hints))}, is {shown(value)}"
    if origin is not None:
        args = get_args(hint)
        if origin is Callable:
            return "" if callable(value) else f"{what} must be a function, is {shown(value)}"
        text = isinstance(value, str | bytes | bytearray | memoryview)
        if not isinstance(value, origin) or text:
            return f"{what} must be a {origin.__name__.lower()}, is {shown(value)}"
        if isinstance(value, Mapping):
            pairs = [(f"a key of {what}", key, args[0]) for key in value]
            pairs += [(f"{what}[{shown(key)}]", item, args[1]) for key, item in value.items()]
        elif origin is tuple and args[-1] is not Ellipsis:
            if len(value) != len(args):
                return f"{what} must have {len(args)} parts, is {shown(value)}"
            pairs = [
                (f"{what}[{i}]", *pair) for i, pair in enumerate(zip(value, args, strict=True))
            ]
        else:
            pairs = [(f"{what}[{i}]", item, args[0]) for i, item in enumerate(value)]
        return next(filter(None, (_misfit(*pair) for pair in pairs)), "")
    if hint is int:
        fits = isinstance(value, int) and not isinstance(value, bool)
        if fits and not -MOST <= value <= MOST:  # type: ignore[operator]
            return f"{what} is beyond 64 bits: {shown(value)}"
    elif hint is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        fits = isinstance(value, hint)
    if not fits:
        return f"{what} must be {_named(hint)}, is {shown(value)}"
    if not is_dataclass(value):
        return ""
    kind: Any = type(value)
    parts = ((f"{what}.{name}", getattr(value, name), hint) for name, hint in _hints(kind))
    return next(filter(None, (_misfit(*part) for part in parts)), "")


@cache
def _hints(kind: Any) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in fields(kind))


def _named(hint: Any) -> str:
    if hint is NoneType:
        return "None"
    name = getattr(hint, "__name__", None) or str(hint)
    return f"an {name}" if name[0] in "aeiouAEIO" else f"a {name}"
