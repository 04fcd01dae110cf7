"""Dataclasses whose methods are compiled when they are called.

The standard library compiles the text of six methods of a frozen class where it is declared, which
takes a millisecond. A process declares some 150 classes before its first kernel runs; it makes
objects of half of them, of most of these a few, and compares those of ten.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError
from functools import partial
from reprlib import recursive_repr
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        init: bool = True,
        repr: bool = True,
        eq: bool = True,
        order: bool = False,
        slots: bool = False,
        **options: Any,
    ) -> Any:
        """As `dataclasses.dataclass`, for classes without `InitVar` whose fields tell by `compare`
        what counts for a hash, and that inherit from no class made there. Those with an order are
        made there."""
        options |= {"slots": slots, "order": order}
        if cls is None:
            return partial(dataclass, frozen=frozen, init=init, repr=repr, eq=eq, **options)
        if order:
            return dataclasses.dataclass(cls, frozen=frozen, init=init, repr=repr, eq=eq, **options)
        own = set(vars(cls))
        if cls.__hash__ is None and "__eq__" in own:
            own.discard("__hash__")  # Python says so of whoever says what is equal
        cls.__doc__ = cls.__doc__ or cls.__name__  # it would be told by a signature
        made = dataclasses.dataclass(cls, init=False, repr=False, eq=False, **options)
        if frozen:
            made.__setattr__, made.__delattr__ = _refuse_set, _refuse_delete
            if slots:
                made.__getstate__, made.__setstate__ = _state, _set_state
        wanted = {"__init__": init, "__repr__": repr, "__eq__": eq, "__hash__": eq and frozen}
        for name, is_wanted in wanted.items():
            if is_wanted and name not in own:
                setattr(made, name, _compiled_later(made, name, frozen))
        if eq and not frozen and "__hash__" not in own:
            made.__hash__ = None
        return made


FEW = 8
"""From how many objects on a constructor is compiled, which takes as long as to make 40 without."""


def _compiled_later(cls: type, name: str, frozen: bool) -> Callable[..., Any]:
    """A method that puts the compiled one in its place, and calls it; a constructor makes the first
    few objects itself."""
    few = FEW if name == "__init__" else 0

    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal few
        few -= 1
        if few > 0 and _filled(cls, self, args, kwargs, frozen):
            return None
        method = _compiled(cls, name, frozen)
        setattr(cls, name, method)
        return method(self, *args, **kwargs)

    return first


def _compiled(cls: type, name: str, frozen: bool) -> Callable[..., Any]:
    found = dataclasses.fields(cls)
    names: dict[str, Any] = {"__name__": cls.__module__}
    if name == "__init__":
        text = _constructor(cls, found, frozen, names)
    elif name == "__repr__":
        shown = ", ".join([f"{f.name}={{self.{f.name}!r}}" for f in found if f.repr])
        text = f'def __repr__(self):\n return f"{{self.__class__.__qualname__}}({shown})"'
    elif name == "__eq__":
        text = (
            "def __eq__(self, other):\n"
            " if other.__class__ is self.__class__:\n"
            f"  return {_compared(found, 'self')} == {_compared(found, 'other')}\n"
            " return NotImplemented"
        )
    else:
        text = f"def __hash__(self):\n return hash({_compared(found, 'self')})"
    exec(text, names)
    method: Callable[..., Any] = names[name]
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    return recursive_repr()(method) if name == "__repr__" else method


def _compared(fields: tuple[dataclasses.Field[Any], ...], side: str) -> str:
    """The tuple of what tells objects apart."""
    return f"({''.join([f'{side}.{f.name},' for f in fields if f.compare])})"


def _constructor(
    cls: type, fields: tuple[dataclasses.Field[Any], ...], frozen: bool, names: dict[str, Any]
) -> str:
    names |= {"_set_": object.__setattr__, "_none_": object()}
    places, keywords, lines = list[str](["self"]), list[str](), list[str]()
    for f in fields:
        default, value, given = f"_{f.name}_", f.name, f.name
        if f.default_factory is not MISSING:
            names[default] = f.default_factory
            given = f"{f.name}=_none_"
            value = f"{default}() if {f.name} is _none_ else {f.name}" if f.init else f"{default}()"
        elif f.default is not MISSING:
            names[default] = f.default
            given = f"{f.name}={default}"
            value = f.name if f.init else default
        elif not f.init:
            continue  # whoever makes it says so after that
        if f.init:
            (keywords if f.kw_only else places).append(given)
        slot = getattr(cls, f.name, None)
        if not frozen:
            lines.append(f"self.{f.name} = {value}")
        elif isinstance(slot, MemberDescriptorType):  # set so in two thirds of the time
            names[f"_set_{f.name}"] = slot.__set__
            lines.append(f"_set_{f.name}(self, {value})")
        else:
            lines.append(f"_set_(self, {f.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    taken = ", ".join([*places, *(["*", *keywords] if keywords else [])])
    return f"def __init__({taken}):\n " + "\n ".join(lines or ["pass"])


def _filled(
    cls: type, made: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frozen: bool
) -> bool:
    """Construct an object. What does not fit is left to the compiled constructor, to say why."""
    found = dataclasses.fields(cls)
    places = [f.name for f in found if f.init and not f.kw_only]
    given = dict(zip(places, args, strict=False))
    if len(args) > len(places) or not given.keys().isdisjoint(kwargs):
        return False
    given |= kwargs
    values = dict[str, Any]()
    for f in found:
        if f.init and f.name in given:
            values[f.name] = given.pop(f.name)
        elif f.default_factory is not MISSING:
            values[f.name] = f.default_factory()
        elif f.default is not MISSING:
            values[f.name] = f.default
        elif f.init:
            return False
    if given:
        return False
    put = object.__setattr__ if frozen else setattr
    for name, value in values.items():
        put(made, name, value)
    if hasattr(cls, "__post_init__"):
        made.__post_init__()
    return True


def _refuse_set(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for f, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)
