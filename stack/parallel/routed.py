"""Rows that travel to the ranks that have the matrices of their groups, and back: as many as there
are, which is data.

They may travel in several parts, each by calls of its own: while one is on its way another one is
multiplied (FasterMoE, He et al. 2022). Which rows are in which part does not change what a row is
multiplied by; sums over rows add up the rows of one part behind those of another one.
"""

from __future__ import annotations

import math
from itertools import pairwise

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node
from stack import ops as g
from stack.parallel.convert import Line
from stack.parallel.shadowed import Shadowed, down


@dataclass(frozen=True, slots=True)
class Route:
    """Where the rows of a rank go, or a part of them, neighbours. Of each rank it may get as many
    rows as that has: those are places, of which the first ones are used, row behind row by their
    groups.

    `place` i64[rows] has the place of each own row among those that it sends, rank by rank, -1 for
    one whose group there is not, and `given` i64[places] the row at each place, of all rows of the
    rank, -1 for none; `sent` and `came` i64[ranks] count rows; `groups` i64[places] has the group,
    of the rank's own, of what came to each place, and their number for none. Shadowed groups follow
    the rank's own ones.
    """

    line: Line
    place: Node
    given: Node
    sent: Node
    came: Node
    groups: Node
    shadowed: Shadowed | None

    @staticmethod
    def of(
        groups: Node, begin: int, end: int, count: int, line: Line, shadowed: Shadowed | None
    ) -> Route:
        """The route of the rows from `begin` to `end` of those of these groups, of which there are
        `count` in all."""
        groups = g.slice_axis(groups, 0, begin, end)
        if shadowed is not None:
            groups = shadowed.as_own(groups)
            count += line.size * line.shadows
        rows, size, each = end - begin, line.size, count // line.size
        table = (rows, count)
        own = down(g.cast(groups, DType.I64), table)
        is_own = g.cast(g.eq(own, g.broadcast(g.arange(count), table)), DType.I64)
        number = g.sub(g.scan("sum", is_own, 0), is_own)
        counted = g.reshape(g.reduce("sum", is_own, 0), (size, each))
        first = g.sub(g.scan("sum", counted, 1), counted)
        starts = g.mul(g.arange(size), g.full((size,), rows, DType.I64))
        first = g.add(first, down(starts, (size, each)))
        at = g.add(g.broadcast(g.reshape(first, (count,)), table), number)
        one_more = g.reduce("sum", g.mul(is_own, g.add(at, g.full_like(at, 1))), 1)
        place = g.reshape(one_more, (rows,))
        place = g.contiguous(g.sub(place, g.full_like(place, 1)))
        none = g.full((size * rows,), -1, DType.I64)
        numbers = g.add(g.arange(rows), g.full((rows,), begin, DType.I64))
        name = line.name(f"rows of each group of {groups.type}")
        theirs = g.all_to_all(counted, line.group, name)
        places = (size, rows, each)
        ends = g.expand(g.reshape(g.scan("sum", theirs, 1), (size, 1, each)), places)
        here = g.expand(g.reshape(g.arange(rows), (1, rows, 1)), places)
        group = g.reduce("sum", g.cast(g.le(ends, here), DType.I64), 2)
        return Route(
            line,
            place,
            g.scatter("set", none, place, numbers, 0),
            g.reshape(g.reduce("sum", counted, 1), (size,)),
            g.reshape(g.reduce("sum", theirs, 1), (size,)),
            g.contiguous(g.reshape(group, (size * rows,))),
            shadowed,
        )

    @property
    def places(self) -> int:
        return self.groups.shape[0]

    def there(self, x: Node) -> Node:
        """What came, at its place, of the ranks' rows of x; 0 where nothing did."""
        return self._moved(g.gather(x, self.given, 0), self.sent)

    def back(self, y: Node) -> Node:
        """The rank's own rows of this part, of what the ranks have at their places."""
        return g.gather(self._moved(y, self.came), self.place, 0)

    def matrices(self, own: Node) -> Node:
        """The rank's own matrices, one for each group, and behind them those of shadowed groups."""
        return own if self.shadowed is None else self.shadowed.matrices(own)

    def summed(self, sums: Node) -> Node:
        """Of sums over rows of each group, those of shadowed ones behind them, the rank's own ones,
        with what all ranks have."""
        return sums if self.shadowed is None else self.shadowed.summed(sums)

    def _moved(self, x: Node, rows: Node) -> Node:
        width = math.prod(x.shape[1:])
        parts = g.reshape(x, (self.line.size, x.shape[0] // self.line.size, *x.shape[1:]))
        elements = g.mul(rows, g.full_like(rows, width))
        name = self.line.name(f"rows of {x.type}")
        return g.reshape(g.all_to_all_v(parts, elements, self.line.group, name), x.shape)


def routes(groups: Node, count: int, line: Line) -> tuple[Route, ...]:
    """The routes of a rank's rows of these groups, of which there are `count` in all: `line.parts`,
    and at most one for each row. Raises InvalidCall for more shadowed groups than there are."""
    shadowed = Shadowed.of(groups, count, line) if line.shadows else None
    rows = groups.shape[0]
    parts = min(line.parts, rows)
    ends = [rows * i // parts for i in range(parts + 1)]
    return tuple(Route.of(groups, *pair, count, line, shadowed) for pair in pairwise(ends))
