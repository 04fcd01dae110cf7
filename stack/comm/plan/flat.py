"""One rank's part of a program as an array of integers, for an engine that runs it in one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from hal.core.facts import dataclass
from stack.comm.plan.program import REDUCING, ChunkPlace, Op, Program, Span, blocks, offsets

FIELDS = (
    "op",  # OPS.index(step.op)
    "peer",  # the other rank of a message, or -1
    "message",  # number of the message among those from its sender to its receiver, or -1
    "wide",  # 1 where the message carries the accumulator type, 0 the element type
    "count",  # elements; every operand of a step has as many
    "dst_place",  # PLACES.index(span.place)
    "dst",  # first element in that place
    "src_place",
    "src",
    "other_place",
    "other",
    "final",  # 1 where AVG divides
    "after_start",  # the steps that this one waits for: Flat.after[after_start:after_stop]
    "after_stop",
)
"""The columns of `Flat.steps`. Operands that the operation does not have are (0, 0)."""

OPS = (Op.SEND, Op.RECV, Op.RECV_REDUCE, Op.COPY, Op.REDUCE)
PLACES = (ChunkPlace.INPUT, ChunkPlace.OUTPUT, ChunkPlace.SCRATCH)


@dataclass(frozen=True, slots=True)
class FlatSteps:
    """A rank's steps for given lengths: `steps` is int64 of shape (number of steps, len(FIELDS)),
    row-major; `after` is int64; `places` the elements of INPUT, OUTPUT and SCRATCH."""

    steps: NDArray[np.int64]
    after: NDArray[np.int64]
    places: tuple[int, int, int]


def flatten(program: Program, rank: int, lengths: Sequence[int]) -> FlatSteps:
    """The steps of a rank, with element ranges instead of chunks, for extents of these lengths.

    The program has to be one that `check` accepts: nothing is checked here.
    """
    return Chunked(program, rank).at(lengths)


class Chunked:
    """A rank's steps before the lengths are known, so that each new list of them costs little."""

    def __init__(self, program: Program, rank: int) -> None:
        """Prepare the steps of a rank of a program that `check` accepts."""
        self._program, self._rank = program, rank
        counts = [len(blocks(program, rank, place)) for place in PLACES]
        self._first = list(accumulate((count + 1 for count in counts), initial=0))[:-1]
        # The columns of FIELDS, with numbers of chunk ends for elements, and the two ends of what a
        # step moves, whose difference is `count`
        numbers: Counter[tuple[bool, int]] = Counter()
        # By (sent?, peer): for each message in order, whether it carries the accumulator type.
        wide: dict[tuple[bool, int], list[bool]] = {}
        for peer in {step.peer for step in self._program.steps[self._rank] if step.peer >= 0}:
            wide[True, peer] = _sent(self._program, self._rank, peer)
            wide[False, peer] = _sent(self._program, peer, self._rank)
        rows: list[list[int]] = []
        after: list[int] = []
        for step in self._program.steps[self._rank]:
            message = (step.op is Op.SEND, step.peer)
            of_message = [-1, 0]
            if step.peer >= 0:
                of_message = [numbers[message], int(wide[message][numbers[message]])]
                numbers[message] += 1
            waits = [len(after), len(after) + len(step.after)]
            after.extend(step.after)
            # (place, number of the first chunk's start) of dst, src and other
            spans = (step.dst, step.src, step.other)
            row = [
                OPS.index(step.op),
                step.peer,
                *of_message,
                0,
                *(
                    number
                    for span in spans
                    for number in (PLACES.index(span.place) if span.count else 0, self._start(span))
                ),
            ]
            whole = step.src if step.op is Op.SEND else step.dst
            start = self._start(whole)
            rows.append([*row, int(step.final), *waits, start, start + whole.count])
        self._after = np.array(after, np.int64)
        table = np.array(rows, np.int64).reshape(len(rows), len(FIELDS) + 2)
        self._table, self._ends = table[:, : len(FIELDS)], table[:, len(FIELDS) :]

    def at(self, lengths: Sequence[int]) -> FlatSteps:
        """The steps for extents of these lengths."""
        each = [offsets(self._program, self._rank, place, lengths) for place in PLACES]
        starts = np.array([start for place in each for start in place], np.int64)
        steps = self._table.copy()
        for column in _STARTS:
            steps[:, column] = starts[steps[:, column]]
        steps[:, FIELDS.index("count")] = starts[self._ends[:, 1]] - starts[self._ends[:, 0]]
        return FlatSteps(steps, self._after, (each[0][-1], each[1][-1], each[2][-1]))

    def _start(self, span: Span) -> int:
        """Among the starts of all chunks of INPUT, then OUTPUT, then SCRATCH, each with its end."""
        return self._first[PLACES.index(span.place)] + span.start if span.count else 0


_STARTS = tuple(FIELDS.index(name) for name in ("dst", "src", "other"))


def _sent(program: Program, sender: int, receiver: int) -> list[bool]:
    sends = (s for s in program.steps[sender] if s.op is Op.SEND and s.peer == receiver)
    reducing = program.kind in REDUCING
    return [reducing and s.src.place is ChunkPlace.SCRATCH for s in sends]
