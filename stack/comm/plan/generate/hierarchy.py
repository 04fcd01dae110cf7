"""All-reduce by levels: add up inside each host, then across hosts, then across groups of hosts,
and hand the results back on the same way.

On each level the vector is shared out among the members, so that all of them work, and across hosts
goes only what must: 2 (h - 1) / h of the vector out of each of h hosts.
"""

from __future__ import annotations

from itertools import groupby
from math import prod

from stack.comm.plan.generate.direct import PartialSum, add_in_turns
from stack.comm.plan.generate.levels import Node, nodes, tree_of, widths
from stack.comm.plan.generate.request import Partials, Request, draft
from stack.comm.plan.program import Program


def all_reduce(request: Request) -> Program:
    """For any tree of groups, of unequal sizes too."""
    top = tree_of(request)
    wide = widths(top)
    made = draft("hierarchical", request, prod(wide))
    sums = Partials(made, request.wide)
    levels = [list(level) for _, level in groupby(nodes(top), lambda n: n.level)]
    for level in levels:
        final = level[0].level == top.level
        jobs = []
        for ranks, blocks in (share for node in level for share in _shares(node, wide)):
            if final or len(ranks) > 1:
                parts, room = [sums.at(rank, blocks) for rank in ranks], sums.room(ranks[0], blocks)
                end = sums.room(ranks[0], blocks, final)
                jobs.append(PartialSum(ranks, parts, room, end, final))
        if jobs:
            add_in_turns(made, jobs)
    for level in reversed(levels):
        # The first rank of each share sends the finished sums to the others, in turns.
        every = [share for node in level for share in _shares(node, wide)]
        for turn in range(1, max(len(ranks) for ranks, _ in every)):
            for ranks, blocks in every:
                if turn < len(ranks):
                    done = [made.result(ranks[0], b) for b in blocks]
                    made.send(
                        ranks[0], done, ranks[turn], [made.result(ranks[turn], b) for b in blocks]
                    )
    return made.program()


Share = tuple[list[int], list[int]]
"""The ranks that hold the sums of a node's children, from the one on that adds them up, and the
blocks that these do it for."""


def _shares(node: Node, wide: list[int]) -> list[Share]:
    """Who does what in a group; adjacent blocks in one share where the ranks are the same."""

    def who(block: int) -> list[int]:
        held = [holder(child, block, wide) for child in node.children]
        first = held.index(holder(node, block, wide))
        return [*held[first:], *held[:first]]  # so that not all begin with the same rank

    return [(ranks, list(blocks)) for ranks, blocks in groupby(range(prod(wide)), who)]


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
