"""One rank's part of a program as an array of integers, for an engine that runs it in one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stack.comm.plan.program import REDUCING, Op, Place, Program, Span, Step, offsets

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
PLACES = (Place.INPUT, Place.OUTPUT, Place.SCRATCH)


@dataclass(frozen=True, slots=True)
class Flat:
    """A rank's steps for given lengths: `steps` is int64 of shape (number of steps, len(FIELDS)),
    row-major; `after` is int64; `places` the elements of INPUT, OUTPUT and SCRATCH."""

    steps: NDArray[np.int64]
    after: NDArray[np.int64]
    places: tuple[int, int, int]


def flatten(program: Program, rank: int, lengths: Sequence[int]) -> Flat:
    """The steps of a rank, with element ranges instead of chunks, for extents of these lengths.

    The program has to be one that `check` accepts: nothing is checked here.
    """
    starts = {place: offsets(program, rank, place, lengths) for place in PLACES}
    numbers: Counter[tuple[bool, int]] = Counter()
    wide = _wide_messages(program, rank)
    rows: list[list[int]] = []
    after: list[int] = []
    for step in program.steps[rank]:
        message = (step.op is Op.SEND, step.peer)
        of_message = [-1, 0]
        if step.peer >= 0:
            of_message = [numbers[message], int(wide[message][numbers[message]])]
            numbers[message] += 1
        waits = [len(after), len(after) + len(step.after)]
        after.extend(step.after)
        row = [OPS.index(step.op), step.peer, *of_message, *_operands(step, starts)]
        rows.append([*row, int(step.final), *waits])
    table = np.array(rows, np.int64).reshape(len(rows), len(FIELDS))
    sizes = tuple(starts[place][-1] for place in PLACES)
    return Flat(table, np.array(after, np.int64), (sizes[0], sizes[1], sizes[2]))


def _operands(step: Step, starts: Mapping[Place, Sequence[int]]) -> list[int]:
    """count, and (place, first element) of dst, src and other."""

    def first(span: Span) -> list[int]:
        return [PLACES.index(span.place), starts[span.place][span.start]] if span.count else [0, 0]

    whole = step.src if step.op is Op.SEND else step.dst
    of = starts[whole.place]
    count = of[whole.start + whole.count] - of[whole.start]
    return [count, *first(step.dst), *first(step.src), *first(step.other)]


def _wide_messages(program: Program, rank: int) -> dict[tuple[bool, int], list[bool]]:
    """By (sent?, peer): for each message in order, whether it carries the accumulator type."""
    found: dict[tuple[bool, int], list[bool]] = {}
    for peer in {step.peer for step in program.steps[rank] if step.peer >= 0}:
        found[True, peer] = _sent(program, rank, peer)
        found[False, peer] = _sent(program, peer, rank)
    return found


def _sent(program: Program, sender: int, receiver: int) -> list[bool]:
    sends = (s for s in program.steps[sender] if s.op is Op.SEND and s.peer == receiver)
    reducing = program.kind in REDUCING
    return [reducing and s.src.place is Place.SCRATCH for s in sends]
