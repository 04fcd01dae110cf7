"""Random collectives on devices against a model in numpy.

python -m tests.comm.device.shadow [OPERATIONS [SEED [DEVICE,DEVICE,...]]] runs as many as wanted,
in threads, or under `hal run -n 3 --devices cpu:0,opencl:0 -m` in processes with these devices.
"""

import sys
from dataclasses import dataclass, replace
from itertools import pairwise, product
from unittest.mock import patch

import click
import numpy as np

from hal.core.dtypes import DType
from hal.core.values import Collective, CollectiveKind, ReduceKind, Region
from hal.tile.numeric import NUMPY
from stack.comm.device import pipeline
from stack.comm.device.group import UNEVEN
from stack.comm.world import World
from tests.comm.device.devices import mixed
from tests.comm.device.seats import seated, seated_as
from tests.comm.engine.model import in_pairs, parts_of, reduced
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
    call: Collective
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
    count, counts, parts = int(random.integers(0, most + 1)), (), ()
    if kind is Kind.ALL_TO_ALL_V:
        rows = random.integers(0, most + 1, (size, size)).tolist()
        count, counts = 0, tuple(map(tuple, rows))
    if kind in UNEVEN and random.random() < 0.5:
        count, parts = 0, tuple(random.integers(0, most + 1, size).tolist())
    root = int(random.integers(size))
    call = Collective(kind, dtype, count, how, root, counts, parts)
    src = [int(random.integers(0, 9)) for _ in group]
    dst = [HALF + int(random.integers(0, 9)) for _ in group]
    if kind in IN_PLACE and random.random() < 0.5:
        dst = src
    return Operation(group, call, tuple(dst), tuple(src))


def without_rounding(one):
    """The operation, with what is the same in any order in the place of a sum of floats."""
    if one.call.dtype.is_float:
        return replace(one, call=replace(one.call, reduce=ReduceKind.MAX))
    return one


def results(of, sources):
    """What every destination becomes; None where a rank has none."""
    size, ranks = len(sources), range(len(sources))
    parts = of.parts or (of.count,) * size
    match of.kind:
        case Kind.ALL_REDUCE:
            return [reduced(sources, of.reduce, in_pairs)] * size
        case Kind.REDUCE:
            whole = reduced(sources, of.reduce, in_pairs)
            return [whole if r == of.root else None for r in ranks]
        case Kind.BROADCAST:
            return [sources[of.root]] * size
        case Kind.ALL_GATHER:
            return [np.concatenate(sources)] * size
        case Kind.GATHER:
            return [np.concatenate(sources) if r == of.root else None for r in ranks]
        case Kind.REDUCE_SCATTER:
            return parts_of(reduced(sources, of.reduce, in_pairs), parts)
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
    """The memory of all ranks in numpy, and that of those who sit here on their devices.
    Operations are begun on the devices and not waited for until `compare`."""

    def __init__(self, seats, size, seed):
        self.seats = seats
        self.model, self.buffers, self.last = {}, {}, {}
        for rank, (number, dtype) in product(range(size), enumerate(DType)):
            array = numbers(seed, rank, 2 * HALF + 16, NUMPY[dtype])
            self.model[rank, dtype] = array
            if rank in seats:
                part = seats[rank].parts[tuple(range(size))] if number % 2 else None
                self.buffers[rank, dtype], self.last[rank] = seats[rank].put(array, part)

    def run(self, one):
        """Begin the operation on every member's device, and do it in the model."""
        of, size = one.call, len(one.group)
        needs = [of.elements(i, size) for i in range(size)]
        for i, rank in enumerate(one.group):
            if rank not in self.seats:
                continue
            buffer, wide = self.buffers[rank, of.dtype], of.dtype.nbytes
            dst, src = (
                Region(buffer, at[i] * wide, (n or 0) * wide)
                for at, n in zip((one.dst, one.src), needs[i], strict=True)
            )
            part, waits = self.seats[rank].parts[one.group], (self.last[rank],)
            self.last[rank] = part.start(of, dst, src, waits)
        sources = [
            self.model[rank, of.dtype][one.src[i] :][: needs[i][1] or 0].copy()
            for i, rank in enumerate(one.group)
        ]
        for i, given in enumerate(results(one.call, sources)):
            if given is not None:
                self.model[one.group[i], of.dtype][one.dst[i] :][: given.size] = given

    def compare(self):
        """Every byte of every rank that sits here."""
        for (rank, dtype), buffer in self.buffers.items():
            got = self.seats[rank].get(buffer, NUMPY[dtype], self.last[rank])
            same(got, self.model[rank, dtype])

    def refresh(self, random):
        """New elements in place of some: sums and products do not all become infinite."""
        for rank in {rank for rank, _ in self.model}:
            dtype = list(DType)[random.integers(len(DType))]
            array = numbers(int(random.integers(1000)), rank, 2 * HALF + 16, NUMPY[dtype])
            self.model[rank, dtype] = array
            if rank in self.seats:
                seat, region = self.seats[rank], self.buffers[rank, dtype].region()
                waits = (self.last[rank],)
                self.last[rank] = seat.device.copy(region, array.tobytes(), seat.timeline, waits)


def groups_of(size):
    """The group of all ranks, of each two neighbours, and of all but the first one."""
    found = [tuple(range(size)), *pairwise(range(size)), tuple(range(1, size))]
    return list(dict.fromkeys(found))


def run(names, count, seed, hosts=None):
    """So many random operations among ranks in threads with these devices."""
    with seated(names, *groups_of(len(names))[1:], hosts=hosts) as seats:
        play(dict(enumerate(seats)), len(names), count, seed, ordered=hosts is None)


def run_as(world, count, seed):
    """The same as a rank of a job."""
    with seated_as(world, groups_of(world.size)) as seat:
        play({world.rank: seat}, world.size, count, seed)


def play(seats, size, count, seed, ordered=True):
    """The operations, in calls of several pieces where memory is copied. Sums of floats are those
    of the model if all ranks add up in their order; else there are none."""
    random, groups = np.random.default_rng(seed), groups_of(size)
    with patch.object(pipeline, "PIECE_NBYTES", 512):
        shadow = Shadow(seats, size, seed)
        for number in range(count):
            one = operation(random, groups)
            shadow.run(one if ordered else without_rounding(one))
            if number % LOOK == LOOK - 1:
                shadow.compare()
                shadow.refresh(random)
        shadow.compare()


def main(count="10000", seed="0", names=""):
    """What the command line says."""
    world, devices = World.present(), names.split(",") if names else mixed(4)
    if world is None:
        run(devices, int(count), int(seed))
    else:
        run_as(world, int(count), int(seed))
    where = ", ".join(devices) if world is None else f"{world.size} processes, on {world.device}"
    click.echo(f"right: {count} operations among {where}")


if __name__ == "__main__":
    main(*sys.argv[1:])
