"""A collective operation as data: what every rank sends, receives, copies and reduces, by chunks.

Extents. The kind of a program and its number of ranks n give a list of extents, which are the
parts that a user counts; `even_lengths` tells how many there are:

    all-reduce, reduce, broadcast, send-recv    one: the vector
    all-gather, gather                          n: extent r is what rank r contributes
    reduce-scatter, scatter                     n: extent r is what rank r is given
    all-to-all, all-to-all-v                    n * n: extent i * n + j goes from rank i to rank j
    barrier                                     none

A program holds for all lengths of its extents: unequal and empty ones too.

Blocks. Each extent is cut into `pieces` blocks (`block_length`). Block `extent * pieces + piece`
is the unit of everything.

Places. INPUT and OUTPUT of a rank are the concatenated blocks that the kind gives it; SCRATCH is
what `Program.scratch` lists for the rank: each chunk of it has the length of a block, whatever it
holds. A chunk is the memory of one block in one place; `blocks` lists a place's chunks and
`offsets` their elements. A `Span` names adjacent chunks.

Element types. INPUT and OUTPUT hold the call's element type. SCRATCH of a reducing kind holds the
accumulator type, which is float32 for float16 and bfloat16 and the element type otherwise; SCRATCH
of the other kinds holds the element type. A SEND carries the type of the place that it reads; RECV
and COPY convert to the type of `dst`; RECV_REDUCE and REDUCE compute in the accumulator type and
round when they write to OUTPUT. So a reducing program is right for narrow types if it keeps partial
sums in SCRATCH, which the checker tells (`check.Proof.wide`). For all other types nothing converts.

Order. `Step.after` names earlier steps of the same rank. A step starts once they are complete, and
waits for no other step of its rank, except that the messages from one rank to another are sent and
received one after the other, in the order of the steps: the i-th SEND from a to b is received by
the i-th RECV or RECV_REDUCE of b from a. A SEND may wait until its receiver has started (there may
be no buffer in between). A message of no elements is sent as well: it carries order.

Arithmetic. Which operand is added to which is fixed by the steps alone, so equal calls give equal
bits; the reductions are commutative bit by bit. `final` marks the step that writes a finished
result: AVG divides there, once, in the accumulator type, by the number of ranks (integers are cut
off towards zero). Integers wrap; of bools SUM and MAX are "or", PROD and MIN "and"; NaN wins in MIN
and MAX.

In place. INPUT and OUTPUT share memory: the whole buffer in kinds whose places have equal lengths,
the own extent inside the longer place in the gathering and scattering kinds (`shared_chunks`). In
all-to-all nothing fits chunk by chunk, so there every chunk of OUTPUT overlaps all of INPUT.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from itertools import accumulate

from hal.core.facts import dataclass
from hal.core.values import CollectiveKind


class PointKind(Enum):
    """SEND_RECV moves the vector of rank `root` to rank `target`."""

    SEND_RECV = "send-recv"


PlanKind = CollectiveKind | PointKind

REDUCING = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER)
GATHERING = (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER)
SCATTERING = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.SCATTER)
EXCHANGING = (CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_TO_ALL_V)


class ChunkPlace(Enum):
    """Where a chunk lies: the caller's source, the caller's destination, memory of the engine."""

    INPUT = "in"
    OUTPUT = "out"
    SCRATCH = "scratch"


@dataclass(frozen=True, slots=True)
class Span:
    """Chunks [start, start + count) of a place; `count` may be 0."""

    place: ChunkPlace
    start: int
    count: int = 1


NOTHING = Span(ChunkPlace.INPUT, 0, 0)
"""The span of an operand that a step does not have, and of a message that only carries order."""


class Op(Enum):
    """What a step does. `+` stands for the reduction of the call.

    SEND: `src` goes to `peer`. RECV: dst = message of `peer`. RECV_REDUCE: dst = src + message.
    COPY: dst = src. REDUCE: dst = src + other. In RECV_REDUCE and REDUCE an operand may be exactly
    `dst`; apart from that the spans of a step share no memory.
    """

    SEND = "send"
    RECV = "recv"
    RECV_REDUCE = "recv-reduce"
    COPY = "copy"
    REDUCE = "reduce"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a rank; `peer` is -1 where the operation has none. See the top of the file."""

    op: Op
    peer: int = -1
    dst: Span = NOTHING
    src: Span = NOTHING
    other: Span = NOTHING
    after: tuple[int, ...] = ()
    final: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """A plan for all ranks. `scratch[r]` are the blocks whose lengths rank r's scratch chunks have.

    `root` is the root of the kinds that have one and the source of SEND_RECV, `target` its
    destination. Nothing is proved about a value of this type: `check.check` does.
    """

    name: str
    kind: PlanKind
    size: int
    pieces: int
    scratch: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[Step, ...], ...]
    root: int = 0
    target: int = 0
    in_place: bool = False


def extent_count(kind: PlanKind, size: int) -> int:
    """How many extents a call among `size` ranks has."""
    if kind is CollectiveKind.BARRIER:
        return 0
    if kind in EXCHANGING:
        return size * size
    return size if kind in (*GATHERING, *SCATTERING) else 1


def even_lengths(kind: PlanKind, size: int, count: int) -> tuple[int, ...]:
    """The lengths in elements of the extents of a call with `Collective.count` = count.

    Those of ALL_TO_ALL_V are the rows of `Collective.counts`, one after the other.
    """
    return (count,) * extent_count(kind, size)


def block_length(length: int, pieces: int, piece: int) -> int:
    """The elements of a piece of an extent: as even as possible, the longer pieces first."""
    return length // pieces + (piece < length % pieces)


def extents(program: Program, rank: int, place: ChunkPlace) -> tuple[int, ...]:
    """The extents that make up INPUT or OUTPUT of a rank, in order; () for a place not in use."""
    kind, size = program.kind, program.size
    given = place is ChunkPlace.INPUT
    if kind in EXCHANGING:
        return tuple(rank * size + i if given else i * size + rank for i in range(size))
    if kind in (*GATHERING, *SCATTERING):
        if not _takes_part(program, rank, given):
            return ()
        return (rank,) if given == (kind in GATHERING) else tuple(range(size))
    return tuple(range(extent_count(kind, size))) if _takes_part(program, rank, given) else ()


def _takes_part(program: Program, rank: int, given: bool) -> bool:
    """Whether the rank's INPUT (`given`) or OUTPUT is in use."""
    match program.kind:
        case CollectiveKind.BROADCAST | CollectiveKind.SCATTER:
            return not given or rank == program.root
        case CollectiveKind.REDUCE | CollectiveKind.GATHER:
            return given or rank == program.root
        case PointKind.SEND_RECV:
            return rank == (program.root if given else program.target)
    return True


@lru_cache(maxsize=1024)
def _blocks(kind: PlanKind, size: int, pieces: int, which: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(extent * pieces + piece for extent in which for piece in range(pieces))


def blocks(program: Program, rank: int, place: ChunkPlace) -> tuple[int, ...]:
    """The block of every chunk of a rank's place, in the order in which they lie in memory."""
    if place is ChunkPlace.SCRATCH:
        return program.scratch[rank]
    which = extents(program, rank, place)
    return _blocks(program.kind, program.size, program.pieces, which)


def offsets(
    program: Program, rank: int, place: ChunkPlace, lengths: Sequence[int]
) -> tuple[int, ...]:
    """Where the chunks of a place begin, in elements; one number more than chunks, the last one is
    the length of the place. `lengths` are those of the extents, `even_lengths` for equal ones."""
    pieces = program.pieces
    sizes = (
        block_length(lengths[b // pieces], pieces, b % pieces) for b in blocks(program, rank, place)
    )
    return tuple(accumulate(sizes, initial=0))


def shared_chunks(program: Program, rank: int) -> dict[int, int]:
    """In place: the chunk of OUTPUT that each chunk of INPUT is, where both are chunk by chunk the
    same memory; {} for EXCHANGING kinds, whose OUTPUT overlaps INPUT anywhere."""
    if program.kind in EXCHANGING:
        return {}
    place_of = {b: i for i, b in enumerate(blocks(program, rank, ChunkPlace.OUTPUT))}
    given = enumerate(blocks(program, rank, ChunkPlace.INPUT))
    return {i: place_of[b] for i, b in given if b in place_of}
