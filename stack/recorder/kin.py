"""Paths that differ in sizes and numbers alone.

A key is taken apart into its skeleton and its row: the axes from 2 on, where slices begin and end,
and the Python numbers in it. Keys of one skeleton lead to one place, a `Kin`. What type a result
has follows from the row and the operands' types, whatever the place: it is remembered, and where
two of them differ, inferred once with symbols for what differs (`hal.tile.size`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Type
from hal.tile.size import Facts
from stack.recorder.window import Step, Window
from stack.runtime.general import Sizing

Row = tuple[Any, ...]
Hole = Callable[[Any, bool], Any]
"""From a size or number, and whether it is an axis, to what takes its place."""

SEEN = 64
"""How many results of an operation are remembered by their operands."""
RULES = 4
"""How many times one infers with symbols; what these leave out is inferred for itself."""


class Scalar(NamedTuple):
    """A Python number among operands; zeros and NaN, which Python compares in ways of its own, by
    their text."""

    kind: type
    value: Any
    text: str = ""


def change(key: tuple[Any, ...], hole: Hole) -> tuple[Any, ...]:
    """The key with others in the place of its sizes and numbers, in order."""
    return tuple([o if type(o) is int else _changed(o, hole) for o in key])


def _changed(o: Any, hole: Hole) -> Any:
    kind = type(o)
    if kind is Scalar:
        fixed = o.text or o.kind is bool or (o.kind is int and o.value < 2)
        return o if fixed else Scalar(o.kind, hole(o.value, False))
    if kind is tuple:
        return _shape(o, hole) if {*map(type, o)} == {int} else o
    if kind is Window:
        steps = tuple([_step(s, hole) for s in o.steps])
        return Window(_shape(o.shape, hole), (), 0, steps)
    if kind is Type:
        return o.with_shape(_shape(o.shape, hole))
    return o


def _shape(shape: Sequence[int], hole: Hole) -> tuple[int, ...]:
    return tuple([d if d < 2 else hole(d, True) for d in shape])


def _step(step: Step, hole: Hole) -> Step:
    attrs = step.attrs
    if step.op == "slice":
        attrs = tuple(
            [
                (name, tuple([hole(n, False) for n in v]) if name != "step" else v)
                for name, v in attrs
            ]
        )
    return Step(step.op, _shape(step.shape, hole), attrs)


_windows: dict[Window, tuple[Any, Row]] = {}
_bare: weakref.WeakValueDictionary[Window, Window] = weakref.WeakValueDictionary()
_MOST = 4096


def _window_apart(window: Window) -> tuple[Any, Row]:
    """The window without its sizes, one object for all that are equal then, and these."""
    found = _windows.get(window)
    if found is None:
        row: list[Any] = []
        bare = _changed(window, lambda value, is_axis: row.append(value))
        if len(_windows) >= _MOST:
            _windows.clear()
        found = _windows[window] = _bare.setdefault(bare, bare), tuple(row)
    return found


def told(window: Window) -> tuple[bool, Any, Row]:
    """Whether the window can be written, and as keys have it: its skeleton and its row."""
    return not window.repeats, *_window_apart(window)


_types: dict[Type, Type] = {}


def one(type: Type) -> Type:
    """One object for all types that are equal, by which they are found equal sooner."""
    found = _types.get(type)
    if found is None:
        if len(_types) >= _MOST:
            _types.clear()
        found = _types[type] = type
    return found


def apart(key: tuple[Any, ...]) -> tuple[tuple[Any, ...], Row]:
    """The key's skeleton, and its row."""
    skeleton: list[Any] = []
    row: list[Any] = []

    def hole(value: Any, is_axis: bool) -> None:
        row.append(value)

    for o in key:
        kind = type(o)
        if kind is Window:
            bare, more = _window_apart(o)
            skeleton.append(bare)
            row += more
        elif kind is Type:
            skeleton += (o.dtype, _shape(o.shape, hole))
        elif kind is Scalar or kind is tuple:
            skeleton.append(_changed(o, hole))
        else:
            skeleton.append(o)
    return tuple(skeleton), tuple(row)


def axes(key: tuple[Any, ...]) -> list[bool]:
    """Which values of the key's row are axes."""
    found: list[bool] = []

    def hole(value: Any, is_axis: bool) -> Any:
        found.append(is_axis)
        return value

    change(key, hole)
    return found


class Seen(NamedTuple):
    """A result: its type, or those of several; None where it cannot be recorded. `checks` are
    those of the operation."""

    type: Any
    checks: tuple[Any, ...] = ()


Infer = Callable[[tuple[Any, ...], Sequence[Type]], Type | None]
"""Runs a key's operation on operands of these types."""


class Rule:
    """What types an operation's result has for many rows and operands: it is inferred with symbols
    for what differs between those that were seen. Raises what the operation raises for symbols."""

    def __init__(
        self,
        rows: Sequence[Row],
        key: tuple[Any, ...],
        types: Sequence[Type],
        infer: Infer,
    ) -> None:
        facts = Facts()
        dims = [*axes(key), *[True for t in types for d in t.shape if d >= 2]]
        self._sizing = Sizing(facts, rows, dims)
        rest = iter(self._sizing.values)
        own = change(key, lambda value, is_axis: next(rest))
        shaped = [t.with_shape([d if d < 2 else next(rest) for d in t.shape]) for t in types]
        self._made = infer(own, shaped)
        self._holds = facts.holding()
        self._shape = facts.values(() if self._made is None else self._made.shape)

    def type(self, row: Row) -> Type | None:
        """The result's type for such a row; None where this is not for it."""
        values = None if self._made is None else self._sizing.match(row)
        if values is None or not self._holds(values):
            return None
        assert self._made is not None
        return self._made.with_shape(self._shape(values))


Pattern = tuple[tuple[DType, tuple[int, ...]], ...]


def full_row(row: Row, types: Sequence[Type]) -> tuple[Pattern, Row]:
    """The operands' element types and which of their axes are shorter than 2, and a row with the
    other axes behind it."""
    pattern = tuple([(t.dtype, tuple([d if d < 2 else 2 for d in t.shape])) for t in types])
    return pattern, (*row, *[d for t in types for d in t.shape if d >= 2])


@dataclass(eq=False, slots=True)
class Kin:
    """A place of all paths that differ in sizes and numbers alone."""

    next: dict[tuple[Any, ...], Kin] = field(default_factory=dict)
    last: tuple[Any, ...] | None = None
    """How a path went on from here the last time: the key, the types of its operands, the place it
    led to, its row, the result's type, and what is known of such results (None: nothing). A path
    that goes on so again looks nothing up; one whose operands have other sizes only the type."""
    where: str = ""
    """As of a `tape.Point`."""
    inference: Inference | None = None
    """What is known of the operation that leads here, once it was looked for."""


@dataclass(eq=False, slots=True)
class Inference:
    """What is known of the result types of an operation, from its row and its operands' types."""

    seen: dict[tuple[Row, tuple[Any, ...]], Seen] = field(default_factory=dict)
    rules: dict[Pattern, list[Rule]] = field(default_factory=dict)
    rows: dict[Pattern, list[Row]] = field(default_factory=dict)
    """Some that were seen, of which the next rule is made."""
    fixed: str = ""
    """Why no further rule can be made; empty: one can."""

    def find(self, row: Row, types: tuple[Any, ...]) -> Seen | None:
        """What is known of a result of such operands."""
        local = row, types
        found = self.seen.get(local)
        if found is not None or not self.rules:
            return found
        pattern, full = full_row(row, types)
        for rule in reversed(self.rules.get(pattern, ())):
            made = rule.type(full)
            if made is not None:
                return self.remember(local, Seen(made))
        return None

    def note(self, row: Row, types: Sequence[Type]) -> None:
        """This was seen."""
        pattern, full = full_row(row, types)
        self.rows.setdefault(pattern, [full])

    def infer(
        self, key: tuple[Any, ...], row: Row, types: Sequence[Type], infer: Infer
    ) -> Seen | None:
        """What a new rule gives, which is made of what was seen; None where none can be."""
        pattern, full = full_row(row, types)
        rows = self.rows.setdefault(pattern, [])
        if self.fixed or full in rows:
            return None
        rows.append(full)
        if len(rows) == 1:
            return None
        try:
            rule = Rule(rows, key, types, infer)
        except Exception as error:  # noqa: BLE001 - an operation may not take what stands for a number
            self.fixed = f"{type(error).__name__}: {error}"
            return None
        self.rules.setdefault(pattern, []).append(rule)
        if sum(map(len, self.rules.values())) >= RULES:
            self.fixed = f"{RULES} of them leave others out"
        made = rule.type(full)
        return None if made is None else Seen(made)

    def remember(self, local: tuple[Row, tuple[Any, ...]], seen: Seen) -> Seen:
        """Know it from now on."""
        if type(seen.type) is Type:
            seen = seen._replace(type=one(seen.type))
        if len(self.seen) >= SEEN:
            self.seen.clear()
        self.seen[local] = seen
        return seen


def values_of(key: tuple[Any, ...], rest: Iterator[Any]) -> tuple[Any, ...]:
    """The key with the next values in the place of its sizes and numbers."""
    return change(key, lambda value, is_axis: next(rest))
