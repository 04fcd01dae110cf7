"""Recursive halving: ranks exchange halves, then quarters, and so on, and each ends with its share
of the sum; doubled again it is an all-reduce with few turns and few bytes (Rabenseifner, 2004)."""

from __future__ import annotations

from stack.comm.plan.draft import Draft
from stack.comm.plan.generate.doubling import move
from stack.comm.plan.generate.fold import Fold
from stack.comm.plan.generate.request import Partials, Request, draft
from stack.comm.plan.program import Program


def all_reduce(request: Request) -> Program:
    """2 (p - 1) / p of the vector in 2 log2(p) turns among p ranks, a power of two; ranks beyond it
    send the vector once and get it once."""
    fold = Fold(request.size)
    made = draft("halving-doubling", request, fold.core)
    _halve(made, request, fold, Fold(fold.core))
    for distance in fold.distances():
        for member in range(fold.core):
            first = member // distance * distance
            blocks = list(range(first, first + distance))
            move(made, fold.rank(member), fold.rank(member ^ distance), blocks)
    for giver, worker in fold.pairs():
        move(made, worker, giver, list(range(fold.core)))
    return made.program()


def reduce_scatter(request: Request) -> Program:
    """(p - 1) / p of the input in log2(p) turns among p ranks, a power of two; ranks beyond it send
    all of their input."""
    fold = Fold(request.size)
    made = draft("halving", request, 1)
    sums = _halve(made, request, fold, fold)
    for giver, worker in fold.pairs():
        made.send(worker, sums.at(worker, [giver]), giver, [made.result(giver, giver)])
    return made.program()


def _halve(made: Draft, request: Request, fold: Fold, shares: Fold) -> Partials:
    """Each member ends with the sums of the blocks `shares.ranks(member, member + 1)`."""
    sums = Partials(made, request.wide)
    for giver, worker in fold.pairs():
        _send(made, sums, giver, worker, shares.ranks(0, fold.core), final=False)
    for distance in reversed(fold.distances()):
        for member in range(fold.core):
            other = member ^ distance
            first = other // distance * distance
            sent = shares.ranks(first, first + distance)
            _send(made, sums, fold.rank(member), fold.rank(other), sent, final=distance == 1)
    return sums


def _send(
    made: Draft, sums: Partials, source: int, dest: int, blocks: list[int], final: bool
) -> None:
    taken, own = sums.at(source, blocks), sums.at(dest, blocks)
    made.send_reduce(source, taken, dest, sums.room(dest, blocks, final), own, final)
