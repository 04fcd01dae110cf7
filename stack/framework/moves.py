"""What expressions that move elements do to a value, remembered by its type and their arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, cast

from hal.tile.node import Node, Type
from stack import ops as g
from stack.framework.errors import TensorError
from stack.ops.error import GraphError
from stack.recorder.window import Step, Window, steps_between


@dataclass(frozen=True, slots=True)
class Move:
    """One result of moving a value's elements: the steps, None where they are copied, and what they
    show of a whole value."""

    steps: tuple[Step, ...] | None
    shown: Window | None
    type: Type

    @staticmethod
    def of(whole: Node, part: Node) -> Move:
        steps = steps_between(whole, part)
        shown = None if steps is None else Window.whole(whole.shape).through(steps)
        return Move(steps, shown, part.type)


known_moves: dict[Hashable, tuple[bool, tuple[Move, ...]]] = {}
"""What expressions with plain arguments do to values of a type: whether they give one, and each."""

_MOST = 4096
"""How many are remembered."""


def _plain(value: Any) -> Hashable:
    """A key for an argument of integers, slices and None. Raises TypeError for others."""
    kind = type(value)
    if kind is int or kind is str or value is None or value is Ellipsis:
        return cast("Hashable", value)
    if kind is slice:
        ends = value.start, value.stop, value.step
        return slice, *[e if e is None or type(e) is int else _plain(e) for e in ends]
    if kind is tuple or kind is list:
        return kind, *[_plain(v) for v in value]
    raise TypeError


def moves(
    expression: Callable[..., Any], type: Type, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bool, tuple[Move, ...]] | None:
    """What an expression does to the elements of values of a type, with these arguments behind
    them: whether it gives one value, and each. None where it tells itself what is wrong, and where
    an argument is neither an integer, a slice nor a list of such."""
    try:
        if kwargs:
            key = (
                expression,
                type,
                *[_plain(a) for a in (*args, Ellipsis, *kwargs, *kwargs.values())],
            )
        else:
            key = expression, type, *[_plain(a) for a in args]
    except TypeError:
        return None
    found = known_moves.get(key)
    if found is not None:
        return found
    whole = g.input(0, type)
    try:
        result = expression(whole, *args, **kwargs)
    except (GraphError, TensorError):
        return None
    single = isinstance(result, Node)
    if len(known_moves) >= _MOST:
        known_moves.clear()
    known_moves[key] = found = (
        single,
        tuple([Move.of(whole, n) for n in ([result] if single else result)]),
    )
    return found
