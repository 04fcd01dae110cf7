"""Which chunks of a rank are the same memory."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.facts import dataclass
from stack.comm.plan.program import EXCHANGING, ChunkPlace, Program, Span, blocks, shared_chunks


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The memory of a rank as numbered cells: chunks with one number share their memory.

    `given`, `result` and `scratch` are the first cells of the places. `smeared` says that every
    cell of OUTPUT overlaps every cell of INPUT, which their numbers do not show.
    """

    given: int
    result: int
    scratch: int
    shared: dict[int, int]
    smeared: bool

    def cells(self, span: Span) -> Sequence[int]:
        """The cells of a span, one a chunk."""
        if span.place is ChunkPlace.INPUT and self.shared:
            whole = range(span.start, span.start + span.count)
            return [self.result + self.shared[i] if i in self.shared else i for i in whole]
        first = self.scratch
        if span.place is ChunkPlace.INPUT:
            first = self.given
        elif span.place is ChunkPlace.OUTPUT:
            first = self.result
        return range(first + span.start, first + span.start + span.count)


def memory_of(program: Program, rank: int) -> RankMemory:
    """The memory of a rank of the program; `steps` and `scratch` of it need not be there yet."""
    given, result = (len(blocks(program, rank, p)) for p in (ChunkPlace.INPUT, ChunkPlace.OUTPUT))
    shared = shared_chunks(program, rank) if program.in_place else {}
    smeared = program.in_place and program.kind in EXCHANGING
    return RankMemory(0, given, given + result, shared, smeared)
