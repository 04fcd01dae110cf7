"""Direct: everything goes straight to where it is wanted, in one turn or in turns of pairs."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.facts import dataclass
from hal.core.values import CollectiveKind
from stack.comm.plan.draft import Chunk, Draft
from stack.comm.plan.generate.request import Request, draft
from stack.comm.plan.program import ChunkPlace, Program, blocks

Source = tuple[int, Sequence[Chunk]]
"""A rank and the chunks in which it holds its part of a sum."""


def add_up(
    made: Draft,
    owner: int,
    sources: Sequence[Source],
    room: Sequence[Chunk],
    put: Sequence[Chunk],
    final: bool,
) -> None:
    """Add up the sources, in their order, on the owner, which is one of them.

    The sum is written to `put`, partial sums to `room`. Where the owner is not among the first two,
    room must not be memory that it holds its own part in.
    """
    held: Sequence[Chunk] = ()
    if len(sources) > 1 and sources[1][0] == owner:
        sources = [sources[1], sources[0], *sources[2:]]  # a + b is b + a bit by bit
    for index, (rank, chunks) in enumerate(sources):
        last = index == len(sources) - 1
        into = put if last else room
        if not held:
            if rank != owner:
                made.send(rank, chunks, owner, room)
            elif last:
                made.copy(owner, chunks, put, final)
            held = chunks if rank == owner else room
            continue
        if rank == owner:
            made.reduce(owner, held, chunks, into, final and last)
        else:
            made.send_reduce(rank, chunks, owner, into, held, final and last)
        held = into


@dataclass(frozen=True, slots=True)
class PartialSum:
    """A sum of some blocks: the ranks that have a part of it, the first of which adds them up; its
    memory for partial sums and for the sum; and whether that is final."""

    ranks: Sequence[int]
    parts: Sequence[Sequence[Chunk]]
    room: Sequence[Chunk]
    put: Sequence[Chunk]
    final: bool


def add_in_turns(made: Draft, jobs: Sequence[PartialSum]) -> None:
    """Do several sums at once: each in the order of its ranks, and in turn k the k-th part of each,
    so that the parts of one turn come from different ranks."""
    for turn in range(1, max(len(job.ranks) for job in jobs)):
        for job in jobs:
            if turn < len(job.ranks):
                last = turn == len(job.ranks) - 1
                put, own = job.put if last else job.room, job.parts[0] if turn == 1 else job.room
                rank, part, final = job.ranks[turn], job.parts[turn], job.final and last
                made.send_reduce(rank, part, job.ranks[0], put, own, final)
    for job in jobs:
        if len(job.ranks) == 1:
            made.copy(job.ranks[0], job.parts[0], job.put, job.final)


def all_reduce(request: Request) -> Program:
    """Every rank adds up its share of the vector, beginning with its own part, and hands it out."""
    made = draft("direct", request, request.size * request.cut)
    for part in range(request.cut):
        _sum_in_turns(made, request, part)
        _hand_out(made, request, part)
    return made.program()


def all_reduce_in_order(request: Request) -> Program:
    """The same in rank order, so that the bits are those of ((r0 + r1) + r2) + ..."""
    made = draft("rank-order", request, request.size * request.cut)
    for part in range(request.cut):
        _sum_in_order(made, request, part)
        _hand_out(made, request, part)
    return made.program()


def reduce_scatter(request: Request) -> Program:
    """Every rank adds up what it is given, beginning with its own part."""
    made = draft("direct", request, request.cut)
    for part in range(request.cut):
        _sum_in_turns(made, request, part)
    return made.program()


def reduce_scatter_in_order(request: Request) -> Program:
    """The same in rank order."""
    made = draft("rank-order", request, request.cut)
    for part in range(request.cut):
        _sum_in_order(made, request, part)
    return made.program()


def _sum_in_turns(made: Draft, request: Request, part: int) -> None:
    """Add up this part of every rank's share."""
    size, jobs = request.size, []
    for owner in range(size):
        block = owner * request.cut + part
        ranks = [(owner - i) % size for i in range(size)]
        put = [made.result(owner, block)]
        room = made.scratch(owner, [block]) if request.wide and size > 2 else put
        jobs.append(
            PartialSum(ranks, [[made.given(r, block)] for r in ranks], room, put, final=True)
        )
    add_in_turns(made, jobs)


def _sum_in_order(made: Draft, request: Request, part: int) -> None:
    """The same, each share in rank order."""
    size = request.size
    for owner in range(size):
        block = owner * request.cut + part
        parts = [(rank, [made.given(rank, block)]) for rank in range(size)]
        put = [made.result(owner, block)]
        aside = size > 2 and (request.wide or request.in_place)
        room = made.scratch(owner, [block]) if aside else put
        add_up(made, owner, parts, room, put, final=True)


def _hand_out(made: Draft, request: Request, part: int) -> None:
    """Every rank sends this part of its finished share to all others."""
    size = request.size
    for distance in range(1, size):
        for rank in range(size):
            other, block = (rank + distance) % size, rank * request.cut + part
            made.send(rank, [made.result(rank, block)], other, [made.result(other, block)])


def reduce(request: Request) -> Program:
    """The root adds everything up in rank order."""
    size, root = request.size, request.root
    made = draft("direct", request, request.cut)
    for block in range(request.cut):
        sources = [(rank, [made.given(rank, block)]) for rank in range(size)]
        put = [made.result(root, block)]
        room = made.scratch(root, [block]) if request.wide or request.in_place else put
        add_up(made, root, sources, room, put, final=True)
    return made.program()


def move(request: Request) -> Program:
    """Each block goes from the rank that has it to those that want it (kinds that add nothing)."""
    made = draft("direct", request, 1)
    held = sources(made, request)
    for distance in range(request.size):
        for rank in range(request.size):
            other = (rank + distance) % request.size
            _hand(made, held, rank, other)
    return made.program()


def pairwise(request: Request) -> Program:
    """All-to-all in n - 1 turns, in each of which a rank sends to one and receives from one."""
    size = request.size
    made = draft("pairwise", request, 1)
    held = sources(made, request)
    for turn in range(size):
        for rank in range(size):
            _hand(
                made, held, rank, rank ^ turn if (size & (size - 1) == 0) else (rank + turn) % size
            )
        if turn:
            made.fence()
    return made.program()


Held = list[dict[int, Chunk]]
"""By rank: where the blocks that it gives are."""


def sources(made: Draft, request: Request) -> Held:
    """Where each rank's blocks are. In place, all-to-all first copies them out of the way."""
    held: Held = []
    exchange = request.kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_TO_ALL_V)
    for rank in range(request.size):
        wanted = blocks(made.shape, rank, ChunkPlace.INPUT)
        given = [made.given(rank, b) for b in wanted]
        if exchange and request.in_place:
            aside = made.scratch(rank, wanted)
            made.copy(rank, given, aside)
            given = aside
        held.append(dict(zip(wanted, given, strict=True)))
    return held


def _hand(made: Draft, held: Held, source: int, dest: int) -> None:
    """Move from rank to rank, or inside one, what the one has and the other wants."""
    wanted = blocks(made.shape, dest, ChunkPlace.OUTPUT)
    moved = [b for b in wanted if b in held[source]]
    taken, put = [held[source][b] for b in moved], [made.result(dest, b) for b in moved]
    if source == dest:
        made.copy(source, taken, put)
    else:
        made.send(source, taken, dest, put)
