"""Groups whose rows stay on their ranks, those with most rows in all: their matrices travel
instead, so that no rank waits for the one that has them (FasterMoE, He et al. 2022). Which groups
these are is data.

The root of a broadcast is none. So an owner gives each rank a part of the matrices, and all gather
the parts; sums of gradients go the same way back. Of S bytes among n ranks an owner sends
2 (n - 1) / n * S, as for a sum of all ranks, and a rank that owns none half of that.
"""

from __future__ import annotations

import math
from dataclasses import field

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.tile.node import Node
from stack import ops as g
from stack.parallel.convert import Line, Step


@dataclass(frozen=True, slots=True)
class Shadowed:
    """`groups` i64[shadows] has the shadowed groups, as all ranks call them, and `owner` the rank
    that has each; `at` has its place where each rank has `shadows` places, in which those that it
    owns come first. `own` has those of this rank, as that calls them, then -1. Ranks have `each`
    groups."""

    line: Line
    each: int
    groups: Node
    owner: Node
    at: Node
    own: Node
    sent: dict[Node, Node] = field(default_factory=dict)
    """Matrices of shadowed groups, by the rank's own ones."""

    @staticmethod
    def of(groups: Node, count: int, line: Line) -> Shadowed:
        """Of `count` groups the `line.shadows` that have most of these rows on all ranks. Raises
        InvalidCall for more than there are."""
        if line.shadows > count:
            raise InvalidCall(
                f"`shadows {line.shadows}` are more than the {count} experts of a mixture; write "
                f"{count} or fewer"
            )
        most, each, shadows = _with_most(groups, count, line), count // line.size, line.shadows
        owner = _owner(most, each, line.size)
        square, numbers = (shadows, shadows), g.arange(shadows)
        is_of_same = g.eq(g.broadcast(owner, square), down(owner, square))
        is_before = g.lt(g.broadcast(numbers, square), down(numbers, square))
        number = _count(g.where(is_before, is_of_same, g.full_like(is_of_same, False)))
        at = g.contiguous(g.add(g.mul(owner, g.full_like(owner, shadows)), number))
        is_own = g.eq(owner, g.broadcast(line.rank, owner.shape))
        none = g.full_like(number, -1)
        first = g.mul(line.rank, g.const(each, DType.I64))
        here = g.sub(most, g.broadcast(first, most.shape))
        place = g.contiguous(g.where(is_own, number, none))
        own = g.scatter("set", none, place, here, 0)
        return Shadowed(line, each, most, owner, at, own)

    def as_own(self, groups: Node) -> Node:
        """i64, the groups of rows, where each rank has the shadowed ones behind its own."""
        line, shadows, rows = self.line, self.groups.shape[0], groups.shape[0]
        groups = g.cast(groups, DType.I64)
        owner = _owner(groups, self.each, line.size)
        moved = g.add(groups, g.mul(owner, g.full_like(owner, shadows)))
        picked = (rows, shadows)
        are = g.eq(down(groups, picked), g.broadcast(self.groups, picked))
        number = g.broadcast(g.add(g.arange(shadows), g.full((shadows,), 1, DType.I64)), picked)
        one_more = g.reduce("sum", g.mul(g.cast(are, DType.I64), number), 1)
        one_more = g.reshape(one_more, (rows,))
        begin = g.mul(line.rank, g.const(self.each + shadows, DType.I64))
        before = g.add(begin, g.const(self.each - 1, DType.I64))
        here = g.add(one_more, g.broadcast(before, (rows,)))
        return g.where(g.lt(g.full((rows,), 0, DType.I64), one_more), here, moved)

    def matrices(self, own: Node) -> Node:
        """The rank's own matrices and behind them those of shadowed groups, sent once for both ways
        to read them."""
        base = _turned(own)
        if base not in self.sent:
            self.sent[base] = self._from_owners(base)
        every = self.sent[base]
        return g.concat([own, every if own is base else g.permute(every, own["perm"])], 0)

    def summed(self, sums: Node) -> Node:
        """Sums for the rank's own groups, with what all ranks have for shadowed ones, of sums that
        have these behind them."""
        own = g.slice_axis(sums, 0, 0, self.each)
        last = g.slice_axis(sums, 0, self.each, sums.shape[0])
        return g.scatter("sum", own, self.own, self._to_owners(last), 0)

    def _from_owners(self, base: Node) -> Node:
        line = self.line
        parts = _in_parts(g.gather(base, self.own, 0), line.size)
        name = line.name(f"parts of shadowed matrices of {base.type}")
        is_own = g.eq(self.owner, g.broadcast(line.rank, self.owner.shape))
        table = (line.size, self.owner.shape[0])
        sent = _elements(g.broadcast(is_own, table), parts)
        came = g.all_to_all_v(parts, sent, line.group, name)
        places = g.reshape(came, (parts.shape[0] * parts.shape[1], parts.shape[2]))
        name = line.name(f"shadowed matrices of {base.type}")
        part = g.gather(places, self.at, 0)
        return _of_parts(g.all_gather(part, line.size, line.group, name), base.shape[1:])

    def _to_owners(self, last: Node) -> Node:
        """What this rank owns, in its order, of the sum of the ranks' values."""
        line, shadows = self.line, last.shape[0]
        name = line.name(f"shadowed sums of {last.type}")
        part = g.reduce_scatter("sum", _in_parts(last, line.size), line.group, name)
        none = g.full((line.size * shadows,), -1, DType.I64)
        given = g.scatter("set", none, self.at, g.arange(shadows), 0)
        parts = g.reshape(g.gather(part, given, 0), (line.size, shadows, part.shape[1]))
        name = line.name(f"parts of shadowed sums of {last.type}")
        table = (line.size, shadows)
        are_theirs = g.eq(g.broadcast(self.owner, table), down(g.arange(line.size), table))
        came = g.all_to_all_v(parts, _elements(are_theirs, parts), line.group, name)
        return _of_parts(came, last.shape[1:])


def shadow_steps(n: Node, shadows: int, ranks: int) -> tuple[Step, ...]:
    """What is exchanged, where rows travel, for the matrices of so many shadowed groups that a node
    multiplies by, or for its sums over their rows, with the bytes that a rank sends if all own as
    many."""
    if not shadows or n.op not in ("grouped_matmul", "grouped_outer"):
        return ()
    of = n.srcs[1] if n.op == "grouped_matmul" else n
    if of is not n and _turned(of) is not of:
        return ()  # they are there, for the product with them as they are
    part = -(-math.prod(of.shape[1:]) // ranks) * of.dtype.nbytes * shadows
    together = "reduce_scatter" if of is n else "all_gather"
    return ("all_to_all_v", part * (ranks - 1) // ranks), (together, part * (ranks - 1))


def down(line: Node, table: tuple[int, int]) -> Node:
    """A line in every column of a table."""
    return g.expand(g.reshape(line, (table[0], 1)), table)


def _owner(groups: Node, each: int, ranks: int) -> Node:
    """i64, the rank that has each of these groups, where each rank has so many."""
    table = (groups.shape[0], ranks)
    firsts = g.mul(g.arange(ranks), g.full((ranks,), each, DType.I64))
    upto = _count(g.le(g.broadcast(firsts, table), down(groups, table)))
    return g.sub(upto, g.full_like(upto, 1))


def _count(are: Node) -> Node:
    """i64[rows], how many of each row of a table are."""
    return g.reshape(g.reduce("sum", g.cast(are, DType.I64), 1), are.shape[:1])


def _turned(matrices: Node) -> Node:
    """What they are a turned view of, or they themselves."""
    is_turned = matrices.op == "permute" and matrices["perm"][0] == 0
    return matrices.srcs[0] if is_turned else matrices


def _in_parts(every: Node, ranks: int) -> Node:
    """[groups, ...] as [ranks, groups, part]; 0 behind what the ranks cannot divide."""
    groups, size = every.shape[0], math.prod(every.shape[1:])
    part = -(-size // ranks)
    flat = g.pad(g.reshape(every, (groups, size)), (0, 0), (0, ranks * part - size))
    return g.contiguous(g.permute(g.reshape(flat, (groups, ranks, part)), (1, 0, 2)))


def _of_parts(parts: Node, shape: tuple[int, ...]) -> Node:
    """[groups, *shape] of [ranks, groups, part]."""
    ranks, groups, part = parts.shape
    flat = g.reshape(g.permute(parts, (1, 0, 2)), (groups, ranks * part))
    return g.reshape(g.slice_axis(flat, 1, 0, math.prod(shape)), (groups, *shape))


def _elements(are: Node, parts: Node) -> Node:
    """i64[ranks], how many elements go to each rank, of the parts of those groups that are in its
    row of a table."""
    count = _count(are)
    return g.contiguous(g.mul(count, g.full_like(count, parts.shape[2])))


def _with_most(groups: Node, count: int, line: Line) -> Node:
    """i64[shadows], the groups that have most rows on all ranks, of equal ones the first."""
    table = (groups.shape[0], count)
    every = g.broadcast(g.arange(count), table)
    own = down(g.cast(groups, DType.I64), table)
    counted = g.reduce("sum", g.cast(g.eq(own, every), DType.I64), 0)
    name = line.name(f"rows in all of each group of {groups.type}")
    total = g.all_reduce("sum", g.reshape(counted, (count,)), line.group, name)
    # What is compared differs between groups.
    square = (count, count)
    fewer = g.sub(g.mul(total, g.full_like(total, count)), g.arange(count))
    place = _count(g.lt(down(fewer, square), g.broadcast(fewer, square)))
    picked = (line.shadows, count)
    wanted = g.eq(g.broadcast(place, picked), down(g.arange(line.shadows), picked))
    numbers = g.mul(g.cast(wanted, DType.I64), g.broadcast(g.arange(count), picked))
    return g.contiguous(g.reshape(g.reduce("sum", numbers, 1), (line.shadows,)))
