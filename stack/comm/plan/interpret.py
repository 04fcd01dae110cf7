"""What a program means, in numpy: slow, short, and the final word."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.values import ReduceKind
from stack.comm.plan.flat import FIELDS, OPS, PLACES, FlatSteps, flatten
from stack.comm.plan.program import REDUCING, ChunkPlace, Op, Program, extents
from stack.comm.plan.text import OPERANDS

Array = NDArray[Any]

SPOILT = 99

_ADD: Mapping[ReduceKind, Callable[[Array, Array], Array]] = {
    ReduceKind.SUM: np.add,
    ReduceKind.AVG: np.add,
    ReduceKind.PROD: np.multiply,
    ReduceKind.MIN: np.minimum,
    ReduceKind.MAX: np.maximum,
}


def interpret(
    program: Program,
    inputs: Sequence[Array],
    lengths: Sequence[int],
    reduce: ReduceKind = ReduceKind.SUM,
    chance: random.Random | None = None,
) -> list[Array]:
    """The outputs of all ranks, for their inputs: one-dimensional arrays of one element type.

    `lengths` are those of the extents. Without `chance` one step runs after the other. With it, it
    picks which step begins or ends next among those that may be under way at once, and whether a
    step reads at its beginning or at its end; until its end, what a step writes is spoilt. That
    does not change the results of a checked program. No message is buffered. In place, the inputs
    are copied first, so they stay as they are.
    """
    world = _World(program, inputs, lengths, reduce)
    active: list[At] = []
    while events := [*active, *world.startable()]:
        at = chance.choice(events) if chance else events[0]
        if at in active:
            world.end(at)
            active.remove(at)
        else:
            world.begin(at, early=bool(chance and chance.random() < 0.5))
            active.append(at)
    if any(world.left):
        raise RuntimeError(f"{program.name} stopped with steps left: {world.left}")
    return [places[ChunkPlace.OUTPUT] for places in world.places]


At = tuple[int, int]
"""Rank and index of a local step, or of a message's SEND, which stands for both of its ends."""


class _World:
    """The memory of all ranks, and which steps are left."""

    def __init__(
        self,
        program: Program,
        inputs: Sequence[Array],
        lengths: Sequence[int],
        reduce: ReduceKind,
    ) -> None:
        self.program, self.reduce = program, reduce
        dtype = inputs[0].dtype
        self.accumulator = accumulator(dtype) if program.kind in REDUCING else dtype
        self.flats = [flatten(program, rank, lengths) for rank in range(program.size)]
        self.places = [
            _places(program, rank, given, self.flats[rank], self.accumulator, lengths)
            for rank, given in enumerate(inputs)
        ]
        self.rows = [
            [dict(zip(FIELDS, map(int, row), strict=True)) for row in flat.steps]
            for flat in self.flats
        ]
        # The index of the step that receives a message, by sender, receiver and number.
        self.receivers = {
            (row["peer"], rank, row["message"]): index
            for rank, steps in enumerate(self.rows)
            for index, row in enumerate(steps)
            if OPS[row["op"]] in (Op.RECV, Op.RECV_REDUCE)
        }
        self.left = [set(range(len(rows))) for rows in self.rows]
        self.waiting = [set(left) for left in self.left]
        self.sent: Counter[tuple[int, int]] = Counter()
        self.read: dict[At, Array] = {}

    def startable(self) -> list[At]:
        """What can begin now."""
        steps = ((rank, i) for rank, waiting in enumerate(self.waiting) for i in sorted(waiting))
        return [at for at in steps if self._is_free(*at) and self._can_begin(*at)]

    def _is_free(self, rank: int, index: int) -> bool:
        """Whether all that the step waits for is over."""
        row, after = self.rows[rank][index], self.flats[rank].after
        waits = after[row["after_start"] : row["after_stop"]]
        return not any(int(earlier) in self.left[rank] for earlier in waits)

    def _can_begin(self, rank: int, index: int) -> bool:
        """Local steps can; a SEND where the messages before it are over and its receiver can."""
        row = self.rows[rank][index]
        if OPS[row["op"]] is not Op.SEND:
            return row["peer"] < 0
        if self.sent[rank, row["peer"]] != row["message"]:
            return False
        return self._is_free(*self._writer((rank, index)))

    def _writer(self, at: At) -> At:
        """The step itself, or the receiver of the message."""
        rank, row = at[0], self.rows[at[0]][at[1]]
        if OPS[row["op"]] is not Op.SEND:
            return at
        return row["peer"], self.receivers[rank, row["peer"], row["message"]]

    def begin(self, at: At, early: bool) -> None:
        """Begin something startable; `early` reads now what it reads."""
        writer = self._writer(at)
        for rank, index in {at, writer}:
            self.waiting[rank].remove(index)
        if early:
            self.read[at] = self._values(at)
        row, dst = self.rows[writer[0]][writer[1]], self._operand(writer, "dst")
        kept = [self._operand(writer, name) for name in OPERANDS[OPS[row["op"]]] if name != "dst"]
        if not any(np.may_share_memory(dst, operand) for operand in kept):
            dst[:] = np.array(SPOILT).astype(dst.dtype)

    def end(self, at: At) -> None:
        """End what has begun."""
        writer = self._writer(at)
        values = self.read.pop(at) if at in self.read else self._values(at)
        dst = self._operand(writer, "dst")
        with np.errstate(all="ignore"):
            if self.rows[writer[0]][writer[1]]["final"] and self.reduce is ReduceKind.AVG:
                values = divide(values.astype(self.accumulator), self.program.size)
            dst[:] = values.astype(dst.dtype)
        for rank, index in {at, writer}:
            self.left[rank].remove(index)
        if at != writer:
            self.sent[at[0], writer[0]] += 1

    def _values(self, at: At) -> Array:
        """What a step, or the receiver of a message, writes."""
        writer = self._writer(at)
        row, src = self.rows[writer[0]][writer[1]], self._operand(at, "src")
        if at != writer:
            wanted = self.accumulator if row["wide"] else self.places[0][ChunkPlace.OUTPUT].dtype
            if src.dtype != wanted or src.size != row["count"]:
                raise RuntimeError(f"message of {src.size} {src.dtype} for {row}")
        match OPS[row["op"]]:
            case Op.RECV_REDUCE:
                return self._sum(self._operand(writer, "src"), src)
            case Op.REDUCE:
                return self._sum(src, self._operand(at, "other"))
        return src.copy()

    def _operand(self, at: At, name: str) -> Array:
        rank, row = at[0], self.rows[at[0]][at[1]]
        whole = self.places[rank][PLACES[row[f"{name}_place"]]]
        return whole[row[name] : row[name] + row["count"]]

    def _sum(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            wide = a.astype(self.accumulator), b.astype(self.accumulator)
            return np.asarray(_ADD[self.reduce](*wide))


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which elements are added up: float32 for the two-byte floats."""
    return np.dtype(np.float32) if dtype.kind not in "iub" and dtype.itemsize == 2 else dtype


def divide(total: Array, number: int) -> Array:
    """total / number; integers are cut off towards zero."""
    if total.dtype.kind == "f":
        return np.asarray(total / total.dtype.type(number))
    wide = total.astype(np.uint64 if total.dtype.kind == "u" else np.int64)
    floor = wide // number
    cut = floor + ((wide < 0) & (wide % number != 0)).astype(wide.dtype)
    return np.asarray(cut.astype(total.dtype))


def _places(
    program: Program,
    rank: int,
    given: Array,
    flat: FlatSteps,
    wide: np.dtype[Any],
    lengths: Sequence[int],
) -> dict[ChunkPlace, Array]:
    """A rank's memory. What nobody has written yet is spoilt, so that reading it shows."""
    takes, gives, scratch = flat.places
    if given.shape != (takes,):
        raise ValueError(f"rank {rank} takes {takes} elements, got an array of {given.shape}")
    own = {ChunkPlace.SCRATCH: np.full(scratch, SPOILT).astype(wide)}
    if not program.in_place or not (takes and gives):
        gone = np.full(gives, SPOILT).astype(given.dtype)
        return {**own, ChunkPlace.INPUT: given.copy(), ChunkPlace.OUTPUT: gone}
    memory = np.full(max(takes, gives), SPOILT).astype(given.dtype)
    # Where the shorter place begins in the longer one, in elements.
    sides = [extents(program, rank, place) for place in (ChunkPlace.INPUT, ChunkPlace.OUTPUT)]
    short, long = sorted(sides, key=len)
    if short == long or len(short) == len(long):
        first = 0
    else:
        first = sum(lengths[extent] for extent in long[: long.index(short[0])])
    starts = (first, 0) if takes <= gives else (0, first)
    source = memory[starts[0] : starts[0] + takes]
    source[:] = given
    return {
        **own,
        ChunkPlace.INPUT: source,
        ChunkPlace.OUTPUT: memory[starts[1] : starts[1] + gives],
    }
