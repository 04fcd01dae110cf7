"""Bruck's algorithms: log2(n) turns for any number of ranks, by messages that carry many blocks
(Bruck, Ho, Kipnis, Upfal and Weathersby, 1997)."""

from __future__ import annotations

from stack.comm.plan.draft import Chunk, Draft
from stack.comm.plan.generate.direct import sources
from stack.comm.plan.generate.doubling import move
from stack.comm.plan.generate.request import Request, draft
from stack.comm.plan.program import Program


def all_gather(request: Request) -> Program:
    """In turn k a rank gets from rank + 2^k what that one has: the blocks that follow its own."""
    size = request.size
    made = draft("bruck", request, 1)
    for rank in range(size):
        made.copy(rank, [made.given(rank, rank)], [made.result(rank, rank)])
    distance = 1
    while distance < size:
        for rank in range(size):
            held = [(rank + i) % size for i in range(min(distance, size - distance))]
            move(made, rank, (rank - distance) % size, held)
        distance *= 2
    return made.program()


def all_to_all(request: Request) -> Program:
    """In turn k a block whose way has bit k goes on by 2^k ranks, all of a rank in one message.

    A block is sent once for each bit of its way, about log2(n) / 2 times.
    """
    size = request.size
    made = draft("bruck", request, 1)
    held = sources(made, request)
    at: dict[tuple[int, int], Chunk] = {}
    for rank in range(size):
        at.update(((rank, way), held[rank][_block(rank, way, size)]) for way in range(size))
        made.copy(rank, [at[rank, 0]], [made.result(rank, _block(rank, 0, size))])
    distance = 1
    while distance < size:
        for rank in range(size):
            _send_on(made, at, rank, distance)
        distance *= 2
    return made.program()


def _block(origin: int, way: int, size: int) -> int:
    return origin * size + (origin + way) % size


def _send_on(made: Draft, at: dict[tuple[int, int], Chunk], rank: int, distance: int) -> None:
    """Send what is at the rank and whose way has the bit `distance`; `at` is by origin and way."""
    size = made.size
    ways = [way for way in range(size) if way & distance]
    keys = [((rank - way % distance) % size, way) for way in ways]
    blocks = [_block(*key, size) for key in keys]
    dest = (rank + distance) % size
    landing = made.scratch(dest, blocks)
    made.send_packed(rank, [at[key] for key in keys], dest, landing)
    at.update(zip(keys, landing, strict=True))
    for key, block, chunk in zip(keys, blocks, landing, strict=True):
        if key[1] < 2 * distance:
            made.copy(dest, [chunk], [made.result(dest, block)])
