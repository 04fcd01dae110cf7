"""How long a collective takes in a group of ranks: by size, with the way in which it ran."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.core.values import CollectiveKind, ReduceKind
from stack.comm.choose.chooser import AlgorithmChooser, Demand
from stack.comm.choose.measure import measure
from stack.comm.choose.measured import Measurement
from stack.comm.choose.network import network_of_hosts
from stack.comm.choose.predict import Element
from stack.comm.group import Group
from stack.comm.plan.program import ChunkPlace, Program, even_lengths, extents

Array = NDArray[Any]
Kind = CollectiveKind

FLOAT = Element(4, 4)
ROUNDS = 9
ROUND_S = 0.02
"""How long a round of repetitions is to take, about."""
MOST_REPEATS = 2000
WHOLE = (Kind.ALL_REDUCE, Kind.REDUCE, Kind.BROADCAST)
"""Kinds that have no parts."""
SHARES: Mapping[CollectiveKind, Callable[[int], float]] = {
    Kind.ALL_REDUCE: lambda n: 2 * (n - 1) / n,
    Kind.REDUCE: lambda n: 1.0,
    Kind.BROADCAST: lambda n: 1.0,
    Kind.ALL_GATHER: lambda n: (n - 1) / n,
    Kind.REDUCE_SCATTER: lambda n: (n - 1) / n,
    Kind.ALL_TO_ALL: lambda n: (n - 1) / n,
    Kind.GATHER: lambda n: (n - 1) / n,
    Kind.SCATTER: lambda n: (n - 1) / n,
}
"""Bus bandwidth by algorithm bandwidth, for n ranks: the bytes that the busiest rank has to send or
receive, by those of the vector. It is what a link shows, whatever n is."""


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """A collective of float32 whose longest vector of a rank has `nbytes` ran in `seconds`, the
    median over rounds of the slowest rank's mean. `way` is `Group.way`. `algorithm_bandwidth` and
    `bus_bandwidth` are in bytes/s."""

    kind: str
    nbytes: int
    memory: str
    way: str
    seconds: float
    algorithm_bandwidth: float
    bus_bandwidth: float

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def kind_of(text: str) -> CollectiveKind:
    """The kind by its name, "all_reduce" or "all-reduce". Raises InvalidCall."""
    found = {kind.value: kind for kind in SHARES}.get(text.replace("_", "-"))
    if found is None:
        names = ", ".join(kind.value.replace("-", "_") for kind in SHARES)
        raise InvalidCall(f"--kind is one of {names}; got {text!r}")
    return found


class Subject(Protocol):
    """What makes calls: `memory` says on what, `way` how the last one ran."""

    memory: str

    @property
    def way(self) -> str: ...

    def call(self, kind: CollectiveKind, nbytes: int) -> Callable[[], object]:
        """A call whose longest vector has about so many bytes: a whole number of elements for each
        rank where the kind has parts. It blocks until it is done."""
        ...


def times(
    clock: Group, subject: Subject, kind: CollectiveKind, sizes: Iterable[int]
) -> list[CollectiveTime]:
    """A row for each size; all ranks call it and get the same. `clock` is a group of the ranks that
    may be used beside the calls."""
    return [_time(clock, subject, kind, nbytes) for nbytes in sizes]


def _time(clock: Group, subject: Subject, kind: CollectiveKind, nbytes: int) -> CollectiveTime:
    call = subject.call(kind, nbytes)
    _slowest(clock, call, 1)  # touches the memory, and chooses a program
    repeats = min(max(int(ROUND_S / _slowest(clock, call, 1)), 1), MOST_REPEATS)
    seconds = median(_slowest(clock, call, repeats) for _ in range(ROUNDS))
    call()  # for its way
    rate = nbytes / seconds
    bus = rate * SHARES[kind](clock.size)
    return CollectiveTime(kind.value, nbytes, subject.memory, subject.way, seconds, rate, bus)


def _slowest(group: Group, call: Callable[[], object], repeats: int) -> float:
    """The mean seconds of a call that all ranks begin together, of the slowest rank."""
    group.barrier()
    start_s = time.perf_counter()
    for _ in range(repeats):
        call()
    own = np.array([(time.perf_counter() - start_s) / repeats])
    return float(group.all_reduce(own, ReduceKind.MAX)[0])


class HostMemory:
    """Arrays of zeros, in memory that all ranks of a host map if `shared`."""

    def __init__(self, group: Group, shared: bool) -> None:
        self._group = group
        self._empty: Callable[[int, type], Array] = group.empty if shared else np.zeros
        self.memory = "shared" if shared else "private"

    @property
    def way(self) -> str:
        return self._group.way

    def call(self, kind: CollectiveKind, nbytes: int) -> Callable[[], object]:
        group, (one, whole) = self._group, counts_of(kind, nbytes, self._group.size)
        part, many = self._empty(one, np.float32), self._empty(whole, np.float32)
        own = many if group.rank == 0 else None
        calls: dict[CollectiveKind, Callable[[], object]] = {
            Kind.ALL_REDUCE: lambda: group.all_reduce(part),
            Kind.REDUCE: lambda: group.reduce(part, 0),
            Kind.BROADCAST: lambda: group.broadcast(part, 0),
            Kind.ALL_GATHER: lambda: group.all_gather(part, many),
            Kind.REDUCE_SCATTER: lambda: group.reduce_scatter(many, out=part),
            Kind.ALL_TO_ALL: lambda: group.all_to_all(many),
            Kind.GATHER: lambda: group.gather(part, 0, own),
            Kind.SCATTER: lambda: group.scatter(own, 0, part),
        }
        return calls[kind]


def counts_of(kind: CollectiveKind, nbytes: int, size: int) -> tuple[int, int]:
    """The elements of a rank's own vector and of the longest one."""
    part = max(nbytes // 4 // size, 1)
    return (max(nbytes // 4, 1) if kind in WHOLE else part), part * size


def rows_between_hosts(
    group: Group, kind: CollectiveKind, sizes: Iterable[int]
) -> tuple[Measurement, ...]:
    """The times of the programs that the model holds for the fastest, for the table of the group's
    network; () for a group of one host, whose calls follow no program. All ranks call it."""
    if len(set(group.hosts)) == 1:
        return ()
    in_place = kind in (Kind.ALL_REDUCE, Kind.BROADCAST)  # as the engine follows them
    calls = [Demand(kind, nbytes, FLOAT, in_place=in_place) for nbytes in sizes]
    chooser = AlgorithmChooser(network_of_hosts(group.hosts))
    return measure(chooser, calls, lambda program, call: _followed(group, program, call), ROUNDS)


def _followed(group: Group, program: Program, call: Demand) -> float:
    """Seconds of a program once, on zeros."""
    ranks, places = range(group.size), (ChunkPlace.INPUT, ChunkPlace.OUTPUT)
    most = max(len(extents(program, rank, place)) for rank in ranks for place in places)
    lengths = even_lengths(program.kind, group.size, max(call.nbytes // 4 // most, 1))
    given, got = (len(extents(program, group.rank, place)) * lengths[0] for place in places)
    array = np.zeros(given, np.float32)
    out = array if program.in_place and got == given else np.zeros(got, np.float32)
    return _slowest(group, lambda: group.follow(program, array, out, lengths=lengths), 1)
