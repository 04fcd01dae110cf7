"""Direct: everything goes straight to where it is wanted, in one turn or in turns of pairs."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.values import CollectiveKind
from stack.comm.plan.draft import Chunk, Draft
from stack.comm.plan.generate.request import Request, draft
from stack.comm.plan.program import Place, Program, blocks

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


def all_reduce(request: Request) -> Program:
    """Every rank adds up its share of the vector, beginning with its own part, and hands it out."""
    return _all_reduce("direct", request, ordered=False)


def all_reduce_in_order(request: Request) -> Program:
    """The same in rank order, so that the bits are those of ((r0 + r1) + r2) + ..."""
    return _all_reduce("rank-order", request, ordered=True)


def reduce_scatter(request: Request) -> Program:
    """Every rank adds up what it is given, beginning with its own part."""
    return _reduce_scatter("direct", request, ordered=False)


def reduce_scatter_in_order(request: Request) -> Program:
    """The same in rank order."""
    return _reduce_scatter("rank-order", request, ordered=True)


def _all_reduce(name: str, request: Request, ordered: bool) -> Program:
    size, cut = request.size, request.cut
    made = draft(name, request, size * cut)
    for part in range(cut):
        for rank in range(size):
            _sum(made, request, rank, rank * cut + part, ordered)
        for rank in range(size):
            done = made.result(rank, rank * cut + part)
            for other in _others(rank, size):
                made.send(rank, [done], other, [made.result(other, rank * cut + part)])
    return made.program()


def _reduce_scatter(name: str, request: Request, ordered: bool) -> Program:
    made = draft(name, request, request.cut)
    for part in range(request.cut):
        for rank in range(request.size):
            _sum(made, request, rank, rank * request.cut + part, ordered)
    return made.program()


def _sum(made: Draft, request: Request, owner: int, block: int, ordered: bool) -> None:
    """Add a block up on its owner."""
    size = request.size
    order = range(size) if ordered else [owner, *((owner - i) % size for i in range(1, size))]
    sources = [(rank, [made.given(rank, block)]) for rank in order]
    put = [made.result(owner, block)]
    own_room = request.wide or (ordered and request.in_place)
    room = made.scratch(owner, [block]) if own_room and size > 2 else put
    add_up(made, owner, sources, room, put, final=True)


def _others(rank: int, size: int) -> list[int]:
    return [(rank + i) % size for i in range(1, size)]


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
            _hand(made, held, rank, rank ^ turn if _is_power(size) else (rank + turn) % size)
        if turn:
            made.fence()
    return made.program()


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0


Held = list[dict[int, Chunk]]
"""By rank: where the blocks that it gives are."""


def sources(made: Draft, request: Request) -> Held:
    """Where each rank's blocks are. In place, all-to-all first copies them out of the way."""
    held: Held = []
    exchange = request.kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_TO_ALL_V)
    for rank in range(request.size):
        wanted = blocks(made.shape, rank, Place.INPUT)
        given = [made.given(rank, b) for b in wanted]
        if exchange and request.in_place:
            aside = made.scratch(rank, wanted)
            made.copy(rank, given, aside)
            given = aside
        held.append(dict(zip(wanted, given, strict=True)))
    return held


def _hand(made: Draft, held: Held, source: int, dest: int) -> None:
    """Move from rank to rank, or inside one, what the one has and the other wants."""
    wanted = blocks(made.shape, dest, Place.OUTPUT)
    moved = [b for b in wanted if b in held[source]]
    taken, put = [held[source][b] for b in moved], [made.result(dest, b) for b in moved]
    if source == dest:
        made.copy(source, taken, put)
    else:
        made.send(source, taken, dest, put)
