"""A job as the scheduler keeps it, and the waiting jobs that are alike."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from stack.scheduler.events import Share
from stack.scheduler.tally import Tally

if TYPE_CHECKING:
    from stack.scheduler.quotas import Queue
    from stack.scheduler.spec import JobSpec
    from stack.scheduler.topology import Domain

Holding = dict["Domain", int]
"""Devices of leaves, as bits."""


class State(Enum):
    """Where a job stands.

    WAITING   for devices
    HELD      until somebody releases it
    PROMISED  devices that others are about to leave are its own as they become free
    RUNNING   all its ranks were started
    STOPPING  asked to save, or told to stop
    """

    WAITING = "waiting"
    HELD = "held"
    PROMISED = "promised"
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(slots=True, eq=False)
class Gang:
    """`seq` orders jobs by submission. `holding` are its devices, `leaving` those of them that a
    shrinking job still occupies; one that `yields` leaves all, for another. `owed` counts what a
    promised job still waits for, by leaf, and `awaits` are the jobs that shall leave for it.
    `left_s` is what remains of its limit with all ranks, as of `since`. `booked` is what its queue
    counts for it, and `booked_end` when it was thought to end. A job that was `due` when it started
    is stopped for no other."""

    job: int
    spec: JobSpec
    seq: int
    submitted: float
    queue: Queue
    left_s: float
    state: State = State.WAITING
    ranks: int = 0
    holding: Holding = field(default_factory=dict)
    leaving: Holding = field(default_factory=dict)
    owed: dict[Domain, int] = field(default_factory=dict)
    since: float = 0.0
    started: float = 0.0
    stop_by: float = math.inf
    awaits: dict[int, None] = field(default_factory=dict)
    yields: bool = False
    booked: Tally | None = None
    booked_end: float = math.inf
    due: bool = False
    resizes: int = 0
    keys: tuple[float, ...] = ()
    likeness: tuple[object, ...] = ()
    told: bool = False
    requeue: bool = False
    why: str = ""

    @property
    def ends_at(self) -> float:
        """When its limit ends, if it goes on with the ranks that it has."""
        if math.isinf(self.left_s):
            return math.inf
        return self.since + self.left_s * self.spec.ranks / self.ranks

    def now_has(self, ranks: int, now: float) -> None:
        """Account for the time that has passed and go on with so many ranks."""
        if self.ranks:
            self.left_s = max(self.left_s - (now - self.since) * self.ranks / self.spec.ranks, 0.0)
        self.ranks, self.since = ranks, now

    def tally(self) -> Tally:
        """Its devices by kind, as its queue counts them."""
        occupied: dict[str, int] = {}
        leaving: dict[str, int] = {}
        for leaf, mask in self.holding.items():
            occupied[leaf.kind] = occupied.get(leaf.kind, 0) + mask.bit_count()
        if self.state is State.PROMISED:
            for leaf, count in self.owed.items():
                occupied[leaf.kind] = occupied.get(leaf.kind, 0) + count
            return Tally(promised=occupied)
        if self.yields:
            return Tally(occupied, occupied)
        for leaf, mask in self.leaving.items():
            leaving[leaf.kind] = leaving.get(leaf.kind, 0) + mask.bit_count()
        return Tally(occupied, leaving)

    def shares(self) -> tuple[Share, ...]:
        """Its devices as a decision names them, without those that it leaves."""
        shares = []
        for leaf, mask in self.holding.items():
            bits = mask & ~self.leaving.get(leaf, 0)
            if bits:
                shares.append(Share(leaf.host, leaf.name, leaf.kind, _numbers(bits)))
        return tuple(shares)


def _numbers(bits: int) -> tuple[int, ...]:
    numbers = []
    while bits:
        numbers.append((bits & -bits).bit_length() - 1)
        bits &= bits - 1
    return tuple(numbers)


@dataclass(slots=True, eq=False)
class Blocker:
    """Something that jobs wait for: devices of a kind, a quota, their place in a queue. When it
    changes, `waiters` are tried again."""

    name: str
    waiters: dict[Bucket, None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Bucket:
    """Waiting jobs of one queue that ask for the same, by submission: what the first lacks, all
    lack. `blocked` are what the first one waits for; any of them may help it."""

    ordinal: int
    queue: Queue
    gangs: OrderedDict[int, Gang] = field(default_factory=OrderedDict)
    blocked: tuple[Blocker, ...] = ()

    @property
    def first(self) -> Gang:
        """The job that was submitted first."""
        return next(iter(self.gangs.values()))

    def add(self, gang: Gang) -> None:
        """Take in a job, which may be older than those that wait."""
        newest = next(reversed(self.gangs), -1)
        self.gangs[gang.seq] = gang
        if gang.seq < newest:
            self.gangs = OrderedDict(sorted(self.gangs.items()))


def likeness(spec: JobSpec) -> tuple[object, ...]:
    """What two jobs of a queue share when one bucket holds both. Limits count by powers of two:
    whether a job ends before a reservation is asked of the first of its bucket."""
    limit = math.frexp(spec.limit_s)[1] if math.isfinite(spec.limit_s) else -1
    return (
        *(
            spec.queue,
            spec.priority,
            spec.kinds,
            spec.devices,
            spec.ranks,
            spec.fewest,
            spec.within,
        ),
        *(spec.required, spec.balanced, spec.mixed, spec.user, limit),
    )
