"""Random collectives on devices against a model in numpy.

python -m tests.comm.device.shadow [OPERATIONS [SEED [DEVICE,DEVICE,...]]] runs as many as wanted.
"""

import sys
from dataclasses import dataclass
from itertools import pairwise
from unittest.mock import patch

import click
import numpy as np

from hal.core.dtypes import DType
from hal.core.values import Collective, CollectiveKind, ReduceKind, Region
from hal.tile.numeric import NUMPY
from stack.comm.device import pipeline
from stack.comm.device.call import UNEVEN, Call
from tests.comm.device.devices import mixed
from tests.comm.device.seats import seated
from tests.comm.engine.model import parts_of, reduced
from tests.comm.engine.test_operations import numbers, same

Kind = CollectiveKind
HALF = 4000
"""Elements of each rank's memory from which calls take, and into which they write."""
IN_PLACE = (Kind.ALL_REDUCE, Kind.REDUCE, Kind.BROADCAST, Kind.ALL_TO_ALL)
LOOK = 25
"""After so many operations all memory is compared."""


@dataclass(frozen=True)
class Operation:
    """A call among the ranks of a group; `dst[i]` and `src[i]` are where member i has its first
    elements."""

    group: tuple[int, ...]
    call: Call
    dst: tuple[int, ...]
    src: tuple[int, ...]


def operation(random, groups):
    """A random call in one of these groups."""
    group = groups[random.integers(len(groups))]
    size, kind = len(group), list(Kind)[random.integers(len(Kind))]
    dtype, how = (list(e)[random.integers(len(e))] for e in (DType, ReduceKind))
    if dtype is DType.BOOL and how is ReduceKind.AVG:
        how = ReduceKind.MAX
    most = random.choice([1, 8, 100, HALF // size // size])
    count, counts, parts = int(random.integers(0, most + 1)), (), None
    if kind is Kind.ALL_TO_ALL_V:
        rows = random.integers(0, most + 1, (size, size)).tolist()
        count, counts = 0, tuple(map(tuple, rows))
    if kind in UNEVEN and random.random() < 0.5:
        count, parts = 0, tuple(random.integers(0, most + 1, size).tolist())
    root = int(random.integers(size))
    call = Call(Collective(kind, dtype, count, how, root, counts), parts)
    src = [int(random.integers(0, 9)) for _ in group]
    dst = [HALF + int(random.integers(0, 9)) for _ in group]
    if kind in IN_PLACE and random.random() < 0.5:
        dst = src
    return Operation(group, call, tuple(dst), tuple(src))


def results(call, sources):
    """What every destination becomes; None where a rank has none."""
    of, size, ranks = call.collective, len(sources), range(len(sources))
    parts = call.parts or (of.count,) * size
    match of.kind:
        case Kind.ALL_REDUCE:
            return [reduced(sources, of.reduce)] * size
        case Kind.REDUCE:
            whole = reduced(sources, of.reduce)
            return [whole if r == of.root else None for r in ranks]
        case Kind.BROADCAST:
            return [sources[of.root]] * size
        case Kind.ALL_GATHER:
            return [np.concatenate(sources)] * size
        case Kind.GATHER:
            return [np.concatenate(sources) if r == of.root else None for r in ranks]
        case Kind.REDUCE_SCATTER:
            return parts_of(reduced(sources, of.reduce), parts)
        case Kind.SCATTER:
            return parts_of(sources[of.root], parts)
        case Kind.ALL_TO_ALL:
            return [np.concatenate([parts_of(s, parts)[r] for s in sources]) for r in ranks]
        case Kind.ALL_TO_ALL_V:
            rows = zip(sources, of.counts, strict=True)
            pieces = [parts_of(source, row) for source, row in rows]
            return [np.concatenate([p[r] for p in pieces]) for r in ranks]
    return [None] * size


class Shadow:
    """The memory of all ranks on their devices and in numpy. Operations are begun on the devices
    and not waited for until `compare`."""

    def __init__(self, seats, seed):
        self.seats = seats
        self.model, self.buffers, self.last = {}, {}, {}
        for rank, seat in enumerate(seats):
            for number, dtype in enumerate(DType):
                array = numbers(seed, rank, 2 * HALF + 16, NUMPY[dtype])
                self.model[rank, dtype] = array
                part = seat.parts[tuple(range(len(seats)))] if number % 2 else None
                self.buffers[rank, dtype], self.last[rank] = seat.put(array, part)

    def run(self, one):
        """Begin the operation on every member's device, and do it in the model."""
        of, size = one.call.collective, len(one.group)
        needs = [one.call.needs(i, size) for i in range(size)]
        for i, rank in enumerate(one.group):
            buffer, wide = self.buffers[rank, of.dtype], of.dtype.nbytes
            dst, src = (
                Region(buffer, at[i] * wide, (n or 0) * wide)
                for at, n in zip((one.dst, one.src), needs[i], strict=True)
            )
            part, waits = self.seats[rank].parts[one.group], (self.last[rank],)
            self.last[rank] = part.start(of, dst, src, waits, one.call.parts)
        sources = [
            self.model[rank, of.dtype][one.src[i] :][: needs[i][1] or 0].copy()
            for i, rank in enumerate(one.group)
        ]
        for i, given in enumerate(results(one.call, sources)):
            if given is not None:
                self.model[one.group[i], of.dtype][one.dst[i] :][: given.size] = given

    def compare(self):
        """Every byte of every rank."""
        for (rank, dtype), buffer in self.buffers.items():
            got = self.seats[rank].get(buffer, NUMPY[dtype], self.last[rank])
            same(got, self.model[rank, dtype])

    def refresh(self, random):
        """New elements in place of some: sums and products do not all become infinite."""
        for rank, seat in enumerate(self.seats):
            dtype = list(DType)[random.integers(len(DType))]
            array = numbers(int(random.integers(1000)), rank, 2 * HALF + 16, NUMPY[dtype])
            self.model[rank, dtype] = array
            region = self.buffers[rank, dtype].region()
            waits = (self.last[rank],)
            self.last[rank] = seat.device.copy(region, array.tobytes(), seat.timeline, waits)


def groups_of(size):
    """The group of all ranks, of each two neighbours, and of all but the first one."""
    return [tuple(range(size)), *pairwise(range(size)), tuple(range(1, size))]


def run(names, count, seed):
    """So many random operations among ranks with these devices."""
    random, groups = np.random.default_rng(seed), groups_of(len(names))
    small = patch.object(pipeline, "PIECE_NBYTES", 512)  # so that calls have several
    with small, seated(names, *dict.fromkeys(groups[1:])) as seats:
        shadow = Shadow(seats, seed)
        for number in range(count):
            shadow.run(operation(random, groups))
            if number % LOOK == LOOK - 1:
                shadow.compare()
                shadow.refresh(random)
        shadow.compare()


if __name__ == "__main__":
    given = dict(enumerate(sys.argv[1:]))
    devices = given[2].split(",") if 2 in given else mixed(4)
    run(devices, int(given.get(0, 10_000)), int(given.get(1, 0)))
    click.echo(f"right: {given.get(0, 10_000)} operations among {', '.join(devices)}")
