"""Ring: each rank hands to the next one, so that every link carries the same all the time.

With n ranks, reduce-scatter and all-gather move (n - 1) / n of the vector out of each rank in n - 1
turns, all-reduce twice that, the least that is possible (Patarasuk and Yuan, 2009). Broadcast and
reduce go along the ring once, from the root or to it: a chain.
"""

from __future__ import annotations

from itertools import pairwise

from stack.comm.plan.draft import Draft
from stack.comm.plan.generate.request import Partials, Request, draft
from stack.comm.plan.program import Program


def reduce_scatter(request: Request) -> Program:
    """n - 1 turns; each part of a sum goes once around."""
    made = draft("ring", request, request.cut)
    _reduce(made, request)
    return made.program()


def all_gather(request: Request) -> Program:
    """n - 1 turns; each contribution goes once around."""
    made = draft("ring", request, request.cut)
    for rank in range(request.size):
        for block in _blocks(rank, request):
            made.copy(rank, [made.given(rank, block)], [made.result(rank, block)])
    _gather(made, request)
    return made.program()


def all_reduce(request: Request) -> Program:
    """Reduce-scatter, then all-gather, of n parts of the vector."""
    made = draft("ring", request, request.size * request.cut)
    _reduce(made, request)
    _gather(made, request)
    return made.program()


def broadcast(request: Request) -> Program:
    """Down a chain of ranks, part after part: with many parts the vector leaves each rank once."""
    made = draft("chain", request, request.cut)
    for block in range(request.cut):
        given = made.given(request.root, block)
        made.copy(request.root, [given], [made.result(request.root, block)])
        for rank, after in pairwise(_ring(request, request.root)):
            taken = given if rank == request.root else made.result(rank, block)
            made.send(rank, [taken], after, [made.result(after, block)])
    return made.program()


def reduce(request: Request) -> Program:
    """Up a chain of ranks to the root, part after part."""
    made = draft("chain", request, request.cut)
    ranks, sums = _ring(request, request.root)[::-1], Partials(made, request.wide)
    for block in range(request.cut):
        for rank, after in pairwise(ranks):
            final = after == request.root
            taken, own = sums.at(rank, [block]), sums.at(after, [block])
            made.send_reduce(rank, taken, after, sums.room(after, [block], final), own, final)
    return made.program()


def _ring(request: Request, first: int = 0) -> list[int]:
    """The ranks in the order of the ring, from this one on: those of a host stand together, so that
    the ring enters each host once."""
    places = request.places or ((),) * request.size
    ranks = sorted(range(request.size), key=lambda r: (r - first) % request.size)
    near = places[first]  # what is near it comes before what is far from it
    hosts = sorted(set(places), key=lambda p: ([a != b for a, b in zip(p, near, strict=True)], p))
    return [rank for host in hosts for rank in ranks if places[rank] == host]


def _blocks(rank: int, request: Request) -> range:
    """The blocks of the part that ends up on a rank, or comes from it."""
    return range(rank * request.cut, (rank + 1) * request.cut)


def _reduce(made: Draft, request: Request) -> None:
    size, ring, sums = request.size, _ring(request), Partials(made, request.wide)
    for turn in range(size - 1):
        final = turn == size - 2
        for at, rank in enumerate(ring):
            after = ring[(at + 1) % size]
            for block in _blocks(ring[at - turn - 1], request):
                taken, own = sums.at(rank, [block]), sums.at(after, [block])
                put = sums.room(after, [block], final)
                made.send_reduce(rank, taken, after, put, own, final)


def _gather(made: Draft, request: Request) -> None:
    size, ring = request.size, _ring(request)
    for turn in range(size - 1):
        for at, rank in enumerate(ring):
            after = ring[(at + 1) % size]
            for b in _blocks(ring[at - turn], request):
                made.send(rank, [made.result(rank, b)], after, [made.result(after, b)])
