"""Rows that travel to the ranks that have the matrices of their groups, and back: as many as there
are, which is data.

Rows of the groups that have most rows in all may stay, and their matrices travel instead: they are
shadowed (FasterMoE, He et al. 2022). Which groups these are is data, too.
"""

from __future__ import annotations

import math
from dataclasses import field

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.tile.node import Node
from stack import ops as g
from stack.parallel.convert import Line


@dataclass(frozen=True, slots=True)
class Route:
    """Where the rows of a rank go. Of each rank it may get as many rows as that has: those are
    places, of which the first ones are used, row behind row by their groups.

    `place` i64[rows] has the place of each own row among those that it sends, rank by rank, -1 for
    one whose group there is not, and `given` i64[places] the row at each place, -1 for none; `sent`
    and `came` i64[ranks] count rows; `groups` i64[places] has the group, of the rank's own, of what
    came to each place, and their number for none. Shadowed groups follow the rank's own ones:
    `shadowed` i64[shadows] has what all ranks call them, None where there are none.
    """

    line: Line
    place: Node
    given: Node
    sent: Node
    came: Node
    groups: Node
    shadowed: Node | None = None
    sent_matrices: dict[Node, Node] = field(default_factory=dict)
    """Those of shadowed groups, by the rank's own ones."""

    @staticmethod
    def of(groups: Node, count: int, line: Line) -> Route:
        """The route of rows of these groups, of which there are `count` in all. Raises InvalidCall
        for more shadowed ones than these."""
        shadowed = None
        if line.shadows > count:
            raise InvalidCall(
                f"`shadows {line.shadows}` are more than the {count} experts of a mixture; write "
                f"{count} or fewer"
            )
        if line.shadows:
            shadowed = _with_most(groups, count, line)
            groups = _as_own(groups, count, shadowed, line)
            count += line.size * line.shadows
        rows, size, each = groups.shape[0], line.size, count // line.size
        table = (rows, count)
        own = g.expand(g.reshape(g.cast(groups, DType.I64), (rows, 1)), table)
        is_own = g.cast(g.eq(own, g.broadcast(g.arange(count), table)), DType.I64)
        number = g.sub(g.scan("sum", is_own, 0), is_own)
        counted = g.reshape(g.reduce("sum", is_own, 0), (size, each))
        first = g.sub(g.scan("sum", counted, 1), counted)
        begin = g.mul(g.arange(size), g.full((size,), rows, DType.I64))
        first = g.add(first, g.expand(g.reshape(begin, (size, 1)), first.shape))
        at = g.add(g.broadcast(g.reshape(first, (count,)), table), number)
        one_more = g.reduce("sum", g.mul(is_own, g.add(at, g.full_like(at, 1))), 1)
        place = g.reshape(one_more, (rows,))
        place = g.contiguous(g.sub(place, g.full_like(place, 1)))
        none = g.full((size * rows,), -1, DType.I64)
        name = line.name(f"rows of each group of {groups.type}")
        theirs = g.all_to_all(counted, line.group, name)
        places = (size, rows, each)
        ends = g.expand(g.reshape(g.scan("sum", theirs, 1), (size, 1, each)), places)
        here = g.expand(g.reshape(g.arange(rows), (1, rows, 1)), places)
        group = g.reduce("sum", g.cast(g.le(ends, here), DType.I64), 2)
        return Route(
            line,
            place,
            g.scatter("set", none, place, g.arange(rows), 0),
            g.reshape(g.reduce("sum", counted, 1), (size,)),
            g.reshape(g.reduce("sum", theirs, 1), (size,)),
            g.contiguous(g.reshape(group, (size * rows,))),
            shadowed,
        )

    def there(self, x: Node) -> Node:
        """What came, at its place, of the ranks' rows of x; 0 where nothing did."""
        return self._moved(g.gather(x, self.given, 0), self.sent)

    def back(self, y: Node) -> Node:
        """The own rows, of what the ranks have at their places."""
        return g.gather(self._moved(y, self.came), self.place, 0)

    def _moved(self, x: Node, rows: Node) -> Node:
        width = math.prod(x.shape[1:])
        parts = g.reshape(x, (self.line.size, x.shape[0] // self.line.size, *x.shape[1:]))
        elements = g.mul(rows, g.full_like(rows, width))
        name = self.line.name(f"rows of {x.type}")
        return g.reshape(g.all_to_all_v(parts, elements, self.line.group, name), x.shape)

    # shadowed groups

    def matrices(self, own: Node) -> Node:
        """The rank's own matrices, one for each group, and behind them those of shadowed groups."""
        if self.shadowed is None:
            return own
        turned = own.op == "permute" and own["perm"][0] == 0
        base = own.srcs[0] if turned else own  # sent once for both ways to read it
        if base not in self.sent_matrices:
            name = self.line.name(f"shadowed matrices of {base.type}")
            mine = g.gather(base, self._here(own.shape[0]), 0)
            self.sent_matrices[base] = g.all_reduce("sum", mine, self.line.group, name)
        every = self.sent_matrices[base]
        return g.concat([own, g.permute(every, own["perm"]) if turned else every], 0)

    def summed(self, sums: Node) -> Node:
        """Of sums over rows of each group, those of shadowed ones behind them, the rank's own ones,
        with what all ranks have."""
        if self.shadowed is None:
            return sums
        shadows = self.shadowed.shape[0]
        own = g.slice_axis(sums, 0, 0, sums.shape[0] - shadows)
        last = g.slice_axis(sums, 0, sums.shape[0] - shadows, sums.shape[0])
        name = self.line.name(f"shadowed sums of {last.type}")
        every = g.all_reduce("sum", last, self.line.group, name)
        return g.scatter("sum", own, self._here(own.shape[0]), every, 0)

    def _here(self, each: int) -> Node:
        """i64[shadows], the shadowed groups as the rank's own; out of range where they are not."""
        assert self.shadowed is not None
        first = g.mul(self.line.rank, g.const(each, DType.I64))
        return g.sub(self.shadowed, g.broadcast(first, self.shadowed.shape))


def _with_most(groups: Node, count: int, line: Line) -> Node:
    """i64[shadows], the groups that have most rows on all ranks, of equal ones the first."""
    table = (groups.shape[0], count)
    every = g.broadcast(g.arange(count), table)
    own = g.expand(g.reshape(g.cast(groups, DType.I64), (table[0], 1)), table)
    counted = g.reduce("sum", g.cast(g.eq(own, every), DType.I64), 0)
    name = line.name(f"rows in all of each group of {groups.type}")
    total = g.all_reduce("sum", g.reshape(counted, (count,)), line.group, name)
    # What is compared differs between groups.
    square = (count, count)
    fewer = g.sub(g.mul(total, g.full_like(total, count)), g.arange(count))
    above = g.expand(g.reshape(fewer, (1, count)), square)
    below = g.expand(g.reshape(fewer, (count, 1)), square)
    place = g.reduce("sum", g.cast(g.lt(below, above), DType.I64), 1)
    picked = (line.shadows, count)
    at = g.expand(g.reshape(place, (1, count)), picked)
    wanted = g.expand(g.reshape(g.arange(line.shadows), (line.shadows, 1)), picked)
    numbers = g.mul(g.cast(g.eq(at, wanted), DType.I64), g.broadcast(g.arange(count), picked))
    return g.contiguous(g.reshape(g.reduce("sum", numbers, 1), (line.shadows,)))


def _as_own(groups: Node, count: int, shadowed: Node, line: Line) -> Node:
    """i64, the rows' groups, where each rank has the shadowed ones behind its own."""
    rows, shadows, each = groups.shape[0], line.shadows, count // line.size
    groups = g.cast(groups, DType.I64)
    table = (rows, line.size)
    begins = g.mul(g.arange(line.size), g.full((line.size,), each, DType.I64))
    own = g.expand(g.reshape(groups, (rows, 1)), table)
    ranks = g.reduce("sum", g.cast(g.le(g.broadcast(begins, table), own), DType.I64), 1)
    owner = g.sub(g.reshape(ranks, (rows,)), g.full((rows,), 1, DType.I64))
    moved = g.add(groups, g.mul(owner, g.full_like(owner, shadows)))
    picked = (rows, shadows)
    are = g.eq(g.expand(g.reshape(groups, (rows, 1)), picked), g.broadcast(shadowed, picked))
    number = g.broadcast(g.add(g.arange(shadows), g.full((shadows,), 1, DType.I64)), picked)
    one_more = g.reduce("sum", g.mul(g.cast(are, DType.I64), number), 1)
    one_more = g.reshape(one_more, (rows,))
    begin = g.mul(line.rank, g.const(each + shadows, DType.I64))
    before = g.add(begin, g.const(each - 1, DType.I64))
    here = g.add(one_more, g.broadcast(before, (rows,)))
    return g.where(g.lt(g.full((rows,), 0, DType.I64), one_more), here, moved)
