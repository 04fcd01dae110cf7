"""Recursive doubling: in turn k ranks at distance 2^k exchange all that they have. Few turns, for
small messages."""

from __future__ import annotations

from stack.comm.plan.draft import Chunk, Draft
from stack.comm.plan.generate.fold import Fold
from stack.comm.plan.generate.request import Request, draft
from stack.comm.plan.program import Program


def all_reduce(request: Request) -> Program:
    """The whole vector goes out log2(n) times, and twice more for ranks beyond a power of two.

    Sums alternate between two chunks of scratch memory, since a sum is still sent while the next
    one is written. So they are always wide.
    """
    made, fold = draft("recursive-doubling", request, 1), Fold(request.size)
    at = {rank: made.given(rank, 0) for rank in range(request.size)}
    rooms = {rank: made.scratch(rank, [0, 0]) for rank in map(fold.rank, range(fold.core))}
    for giver, worker in fold.pairs():
        room = rooms[worker][1]
        made.send_reduce(giver, [at[giver]], worker, [room], [at[worker]])
        at[worker] = room
    for turn, distance in enumerate(fold.distances()):
        final = 2 * distance == fold.core
        next_at = {r: _next(made, r, at[r], rooms[r][turn % 2], final) for r in rooms}
        for member in range(fold.core):
            rank, other = fold.rank(member), fold.rank(member ^ distance)
            made.send_reduce(rank, [at[rank]], other, [next_at[other]], [at[other]], final)
        at.update(next_at)
    for rank in rooms:
        made.copy(rank, [at[rank]], [made.result(rank, 0)])
    for giver, worker in fold.pairs():
        made.send(worker, [made.result(worker, 0)], giver, [made.result(giver, 0)])
    return made.program()


def _next(made: Draft, rank: int, now: Chunk, room: Chunk, final: bool) -> Chunk:
    """Where the next sum goes: to OUTPUT at last, unless that is still being sent."""
    result = made.result(rank, 0)
    return result if final and not made.same(rank, now, result) else room


def all_gather(request: Request) -> Program:
    """(n - 1) / n of the result goes out of each rank in log2(n) turns, for powers of two."""
    made, fold = draft("recursive-doubling", request, 1), Fold(request.size)
    for rank in range(request.size):
        made.copy(rank, [made.given(rank, rank)], [made.result(rank, rank)])
    for giver, worker in fold.pairs():
        move(made, giver, worker, [giver])
    double(made, fold)
    for giver, worker in fold.pairs():
        move(made, worker, giver, [b for b in range(request.size) if b != giver])
    return made.program()


def double(made: Draft, fold: Fold) -> None:
    """Members, each with the blocks of its ranks in OUTPUT, get those of all."""
    for distance in fold.distances():
        for member in range(fold.core):
            first = member // distance * distance
            held = fold.ranks(first, first + distance)
            move(made, fold.rank(member), fold.rank(member ^ distance), held)


def move(made: Draft, source: int, dest: int, blocks: list[int]) -> None:
    """Finished blocks go from OUTPUT to OUTPUT."""
    taken = [made.result(source, b) for b in blocks]
    made.send(source, taken, dest, [made.result(dest, b) for b in blocks])
