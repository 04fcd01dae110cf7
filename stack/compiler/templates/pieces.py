"""Tiles of an operand that lies unevenly, copied into scratch memory piece by piece.

A piece is a rectangle of neighbours: what a tile has of one run of the innermost axes on either
side, without what edges leave out. It comes by one copy, which a device makes a strided transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.build import add, binary, cast, const, index, mul, sub, where
from hal.tile.kernel import Memory
from hal.tile.node import Node
from stack.compiler.graph.access import Affine, Axis, Guard
from stack.compiler.graph.expr import Apply, Expr, Read, Select
from stack.compiler.graph.space import Group
from stack.compiler.templates.edges import Limits
from stack.compiler.templates.emission import Emission, compute_dtype
from stack.compiler.templates.instances import decompose
from stack.compiler.templates.tiles import Tiles, applied, is_even


@dataclass(frozen=True, slots=True)
class Run:
    """The innermost axes of a group, which count as one, and those around them."""

    outer: Group
    inner: Group

    @staticmethod
    def of(group: Group, values: Sequence[Affine]) -> Run:
        """As many axes as all values go along evenly."""
        first = len(group) - 1
        while first > 0:
            more = group[first - 1 :]
            if not all(is_even([v.coefficient(a) for a in more], more) for v in values):
                break
            first -= 1
        return Run(group[:first], group[first:])

    @property
    def size(self) -> int:
        return prod(a.size for a in self.inner)

    def step(self, value: Affine) -> int:
        """How much a value grows by a step."""
        return value.coefficient(self.inner[-1]) if self.inner else 0


@dataclass(frozen=True, slots=True)
class _Side:
    """The rows or columns of a tile that one run has: from `low` to `high` of the tile, whose first
    one is number `shift` of the run. `outer` says which run it is."""

    low: Node
    high: Node
    shift: Node
    outer: dict[Axis, Node]

    def within(self, low: Node, high: Node) -> _Side:
        """Less of it, where that is less."""
        lower, upper = binary("max", self.low, low), binary("min", self.high, high)
        return replace(self, low=lower, high=upper)


@dataclass(frozen=True, slots=True)
class Pieces:
    """How tiles of an operand come into scratch memory: the runs of their rows and columns, and
    the number of that axis of a tile along which elements are neighbours."""

    emission: Emission
    operand: Expr
    read: Read
    batch: Group
    runs: tuple[Run, Run]
    along: int

    @staticmethod
    def of(
        emission: Emission, e: Expr, batch: Group, groups: tuple[Group, Group], along: int
    ) -> Pieces | None:
        """None where an operand is not read from one buffer alone, at places that are known."""
        read = _only_read(e)
        if read is None:
            return None
        values = [read.offset, *(g.value for g in read.guards)]
        if any(a.source is not None for v in values for a, _ in v.terms):
            return None
        runs = [Run.of(g, values) for g in groups]
        if any(runs[0].step(v) and runs[1].step(v) for v in values[1:]):
            runs[1 - along] = Run(groups[1 - along], ())
        return Pieces(emission, e, read, batch, (runs[0], runs[1]), along)

    @property
    def dtype(self) -> DType:
        """The type of an element in memory."""
        return self.read.dtype

    def tile(
        self,
        panel: Memory,
        batch: Node,
        starts: tuple[Node, Node],
        shape: tuple[int, int],
        limits: Limits,
    ) -> Node:
        """The operand's tile, by way of a panel of its size; zero from the limits on."""
        b, strides = self.emission.b, (shape[1], 1) if self.along else (1, shape[0])
        if self.read.guards or limits != (None, None):
            b.store(panel, 0, const(0, self.dtype, shape), strides)
        at = decompose(batch, self.batch)

        def each(number: int, body: Callable[[_Side], None]) -> None:
            """body(side) for each run that a tile has elements of."""
            run, start, width = self.runs[number], starts[number], shape[number]
            limit = limits[number]
            high = index(width) if limit is None else binary("min", limit, width)
            if not run.outer:
                body(_Side(index(0), high, start, {}))
                return

            def one(q: Node) -> None:
                shift = sub(start, mul(q, run.size))
                side = _Side(index(0), high, shift, decompose(q, run.outer))
                body(side.within(sub(0, shift), sub(run.size, shift)))

            stop = binary("div", add(start, width + run.size - 1), run.size)
            b.loop(binary("div", start, run.size), stop, 1, one)

        def piece(row: _Side, column: _Side) -> None:
            self._copy(panel, strides, at, (row, column), shape)

        each(0, lambda row: each(1, lambda column: piece(row, column)))
        b.wait()
        return self._value(self.operand, b.load(panel, 0, shape, strides))

    def _copy(
        self,
        panel: Memory,
        strides: tuple[int, int],
        batch: dict[Axis, Node],
        sides: tuple[_Side, _Side],
        shape: tuple[int, int],
    ) -> None:
        b, read = self.emission.b, self.read
        zeros = dict.fromkeys((a for run in self.runs for a in run.inner), index(0))
        scope = Tiles(self.emission, {**batch, **sides[0].outer, **sides[1].outer, **zeros})

        def at(value: Affine, rows: Node, columns: Node) -> Node:
            steps = [
                mul(n, run.step(value)) for n, run in zip((rows, columns), self.runs, strict=True)
            ]
            return add(add(scope.position(value).scalar, steps[0]), steps[1])

        for guard in read.guards:
            base = at(guard.value, sides[0].shift, sides[1].shift)
            sides = self._inside(guard, base, sides)
        row, column = sides
        memory, start = self.emission.memory(self.emission.homes[read.root], read.offset)
        source = at(
            read.offset.shift(-start), add(row.low, row.shift), add(column.low, column.shift)
        )
        target = add(mul(row.low, strides[0]), mul(column.low, strides[1]))
        left = [sub(s.high, s.low) for s in sides]
        steps = [run.step(read.offset) for run in self.runs]
        sizes = [min(n, run.size) for n, run in zip(shape, self.runs, strict=True)]
        # The axis along which elements are neighbours comes last.
        first, last = 1 - self.along, self.along
        b.copy(
            b.access(panel, target, (strides[first], strides[last])),
            b.access(memory, source, (steps[first], steps[last]), (left[first], left[last])),
            (sizes[first], sizes[last]),
        )

    def _inside(self, guard: Guard, base: Node, sides: tuple[_Side, _Side]) -> tuple[_Side, _Side]:
        """What of the sides meets a guard, whose value is `base` where the tile begins."""
        row, column = sides
        steps = [run.step(guard.value) for run in self.runs]
        if not any(steps):
            met = binary("and", binary("le", index(guard.lo), base), binary("lt", base, guard.hi))
            return row.within(index(0), where(met, row.high, 0)), column
        step = steps[0] or steps[1]
        if step > 0:
            low, high = sub(guard.lo, base), sub(guard.hi, base)
        else:
            low, high = sub(base, guard.hi - 1), sub(base, guard.lo - 1)
        ends = [
            binary("div", add(binary("max", x, 0), abs(step) - 1), abs(step)) for x in (low, high)
        ]
        if steps[0]:
            return row.within(*ends), column
        return row, column.within(*ends)

    def _value(self, e: Expr, stored: Node) -> Node:
        """The operand, from what is stored."""
        match e:
            case Select():
                return self._value(e.value, stored)
            case Apply():
                return applied(e.node, tuple(self._value(a, stored) for a in e.args))
        return cast(stored, compute_dtype(e.dtype))


def _only_read(e: Expr) -> Read | None:
    """The one read that an operand is, but for casts, and for edges that are zero as what a read
    leaves out is."""
    if isinstance(e, Select) and not e.fill:
        found = _only_read(e.value)
        return found if found is not None and set(e.guards) <= set(found.guards) else None
    if isinstance(e, Apply) and e.node.op == "cast":
        return _only_read(e.args[0])
    return e if isinstance(e, Read) else None
