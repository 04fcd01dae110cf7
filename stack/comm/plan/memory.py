"""Which chunks of a rank are the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stack.comm.plan.program import EXCHANGING, Place, Program, Span, blocks, shared_chunks


@dataclass(frozen=True, slots=True)
class Memory:
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
        if span.place is Place.INPUT and self.shared:
            whole = range(span.start, span.start + span.count)
            return [self.result + self.shared[i] if i in self.shared else i for i in whole]
        first = {Place.INPUT: self.given, Place.OUTPUT: self.result}.get(span.place, self.scratch)
        return range(first + span.start, first + span.start + span.count)


def memory_of(program: Program, rank: int) -> Memory:
    """The memory of a rank of the program; `steps` and `scratch` of it need not be there yet."""
    given, result = (len(blocks(program, rank, p)) for p in (Place.INPUT, Place.OUTPUT))
    shared = shared_chunks(program, rank) if program.in_place else {}
    smeared = program.in_place and program.kind in EXCHANGING
    return Memory(0, given, given + result, shared, smeared)
