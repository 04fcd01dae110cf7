"""Binomial trees: from and to a root in ceil(log2(n)) turns."""

from __future__ import annotations

from collections.abc import Iterator

from stack.comm.plan.draft import Chunk, Draft
from stack.comm.plan.generate.request import Partials, Request, draft
from stack.comm.plan.program import Program

Edge = tuple[int, int, list[int]]
"""Parent, child, and the ranks of the child's subtree, all counted from the root."""


def _edges(size: int) -> Iterator[Edge]:
    """The edges of the tree, those next to the root last."""
    distance = 1
    while distance < size:
        for child in range(distance, size, 2 * distance):
            yield child - distance, child, list(range(child, min(child + distance, size)))
        distance *= 2


def _ranks(request: Request) -> list[Edge]:
    """The edges with the ranks of the group."""

    def real(number: int) -> int:
        return (number + request.root) % request.size

    edges = _edges(request.size)
    return [(real(p), real(c), [real(r) for r in below]) for p, c, below in edges]


def broadcast(request: Request) -> Program:
    """The vector goes down, part after part."""
    made = draft("binomial", request, request.cut)
    for block in range(request.cut):
        made.copy(
            request.root, [made.given(request.root, block)], [made.result(request.root, block)]
        )
        for parent, child, _ in reversed(_ranks(request)):
            root = parent == request.root
            taken = made.given(parent, block) if root else made.result(parent, block)
            made.send(parent, [taken], child, [made.result(child, block)])
    return made.program()


def reduce(request: Request) -> Program:
    """Sums go up, part after part."""
    made = draft("binomial", request, request.cut)
    sums = Partials(made, request.wide)
    edges = _ranks(request)
    for block in range(request.cut):
        for parent, child, _ in edges:
            final = (parent, child) == edges[-1][:2]
            taken, own = sums.at(child, [block]), sums.at(parent, [block])
            put = sums.room(parent, [block], final)
            made.send_reduce(child, taken, parent, put, own, final)
    return made.program()


def gather(request: Request) -> Program:
    """Each rank collects what its subtree gives, and hands it up."""
    made = draft("binomial", request, 1)
    root = request.root
    subtrees = {child: below for _, child, below in _ranks(request)}
    at = {rank: _collected(made, rank, below) for rank, below in subtrees.items()}
    made.copy(root, [made.given(root, root)], [made.result(root, root)])
    for parent, child, below in _ranks(request):
        taken = [at[child][b] for b in below]
        put = [made.result(root, b) if parent == root else at[parent][b] for b in below]
        made.send(child, taken, parent, put)
    return made.program()


def _collected(made: Draft, rank: int, below: list[int]) -> dict[int, Chunk]:
    """Where a rank collects its subtree: in scratch memory, unless it is alone."""
    if len(below) == 1:
        return {rank: made.given(rank, rank)}
    at = dict(zip(below, made.scratch(rank, below), strict=True))
    made.copy(rank, [made.given(rank, rank)], [at[rank]])
    return at


def scatter(request: Request) -> Program:
    """Each rank gets what is for its subtree, and hands it down."""
    made = draft("binomial", request, 1)
    root = request.root
    at: dict[int, dict[int, Chunk]] = {root: {b: made.given(root, b) for b in range(request.size)}}
    for parent, child, below in reversed(_ranks(request)):
        alone = len(below) == 1
        put = [made.result(child, child)] if alone else made.scratch(child, below)
        made.send(parent, [at[parent][b] for b in below], child, put)
        at[child] = dict(zip(below, put, strict=True))
    for rank in range(request.size):
        made.copy(rank, [at[rank][rank]], [made.result(rank, rank)])
    return made.program()
