"""What a program means, in numpy: slow, short, and the final word."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.values import ReduceKind
from stack.comm.plan.flat import FIELDS, OPS, PLACES, Flat, flatten
from stack.comm.plan.program import REDUCING, Op, Place, Program, extents

Array = NDArray[Any]

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

    `lengths` are those of the extents. Steps run one at a time; `chance` picks among those that can
    run (without it, the first one does), which must not change the results of a checked program.
    No message is buffered. In place, the inputs are copied first, so they stay as they are.
    """
    world = _World(program, inputs, lengths, reduce)
    chance = chance or random.Random(0)
    while ready := world.ready():
        world.run(ready[chance.randrange(len(ready))])
    if any(world.left):
        raise RuntimeError(f"{program.name} stopped with steps left: {world.left}")
    return [places[Place.OUTPUT] for places in world.places]


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
        self.left = [set(range(len(rows))) for rows in self.rows]
        self.moved: dict[tuple[int, int], int] = {}

    def ready(self) -> list[tuple[int, int]]:
        """The steps (rank, index) that can run now; a message stands for both of its ends."""
        return [
            (rank, index)
            for rank, left in enumerate(self.left)
            for index in sorted(left)
            if self._can_start(rank, index) and self._can_run(rank, index)
        ]

    def _can_start(self, rank: int, index: int) -> bool:
        row, after = self.rows[rank][index], self.flats[rank].after
        waits = after[row["after_start"] : row["after_stop"]]
        return not any(int(earlier) in self.left[rank] for earlier in waits)

    def _can_run(self, rank: int, index: int) -> bool:
        """Local steps can; a SEND where its message is next and its receiver could start."""
        row = self.rows[rank][index]
        if OPS[row["op"]] is not Op.SEND:
            return row["peer"] < 0
        next_one = self.moved.get((rank, row["peer"]), 0) == row["message"]
        return next_one and self._can_start(row["peer"], self._receiver(rank, row))

    def _receiver(self, rank: int, row: Mapping[str, int]) -> int:
        rows = self.rows[row["peer"]]
        return next(
            i
            for i, r in enumerate(rows)
            if OPS[r["op"]] in (Op.RECV, Op.RECV_REDUCE)
            and (r["peer"], r["message"]) == (rank, row["message"])
        )

    def run(self, at: tuple[int, int]) -> None:
        """Run a step that is ready."""
        rank, index = at
        row = self.rows[rank][index]
        self.left[rank].remove(index)
        if OPS[row["op"]] is not Op.SEND:
            self._local(rank, row)
            return
        peer, receiver = row["peer"], self._receiver(rank, row)
        self.moved[rank, peer] = row["message"] + 1
        self.left[peer].remove(receiver)
        self._receive(peer, self.rows[peer][receiver], self._at(rank, row, "src"))

    def _receive(self, rank: int, row: Mapping[str, int], message: Array) -> None:
        wide = self.accumulator if row["wide"] else self.places[rank][Place.OUTPUT].dtype
        if message.dtype != wide or message.size != row["count"]:
            raise RuntimeError(f"message of {message.size} {message.dtype} for {row}")
        if OPS[row["op"]] is Op.RECV:
            self._put(rank, row, message)
        else:
            self._put(rank, row, self._sum(self._at(rank, row, "src"), message))

    def _local(self, rank: int, row: Mapping[str, int]) -> None:
        src = self._at(rank, row, "src")
        adds = OPS[row["op"]] is Op.REDUCE
        self._put(rank, row, self._sum(src, self._at(rank, row, "other")) if adds else src)

    def _at(self, rank: int, row: Mapping[str, int], operand: str) -> Array:
        start = row[operand]
        return self.places[rank][PLACES[row[f"{operand}_place"]]][start : start + row["count"]]

    def _sum(self, a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            wide = a.astype(self.accumulator), b.astype(self.accumulator)
            return np.asarray(_ADD[self.reduce](*wide))

    def _put(self, rank: int, row: Mapping[str, int], values: Array) -> None:
        dst = self._at(rank, row, "dst")
        with np.errstate(all="ignore"):
            if row["final"] and self.reduce is ReduceKind.AVG:
                values = divide(values.astype(self.accumulator), self.program.size)
            dst[:] = values.astype(dst.dtype)


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
    flat: Flat,
    wide: np.dtype[Any],
    lengths: Sequence[int],
) -> dict[Place, Array]:
    """A rank's memory. What nobody has written yet is 99, so that reading it shows."""
    takes, gives, scratch = flat.places
    if given.shape != (takes,):
        raise ValueError(f"rank {rank} takes {takes} elements, got an array of {given.shape}")
    own = {Place.SCRATCH: np.full(scratch, 99).astype(wide)}
    if not program.in_place or not (takes and gives):
        gone = np.full(gives, 99).astype(given.dtype)
        return {**own, Place.INPUT: given.copy(), Place.OUTPUT: gone}
    memory = np.full(max(takes, gives), 99).astype(given.dtype)
    first = _first_shared(program, rank, lengths)
    starts = (first, 0) if takes <= gives else (0, first)
    source = memory[starts[0] : starts[0] + takes]
    source[:] = given
    return {**own, Place.INPUT: source, Place.OUTPUT: memory[starts[1] : starts[1] + gives]}


def _first_shared(program: Program, rank: int, lengths: Sequence[int]) -> int:
    """Where the shorter place begins in the longer one, in elements."""
    sides = [extents(program, rank, place) for place in (Place.INPUT, Place.OUTPUT)]
    short, long = sorted(sides, key=len)
    if short == long or len(short) == len(long):
        return 0
    return sum(lengths[extent] for extent in long[: long.index(short[0])])
