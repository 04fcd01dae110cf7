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
    ranks = _from_root(request)
    for block in range(request.cut):
        given = made.given(request.root, block)
        made.copy(request.root, [given], [made.result(request.root, block)])
        for rank, after in pairwise(ranks):
            taken = given if rank == request.root else made.result(rank, block)
            made.send(rank, [taken], after, [made.result(after, block)])
    return made.program()


def reduce(request: Request) -> Program:
    """Up a chain of ranks to the root, part after part."""
    made = draft("chain", request, request.cut)
    ranks, sums = _from_root(request)[::-1], Partials(made, request.wide)
    for block in range(request.cut):
        for rank, after in pairwise(ranks):
            final = after == request.root
            taken, own = sums.at(rank, [block]), sums.at(after, [block])
            made.send_reduce(rank, taken, after, sums.room(after, [block], final), own, final)
    return made.program()


def _from_root(request: Request) -> list[int]:
    return [(request.root + i) % request.size for i in range(request.size)]


def _blocks(group: int, request: Request) -> range:
    """The blocks of the part that ends up on a rank, or comes from it."""
    first = group % request.size * request.cut
    return range(first, first + request.cut)


def _reduce(made: Draft, request: Request) -> None:
    size, sums = request.size, Partials(made, request.wide)
    for turn in range(size - 1):
        final = turn == size - 2
        for rank in range(size):
            after = (rank + 1) % size
            for block in _blocks(rank - turn - 1, request):
                taken, own = sums.at(rank, [block]), sums.at(after, [block])
                put = sums.room(after, [block], final)
                made.send_reduce(rank, taken, after, put, own, final)


def _gather(made: Draft, request: Request) -> None:
    size = request.size
    for turn in range(size - 1):
        for rank in range(size):
            after = (rank + 1) % size
            for b in _blocks(rank - turn, request):
                made.send(rank, [made.result(rank, b)], after, [made.result(after, b)])
