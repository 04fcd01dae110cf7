"""Operators of the table as functions and methods of tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import CO_VARARGS, unwrap
from typing import Any, NamedTuple

import numpy as np

from stack.framework import dtypes
from stack.framework.expr.public import METHODS, NUMPYS, ONE, OPERANDS, TWO, Public
from stack.framework.operators import Operators
from stack.framework.tensor import Several, Tensor, call, of_several, show
from stack.recorder import _walk as walk

_LISTS = (list, tuple)


class _Parameters(NamedTuple):
    """The names of an expression's parameters; those that may be given by place or by keyword; and
    whether it takes any number by place."""

    own: list[str]
    by_place: list[str]
    takes_many: bool


@cache
def _parameters(public: Public) -> _Parameters:
    # As `inspect.signature` tells them, which takes long for some hundred functions.
    code = unwrap(public.expression).__code__
    takes_many = bool(code.co_flags & CO_VARARGS)
    names = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    by_place = names[code.co_posonlyargcount : code.co_argcount]
    return _Parameters(names, by_place, takes_many)


@cache
def _keywords(public: Public) -> dict[str, str]:
    """What programs call parameters by, besides their own names."""
    own = _parameters(public).own
    named = {OPERANDS[n]: n for n in own[:2] if n in OPERANDS}
    named |= {numpys: n for n, numpys in NUMPYS.items() if n in own and numpys not in own}
    return {keyword: n for keyword, n in {**named, **dict(public.face.named)}.items()
            if keyword not in own}  # fmt: skip


@cache
def function_of(public: Public) -> Callable[..., Any]:
    """The operator as a function of tensors."""
    expression, sizes = public.expression, public.face.sizes
    run = show if public.face.shares else call
    if public.face.waits:
        return expression
    own, by_place, takes_many = _parameters(public)
    if takes_many:
        by_place = by_place[:1]
    named = _keywords(public)
    writes = public.face.layer and public.face.in_place
    is_simple = not (sizes or writes)
    shares = public.face.shares

    def function(*args: Any, **kwargs: Any) -> Any:
        if not kwargs and args and type(args[0]) is Tensor:  # as most are, with nothing between
            usual = None
            if shares:
                given = (args[0], args[1:]) if sizes and type(args[-1]) is int else args
                usual = walk.view(expression, *given)
            elif is_simple and expression not in of_several:
                usual = walk.known(expression, *args)
            if type(usual) is Tensor:
                return usual
        if is_simple and not kwargs and args and type(args[0]) is Tensor:
            if len(args) > 1 and isinstance(args[1], Several):
                return getattr(Several.widen(args[0]), public.face.name)(*args[1:])
            return run(expression, *args)
        first = args[0] if args else None
        if isinstance(first, Several):
            return getattr(first, public.face.name)(*args[1:], **kwargs)
        if isinstance(first, _LISTS) and any(isinstance(x, Several) for x in first):
            return Several.join(public.face.name, *args, **kwargs)
        listed = args[1] if len(args) == 2 and isinstance(args[1], _LISTS) else args[1:]
        if isinstance(first, str) and any(isinstance(x, Several) for x in listed):
            return Several.join(public.face.name, *args, **kwargs)
        if kwargs:
            kwargs = {named.get(name, name): value for name, value in kwargs.items()}
            if "dtype" in kwargs:
                kwargs["dtype"] = dtypes.of(kwargs["dtype"])
            for name in by_place[len(args) :]:
                if name not in kwargs:
                    break
                args = *args, kwargs.pop(name)
        if writes and (len(args) > len(own) or "inplace" in kwargs):
            is_in_place = kwargs.pop("inplace", args[len(own) :] == (True,))
            args = args[: len(own)]
            if is_in_place:
                return args[0]._change(expression, *args[1:], **kwargs)
        if sizes and len(args) > 1:
            first = args[1] if len(args) == 2 else args[1:]
            args = (args[0], (first,) if isinstance(first, int) else tuple(first))
        return run(expression, *args, **kwargs)

    return _like(public, function)


def written_by(public: Public) -> Callable[..., Any]:
    """The operator as a function that changes its first operand and gives it."""

    named = _keywords(public)

    def change(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        given = {named.get(name, name): value for name, value in kwargs.items()}
        return input._change(public.expression, *args, **given)

    return _like(public, change)


def expose(public: Public) -> None:
    """Make the operator a method of tensors, under all of its names and its symbol."""
    face, expression = public.face, public.expression
    plain, named = function_of(public), _keywords(public)
    for name in public.names:
        setattr(Operators, name, plain)

    def change(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not kwargs:
            return self._change(expression, *args)
        given = {named.get(name, name): value for name, value in kwargs.items()}
        return self._change(expression, *args, **given)

    if face.in_place:
        for name in public.names:
            setattr(Operators, f"{name}_", _like(public, change))
    if face.symbol in ONE:
        setattr(Operators, f"__{ONE[face.symbol]}__", plain)
    elif face.symbol:
        name, is_reflected = TWO[face.symbol]

        def forward(self: Tensor, other: Any) -> Any:
            found = walk.known(expression, self, other)
            if type(found) is Tensor:
                return found
            if type(other) is complex:
                return getattr(Several.widen(self), f"__{name}__")(other)
            return call(expression, self, other) if _is_operand(other) else NotImplemented

        def reflected(self: Tensor, other: Any) -> Any:
            if type(other) is complex:
                return getattr(Several.widen(self), f"__r{name}__")(other)
            return call(expression, other, self) if _is_operand(other) else NotImplemented

        setattr(Operators, f"__{name}__", _like(public, forward))
        if is_reflected:
            setattr(Operators, f"__r{name}__", _like(public, reflected))
        if face.in_place and is_reflected:
            setattr(Operators, f"__i{name}__", _like(public, change))


def _like(public: Public, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the expression's documentation and signature."""
    function.__name__ = function.__qualname__ = public.face.name
    function.__doc__ = public.expression.__doc__
    vars(function)["__wrapped__"] = public.expression
    return function


_OPERANDS = (Tensor, float, int, np.generic)


def _is_operand(value: Any) -> bool:
    return isinstance(value, _OPERANDS)


for _public in dict.fromkeys(METHODS.values()):
    expose(_public)
