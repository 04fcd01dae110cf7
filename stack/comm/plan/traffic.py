"""What a program moves between ranks."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.facts import dataclass
from stack.comm.plan.program import REDUCING, ChunkPlace, Op, Program, offsets


@dataclass(frozen=True, slots=True)
class Traffic:
    """From one rank to another: messages, and what they carry in bytes."""

    source: int
    dest: int
    messages: int
    nbytes: int


def traffic(
    program: Program, lengths: Sequence[int], nbytes: int, wide_nbytes: int = 0
) -> list[Traffic]:
    """What goes between every two ranks that exchange anything, for extents of these lengths.

    `nbytes` is the size of an element, `wide_nbytes` that of an accumulator (0: the same).
    """
    found: dict[tuple[int, int], list[int]] = {}
    for rank, steps in enumerate(program.steps):
        starts = {place: offsets(program, rank, place, lengths) for place in ChunkPlace}
        for step in steps:
            if step.op is Op.SEND:
                src, of = step.src, starts[step.src.place]
                wide = program.kind in REDUCING and src.place is ChunkPlace.SCRATCH
                each = (wide_nbytes or nbytes) if wide else nbytes
                total = found.setdefault((rank, step.peer), [0, 0])
                total[0] += 1
                total[1] += (of[src.start + src.count] - of[src.start]) * each
    return [Traffic(*pair, *total) for pair, total in sorted(found.items())]
