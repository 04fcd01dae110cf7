"""All-reduce by levels: add up inside each host, then across hosts, then across groups of hosts,
and hand the results back on the same way.

On each level the vector is shared out among the members, so that all of them work, and across hosts
goes only what must: 2 (h - 1) / h of the vector out of each of h hosts.
"""

from __future__ import annotations

from itertools import groupby
from math import prod

from stack.comm.plan.draft import Draft
from stack.comm.plan.generate.direct import add_up
from stack.comm.plan.generate.levels import Node, nodes, tree_of, widths
from stack.comm.plan.generate.request import Partials, Request, draft
from stack.comm.plan.program import Program


def all_reduce(request: Request) -> Program:
    """For any tree of groups, of unequal sizes too."""
    top = tree_of(request)
    wide = widths(top)
    made = draft("hierarchical", request, prod(wide))
    sums = Partials(made, request.wide)
    groups = nodes(top)
    for node in groups:
        for holders, owner, blocks in _shares(node, wide):
            final = node.level == top.level
            _sum(made, sums, holders, owner, blocks, final)
    for node in reversed(groups):
        for holders, owner, blocks in _shares(node, wide):
            done = [made.result(owner, b) for b in blocks]
            for other in _from(owner, holders)[1:]:
                made.send(owner, done, other, [made.result(other, b) for b in blocks])
    return made.program()


Share = tuple[tuple[int, ...], int, list[int]]
"""The ranks that hold the sums of a node's children, the one that adds them up, and the blocks."""


def _shares(node: Node, wide: list[int]) -> list[Share]:
    """Who does what in a group; adjacent blocks in one share where the ranks are the same."""

    def who(block: int) -> tuple[tuple[int, ...], int]:
        return tuple(holder(c, block, wide) for c in node.children), holder(node, block, wide)

    return [(*key, list(blocks)) for key, blocks in groupby(range(prod(wide)), who)]


def holder(node: Node, block: int, wide: list[int]) -> int:
    """The rank that holds the sum of a block over a node.

    A block's number has one digit a level, that of level 1 first; on each level the digits are
    shared out evenly among the children.
    """
    if node.level == 0:
        return node.rank
    width = wide[node.level - 1]
    digit = block // prod(wide[node.level :]) % width
    return holder(node.children[digit * len(node.children) // width], block, wide)


def _from(first: int, ranks: tuple[int, ...]) -> list[int]:
    """The ranks in turn, from this one on, so that not all begin with the same."""
    at = ranks.index(first)
    return [*ranks[at:], *ranks[:at]]


def _sum(
    made: Draft,
    sums: Partials,
    holders: tuple[int, ...],
    owner: int,
    blocks: list[int],
    final: bool,
) -> None:
    if len(holders) == 1 and not final:
        return
    sources = [(rank, sums.at(rank, blocks)) for rank in _from(owner, holders)]
    room = sums.room(owner, blocks)
    put = sums.room(owner, blocks, final)
    add_up(made, owner, sources, room, put, final)
