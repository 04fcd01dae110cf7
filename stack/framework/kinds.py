"""Calls of a jitted function that differ in sizes and numbers alone, and the traces that serve many
of them.

A call's *row* are the sizes of its arguments' axes and the numbers among its arguments; what is
left is its kind. Axes of 0 and 1, and the integers up to 1, belong to the kind.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field, replace
from math import gcd
from types import MappingProxyType
from typing import Any

from hal.core.facts import dataclass
from hal.tile.size import Facts, is_symbolic
from stack.framework.capture import Argument, Captured
from stack.framework.tree import Spec, numbers, with_numbers
from stack.runtime.engine import Engine
from stack.runtime.families import Dynamic
from stack.runtime.plan import Bound, Plan

ROWS = 4
"""The calls of a kind that are compared."""
GENERALS = 3
"""The traces of a kind that serve many calls; what they leave out is traced for itself."""
INSTANCES = 64
"""The plans that such a trace keeps, one for each sizes."""

Row = tuple[float, ...]
NO_STEPS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Call:
    """A call's arguments, taken apart."""

    kind: Hashable
    row: Row
    spec: Spec
    """Without the numbers."""
    arguments: tuple[Argument, ...]
    has_numbers: bool

    @staticmethod
    def of(spec: Spec, arguments: tuple[Argument, ...], surroundings: Hashable) -> Call:
        bare, found = numbers(spec)
        fixed = tuple([tuple([d if d < 2 else -1 for d in a.type.shape]) for a in arguments])
        about = tuple([(a.type.dtype, a.device, a.requires_grad) for a in arguments])
        row = (*(d for a in arguments for d in a.type.shape if d >= 2), *found)
        return Call((bare, fixed, about, surroundings), row, bare, arguments, bool(found))

    def with_values(self, values: Sequence[Any]) -> tuple[Spec, tuple[Argument, ...]]:
        """The spec and the arguments with others in the place of the row's."""
        rest = iter(values)
        arguments = []
        for a in self.arguments:
            shape = [d if d < 2 else next(rest) for d in a.type.shape]
            arguments.append(a._replace(type=a.type.with_shape(shape)))
        return with_numbers(self.spec, rest), tuple(arguments)

    @property
    def sizes(self) -> int:
        """How many of the row's values are sizes of axes; they come first."""
        return sum(d >= 2 for a in self.arguments for d in a.type.shape)


@dataclass(frozen=True, slots=True)
class Symbols:
    """A row of which some values are symbols."""

    values: tuple[Any, ...]
    facts: Facts
    names: dict[str, int]
    """Where in the row each symbol is."""
    texts: dict[str, str]
    """The name of each symbol by the text of what stands in the row."""
    steps: dict[str, tuple[int, int]]
    """Of each size what stands in the row: so many times its symbol, and a rest."""

    @staticmethod
    def of(
        call: Call, rows: Sequence[Row], sizes: bool, steps: Mapping[str, int] = NO_STEPS
    ) -> Symbols | None:
        """Symbols for what differs between rows, the last of which is the call's; without `sizes`
        for floats alone. Equal columns are one symbol, of which those with a step stand for sizes
        that are so many apart. None where nothing may be one."""
        facts, names, found = Facts(), dict[str, int](), dict[str, tuple[int, int]]()
        known: dict[Hashable, Any] = {}
        out: list[Any] = []
        for i, column in enumerate(zip(*rows, strict=True)):
            value = column[-1]
            if len(set(map(repr, column))) == 1 or (type(value) is int and not sizes):
                out.append(value)
                continue
            key = tuple(map(repr, column))
            if key not in known:
                name = f"s{len(names)}"
                names[name] = i
                if isinstance(value, int):
                    step, rest = found[name] = steps.get(name, 1), value % steps.get(name, 1)
                    least = 2 if step == 1 else 1
                    known[key] = facts.symbol(name, value // step, least) * step + rest
                else:
                    known[key] = facts.number(name, value)
            out.append(known[key])
        texts = {str(symbol): f"s{i}" for i, symbol in enumerate(known.values())}
        return Symbols(tuple(out), facts, names, texts, found) if names else None

    def common_steps(self, rows: Sequence[Row], periods: Mapping[str, int]) -> dict[str, int]:
        """Of each size the greatest divisor of its period by which all rows leave the same rest,
        where that is more than 1."""
        found = {}
        for name, period in periods.items():
            column = [int(row[self.names[name]]) for row in rows]
            step = gcd(period, *(n - column[-1] for n in column))
            if step > 1:
                found[name] = step
        return found

    def match(self, row: Row) -> dict[str, float] | None:
        """The symbols' values in a row; None where others differ, too."""
        given_by = {name: row[i] for name, i in self.names.items()}
        values = dict(given_by)
        for name, (step, rest) in self.steps.items():
            value = given_by[name]
            if step > 1 and (type(value) is not int or value % step != rest):
                return None
            values[name] = value // step
        for given, mine in zip(row, self.values, strict=True):
            wanted = given_by[self.texts[str(mine)]] if is_symbolic(mine) else mine
            if repr(wanted) != repr(given):
                return None
        return values


@dataclass(eq=False, slots=True)
class GeneralTrace:
    """A trace that serves many calls of a kind."""

    captured: Captured
    symbols: Symbols
    dynamic: Dynamic
    engine: Engine
    plans: OrderedDict[Plan, None] | None
    """Those for the sizes that came last, where nobody else holds them: for calls with numbers."""

    def at(self, row: Row) -> Captured | None:
        """What serves a row, with a plan for its sizes; None where it is not one of those."""
        values = self.symbols.match(row)
        plan = None if values is None else self.engine.at(self.dynamic, values)
        if values is None or plan is None:
            return None
        if self.plans is not None:
            own = plan.plan if isinstance(plan, Bound) else plan
            self.plans[own] = None
            self.plans.move_to_end(own)
            if len(self.plans) > INSTANCES:
                self.plans.popitem(last=False)
        return replace(self.captured, plan=plan, sizes=values)


@dataclass(eq=False, slots=True)
class Kind:
    """The calls of one kind."""

    rows: deque[Row] = field(default_factory=lambda: deque(maxlen=ROWS))
    traces: list[GeneralTrace] = field(default_factory=list)
    fixed: str = ""
    """Why there cannot be traces that serve many calls; empty: there can."""

    def at(self, row: Row) -> Captured | None:
        """What serves a row already."""
        for trace in reversed(self.traces):
            if trace.captured.holds():
                found = trace.at(row)
                if found is not None:
                    return found
        return None
