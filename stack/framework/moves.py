"""What expressions that move elements do to a value, remembered by its type and their arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, cast

from hal.core.facts import dataclass
from hal.tile.node import Node, Type
from stack import ops as g
from stack.framework.errors import TensorError
from stack.framework.expr.index import getitem
from stack.ops.error import GraphError
from stack.recorder.kin import one
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
        return Move(steps, shown, one(part.type))


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
    if len(known_moves) >= _MOST:
        known_moves.clear()
    if expression is getitem and not kwargs and (cut := _cut(type, args[0])) is not None:
        known_moves[key] = found = True, (cut,)
        return found
    whole = g.input(0, type)
    try:
        result = expression(whole, *args, **kwargs)
    except (GraphError, TensorError):
        return None
    single = isinstance(result, Node)
    known_moves[key] = found = (
        single,
        tuple([Move.of(whole, n) for n in ([result] if single else result)]),
    )
    return found


def _cut(type: Type, place: Any) -> Move | None:
    """What an index of integers and slices does, without nodes; None for any other one, and where
    `getitem` tells what is wrong."""
    shape, items = type.shape, list(place) if isinstance(place, tuple) else [place]
    if Ellipsis in items:
        at = items.index(Ellipsis)
        items[at : at + 1] = [slice(None)] * (len(shape) - len(items) + 1)
    items += [slice(None)] * (len(shape) - len(items))
    if len(items) != len(shape) or {*map(_kind, shape)} > {int}:
        return None
    start, stop, step, cut, kept = [], [], [], [], []
    for item, n in zip(items, shape, strict=True):
        if _kind(item) is int and -n <= item < n:
            places = range(item % n, item % n + 1)
        elif _kind(item) is slice and (item.step is None or item.step > 0):
            places = range(*item.indices(n))
            kept.append(len(places))
        else:
            return None
        start.append(places[0] if places else 0)
        stop.append(places[-1] + 1 if places else 0)
        step.append(places.step if places else 1)
        cut.append(len(places))
    steps: list[Step] = []
    if tuple(cut) != shape:
        attrs = ("start", tuple(start)), ("step", tuple(step)), ("stop", tuple(stop))
        steps.append(Step("slice", tuple(cut), attrs))
    if kept != cut:
        steps.append(Step("reshape", tuple(kept), ()))
    found = tuple(steps)
    return Move(found, Window.whole(shape).through(found), one(type.with_shape(kept)))


_kind = type
