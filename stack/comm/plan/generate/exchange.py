"""All-to-all by levels: what a host has for another one goes there in few, long messages.

A block goes inside its host to the rank whose number there is that of its destination, from there
inside its supernode to the host whose number is that of its destination's, and then straight to its
destination. So it crosses each level at most once.
"""

from __future__ import annotations

from stack.comm.plan.draft import Chunk, Draft
from stack.comm.plan.generate.direct import sources
from stack.comm.plan.generate.levels import Node, path, tree_of
from stack.comm.plan.generate.request import Request, draft
from stack.comm.plan.program import Program

Held = list[dict[int, Chunk]]
"""By rank: where the blocks that are there are."""


def all_to_all(request: Request) -> Program:
    """For any tree of groups, of unequal sizes too."""
    top, size = tree_of(request), request.size
    made = draft("hierarchical", request, 1)
    at = sources(made, request)
    for rank in range(size):
        own = rank * size + rank
        made.copy(rank, [at[rank][own]], [made.result(rank, own)])
    routes = {b: _route(top, *divmod(b, size)) for b in range(size * size)}
    for hop in range(top.level):
        bundles: dict[tuple[int, int], list[int]] = {}
        for block, ranks in routes.items():
            bundles.setdefault((ranks[hop], ranks[hop + 1]), []).append(block)
        for (source, dest), blocks in sorted(bundles.items()):
            if source != dest:
                _carry(made, at, source, dest, sorted(blocks, key=lambda b: (b % size, b)))
    return made.program()


def _route(top: Node, source: int, dest: int) -> list[int]:
    """Where a block is at first and after the hop of each level; it may stay."""
    ranks = [source]
    groups, to = path(top, source)[0], path(top, dest)[1]
    for group in groups:
        # The rank in a group that has the numbers, from level 1 up, of a rank of another group
        node = group
        while node.level:
            node = node.children[to[node.level - 1] % len(node.children)]
        ranks.append(node.rank)
    return ranks


def _carry(made: Draft, at: Held, source: int, dest: int, blocks: list[int]) -> None:
    """Move blocks in one message, those that have arrived to OUTPUT."""
    ends = {b: made.result(dest, b) for b in blocks if b % made.size == dest}
    kept = [b for b in blocks if b not in ends]
    at[dest].update(zip(kept, made.scratch(dest, kept), strict=True))
    put = [ends[b] if b in ends else at[dest][b] for b in blocks]
    made.send_packed(source, [at[source][b] for b in blocks], dest, put)
