"""Modules made of modules, and of parameters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from operator import index
from typing import Any, Generic, Self, TypeVar, cast

from stack.framework.nn.module import Module, Parameter
from stack.framework.tensor import Tensor

T = TypeVar("T")


class _List(Module, Generic[T]):
    """Modules or parameters whose names are their positions."""

    _kind: type

    def __init__(self, values: Iterable[T] | None = None) -> None:
        super().__init__()
        self.extend(() if values is None else values)

    def _set_all(self, values: Iterable[T]) -> None:
        for name in list(self._members()):
            delattr(self, name)
        for i, value in enumerate(values):
            setattr(self, str(i), self._checked(value))

    def _members(self) -> dict[str, T]:
        kind = self._kind
        return cast("dict[str, T]", {k: v for k, v in vars(self).items() if isinstance(v, kind)})

    def _checked(self, value: Any) -> Any:
        if not isinstance(value, self._kind):
            raise TypeError(
                f"{type(self).__name__} holds a {self._kind.__name__} in each place, not a "
                f"{type(value).__name__}"
            )
        return value

    def append(self, value: T) -> Self:
        """Add one at the end."""
        setattr(self, str(len(self)), self._checked(value))
        return self

    def extend(self, values: Iterable[T]) -> Self:
        """Add each at the end, in order."""
        for value in values:
            self.append(value)
        return self

    def insert(self, index: int, value: T) -> None:
        """Add one before that position."""
        values = list(self)
        values.insert(index, value)
        self._set_all(values)

    def pop(self, key: int = -1) -> T:
        """Take one out."""
        value = list(self)[key]
        del self[key]
        return value

    def __len__(self) -> int:
        return len(self._members())

    def __iter__(self) -> Iterator[T]:
        return iter(self._members().values())

    def __contains__(self, value: object) -> bool:
        return any(value is v for v in self)

    def __getitem__(self, place: Any) -> Any:
        """The one at that position, or a container of the same kind with those of a slice."""
        if isinstance(place, slice):
            return self._sliced(place)
        return list(self)[index(place)]

    def _sliced(self, place: slice) -> Any:
        return type(self)(list(self)[place])

    def __setitem__(self, place: int, value: T) -> None:
        setattr(self, list(self._members())[index(place)], self._checked(value))

    def __delitem__(self, place: int | slice) -> None:
        values = list(self)
        del values[place]
        self._set_all(values)

    def __add__(self, other: Iterable[T]) -> Self:
        return type(self)([*self, *other])

    def __iadd__(self, other: Iterable[T]) -> Self:
        return self.extend(other)


class ModuleList(_List[Module]):
    """A list of modules; their names are their positions."""

    _kind = Module


class ParameterList(_List[Parameter]):
    """A list of parameters; tensors become parameters."""

    _kind = Parameter

    def _checked(self, value: Any) -> Any:
        is_plain = isinstance(value, Tensor) and not isinstance(value, Parameter)
        return super()._checked(Parameter(value) if is_plain else value)


class Sequential(_List[Module]):
    """Modules of which each takes what the one before gave: given one by one, or by name in one
    dict."""

    _kind = Module

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], Mapping):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            self.extend(args)

    def _set_all(self, values: Iterable[Module]) -> None:
        named = {id(v): k for k, v in self._members().items() if not k.isdecimal()}
        given = list(values)
        for name in list(self._members()):
            delattr(self, name)
        for i, value in enumerate(given):
            setattr(self, named.get(id(value), str(i)), self._checked(value))

    def _sliced(self, place: slice) -> Any:
        return type(self)(dict(list(self._members().items())[place]))

    def __add__(self, other: Iterable[Module]) -> Self:
        return type(self)(*self, *other)

    def forward(self, input: Any) -> Any:
        for module in self:
            input = module(input)
        return input


class _Dict(Module, Generic[T]):
    """Modules or parameters by name."""

    _kind: type

    def __init__(self, values: Mapping[str, T] | Iterable[tuple[str, T]] | None = None) -> None:
        super().__init__()
        self.update({} if values is None else values)

    def _members(self) -> dict[str, T]:
        return {k: cast("T", v) for k, v in vars(self).items() if isinstance(v, self._kind)}

    def _checked(self, value: Any) -> Any:
        return value

    def update(self, values: Mapping[str, T] | Iterable[tuple[str, T]]) -> None:
        """Set each."""
        for name, value in dict(values).items():
            self[name] = value

    def __getitem__(self, key: str) -> T:
        return self._members()[key]

    def __setitem__(self, key: str, value: T) -> None:
        value = self._checked(value)
        if isinstance(value, Module):
            self.add_module(key, value)
        elif isinstance(value, Parameter):
            self.register_parameter(key, value)
        else:
            raise TypeError(
                f"{type(self).__name__} holds a {self._kind.__name__} under each name, not a "
                f"{type(value).__name__}"
            )

    def __delitem__(self, key: str) -> None:
        self.pop(key)

    def __len__(self) -> int:
        return len(self._members())

    def __iter__(self) -> Iterator[str]:
        return iter(self._members())

    def __contains__(self, key: object) -> bool:
        return key in self._members()

    def keys(self) -> KeysView[str]:
        return self._members().keys()

    def values(self) -> ValuesView[T]:
        return self._members().values()

    def items(self) -> ItemsView[str, T]:
        return self._members().items()

    def pop(self, key: str) -> T:
        """Take one out."""
        value = self[key]
        delattr(self, key)
        return value

    def clear(self) -> None:
        """Take all out."""
        for name in self._members():
            delattr(self, name)


class ModuleDict(_Dict[Module]):
    """Modules by name."""

    _kind = Module


class ParameterDict(_Dict[Parameter]):
    """Parameters by name; tensors become parameters. As in PyTorch those of a plain dict come in
    the order of their names, on which the numbers in an optimizer's state depend."""

    _kind = Parameter

    def update(self, values: Mapping[str, Parameter] | Iterable[tuple[str, Parameter]]) -> None:
        """Set each."""
        if isinstance(values, Mapping) and not isinstance(values, OrderedDict):
            values = sorted(values.items())
        super().update(values)

    def _checked(self, value: Any) -> Any:
        is_plain = isinstance(value, Tensor) and not isinstance(value, Parameter)
        return Parameter(value) if is_plain else value
