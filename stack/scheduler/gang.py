"""Jobs as the scheduler keeps them, in their queues, with what was reserved for them."""

from __future__ import annotations

import itertools
import math
import sys
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING

from sortedcontainers import SortedList

from hal.core.facts import dataclass
from stack.scheduler.events import Share
from stack.scheduler.tally import Tally

if TYPE_CHECKING:
    from stack.scheduler.spec import JobSpec, Option, QueueSpec
    from stack.scheduler.topology import Domain, Fit

ENDLESS = sys.maxsize

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
    is stopped for no other; one that is `overdue` would have started under plain FIFO. `ran_s` is
    how long it has run, as with all its ranks, up to `since`. `key` is its place among those that
    wait while its patience lasts, and `bucket` where it waits, or has waited last. `need` are the
    devices without which it does not start.

    A job with options is placed by `option`; while it waits, that is `chosen`, or else the one that
    needs the fewest devices. `speeds` are what was measured, by the place of an option. One that is
    `swapped` was stopped to go over to another one, and is not left without any; `went` are
    the options, by their place, that it has left since the last news (`Books`), `went_at` when."""

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
    overdue: bool = False
    ran_s: float = 0.0
    resizes: int = 0
    key: tuple[float, ...] = ()
    bucket: Bucket | None = None
    option: Option | None = field(init=False)
    chosen: bool = False
    swapped: bool = False
    went_at: float = -math.inf
    went: list[int] = field(default_factory=list)
    speeds: dict[int, float] = field(default_factory=dict)
    told: bool = False
    requeue: bool = False
    why: str = ""
    need: int = field(init=False)

    def __post_init__(self) -> None:
        self.need = self.spec.fewest * self.spec.devices
        self.option = None
        if self.spec.options:
            (kind, ranks) = self.spec.kinds[0], self.spec.ranks
            mine = (o for o in self.spec.options if (o.kind, o.ranks) == (kind, ranks))
            self.option = next(mine, None)

    @property
    def shortest_s(self) -> float:
        """A power of two of seconds for which it surely runs on, by its limit."""
        return 2.0 ** (math.frexp(self.left_s)[1] - 1) if math.isfinite(self.left_s) else math.inf

    @property
    def ends_at(self) -> float:
        """When its limit ends, if it goes on with the ranks that it has."""
        if math.isinf(self.left_s):
            return math.inf
        return self.since + self.lasts_s(self.ranks)

    def lasts_s(self, ranks: int) -> float:
        """How long it may run on with so many ranks, by its limit."""
        seconds = self.left_s * self.spec.ranks / ranks
        return seconds if self.option is None else seconds * self.spec.fastest / self.option.speed

    @property
    def strategy(self) -> str:
        """That of its option."""
        return "" if self.option is None else self.option.strategy

    def becomes(self, option: Option, now: float) -> None:
        """Be placed by another option from now on."""
        self.now_has(self.ranks, now)
        self.option, self.spec = option, self.spec.placed(option)
        self.need = self.spec.fewest * self.spec.devices

    def wants(self, spec: JobSpec, now: float) -> None:
        """Take another number of ranks for its own; the work that its limit allows stays."""
        self.now_has(self.ranks, now)
        self.left_s *= self.spec.ranks / spec.ranks
        self.ran_s *= self.spec.ranks / spec.ranks
        self.spec, self.need = spec, spec.fewest * spec.devices

    def now_has(self, ranks: int, now: float) -> None:
        """Account for the time that has passed and go on with so many ranks."""
        if self.ranks:
            passed_s = (now - self.since) * self.ranks / self.spec.ranks
            if self.option is not None:
                passed_s *= self.option.speed / self.spec.fastest
            self.left_s = max(self.left_s - passed_s, 0.0)
            self.ran_s += passed_s
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
                numbers = []
                while bits:
                    numbers.append((bits & -bits).bit_length() - 1)
                    bits &= bits - 1
                shares.append(Share(leaf.host, leaf.name, leaf.kind, tuple(numbers)))
        return tuple(shares)


@dataclass(slots=True, eq=False)
class Blocker:
    """Something that jobs wait for: devices of a `kind`, quota of one in a `cohort`, or their place
    in a queue (of no kind). When it changes, `waiters` are tried again, by their shape."""

    name: str
    kind: str = ""
    cohort: Cohort | None = None
    waiters: dict[Shape, dict[Bucket, None]] = field(default_factory=dict)

    def buckets(self) -> Iterator[Bucket]:
        """All that wait."""
        return itertools.chain.from_iterable(self.waiters.values())


Shape = tuple[int, float]
"""Devices without which a job does not start, and seconds that it surely runs for."""


@dataclass(slots=True, eq=False)
class Bucket:
    """Waiting jobs of one queue that ask for the same (`likeness`), by submission: what the `first`
    lacks, all lack. `blocked` are what the first one waits for, any of them may help it; `key` is
    its place among those that wait, as it was tried last, `queued` says that it is about to be
    tried."""

    ordinal: int
    queue: Queue
    first: Gang
    likeness: tuple[object, ...]
    gangs: OrderedDict[int, Gang] = field(default_factory=OrderedDict)
    blocked: tuple[Blocker, ...] = ()
    key: tuple[float, ...] = ()
    queued: bool = False
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        spec = self.first.spec  # kinds that are mixed give pieces: no one reservation seals them
        self.shape = (0 if spec.mixed else self.first.need, self.first.shortest_s)

    def block(self, lacks: tuple[Blocker, ...]) -> None:
        """Wait for these."""
        self.blocked = lacks
        for blocker in lacks:
            blocker.waiters.setdefault(self.shape, {})[self] = None

    def unblock(self) -> None:
        """Wait for nothing."""
        for blocker in self.blocked:
            same = blocker.waiters[self.shape]
            del same[self]
            if not same:
                del blocker.waiters[self.shape]
        self.blocked = ()

    def add(self, gang: Gang) -> None:
        """Take in a job, which may be older than those that wait."""
        gangs = self.gangs
        if not gangs or gang.seq > next(reversed(gangs)):
            gangs[gang.seq] = gang
        elif gang.seq < self.first.seq:
            gangs[gang.seq] = gang
            gangs.move_to_end(gang.seq, last=False)
        else:
            self.gangs = OrderedDict(sorted([*gangs.items(), (gang.seq, gang)]))
        if gang.seq < self.first.seq or len(gangs) == 1:
            self.first = gang

    def remove(self, gang: Gang) -> None:
        """Let a job go; the last one stays the first of a bucket that is empty."""
        del self.gangs[gang.seq]
        self.first = next(iter(self.gangs.values()), gang)


@dataclass(slots=True, eq=False)
class Reservation:
    """From the time `at`, `gang` has what it needs, in `domain` if it is one of devices and not of
    quota, if all limits hold; `extra` devices may be given to others for longer. `key` is its place
    among those that wait. It was made by looking through `looked` jobs, and so many `changes`
    ago."""

    gang: Gang
    key: tuple[float, ...]
    at: float
    domain: Domain | None
    extra: int
    looked: int = 0
    changes: int = 0

    @property
    def stale(self) -> bool:
        """Whether enough has ended since it was made that looking through all that run again costs
        little for each: an old one is right, but later than it could be."""
        return self.changes * 64 > self.looked

    def bars(self, gang: Gang, key: tuple[float, ...]) -> bool:
        """Whether another job with this key may start only if it delays this one in nothing. One
        that waits because others with options were chosen holds up none of these."""
        mine = self.gang
        if mine is gang or not self.key < key:
            return False
        return mine.option is None or mine.chosen or not gang.chosen

    def outlasts(self, end: float) -> bool:
        """Whether a job that ends by then is gone before this one is due."""
        return end <= self.at and math.isfinite(end)

    def refuses(self, gang: Gang, end: float) -> bool:
        """Whether a job that it bars has no place beside it anywhere in its domain."""
        return self.extra < gang.need and not self.outlasts(end)

    def seals(self, shape: Shape, free: int, now: float) -> bool:
        """Whether jobs of a shape that it bars need not be tried with so many devices free."""
        need, shortest_s = shape
        if need > free:
            return True
        everywhere = self.domain is None or self.domain.parent is None
        fresh = self.at > now and not self.stale
        too_much = self.extra < need and not self.outlasts(now + shortest_s)
        return too_much and everywhere and fresh

    def lets(self, fit: Fit, devices: int) -> bool:
        """Whether ranks of so many devices on these leaves delay it in nothing, however long."""
        inside = 0
        for leaf, ranks in fit:
            above: Domain | None = leaf
            while above is not None and above is not self.domain:
                above = above.parent
            inside += ranks * devices * (above is not None)
        return inside <= self.extra


@dataclass(slots=True, eq=False)
class Cohort:
    """Queues that lend to each other: the sum of what they own, and of what they use. `by_end` are
    their running jobs by the end of their limits; `claims` reserve quota of a kind for the first
    job that lacks some. `spare` is what `lent` gave, by kind, until something is counted. It
    `is_bound` if each of its queues has quotas."""

    name: str
    quota: dict[str, int] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    blockers: dict[str, Blocker] = field(default_factory=dict)
    queues: list[Queue] = field(default_factory=list)
    by_end: SortedList[tuple[float, int, Gang]] = field(default_factory=SortedList)
    claims: dict[str, Reservation] = field(default_factory=dict)
    spare: dict[str, int] = field(default_factory=dict)
    is_bound: bool = True

    def blocker(self, kind: str) -> Blocker:
        """Its quota of a kind, to wait for."""
        if kind not in self.blockers:
            self.blockers[kind] = Blocker(f"quota of {self.name}", kind, self)
        return self.blockers[kind]

    def lent(self, kind: str) -> int:
        """Devices of a kind that none of its queues uses or was promised."""
        known = self.spare.get(kind)
        if known is None:
            known = self.spare[kind] = self.quota.get(kind, 0) - self.tally.most(kind)
        return known

    def widest(self, kind: str) -> int:
        """Devices of a kind that no job of its queues may take more of."""
        return self.lent(kind) if self.is_bound else ENDLESS


@dataclass(slots=True, eq=False)
class Queue:
    """A queue, its waiting jobs in buckets, and what its running ones use. `spare` is what it may
    take more by its own quota and what it may borrow, by kind, until something is counted."""

    spec: QueueSpec
    cohort: Cohort
    tally: Tally = field(default_factory=Tally)
    buckets: dict[tuple[object, ...], Bucket] = field(default_factory=dict)
    running: dict[Gang, None] = field(default_factory=dict)
    spare: dict[str, int] = field(default_factory=dict)
    turn: Blocker = field(default_factory=lambda: Blocker("turn"))

    def most(self, kind: str) -> int:
        """Devices of a kind that the queue may ever have."""
        if not self.spec.quota:
            return ENDLESS
        return min(self._own(kind), self.cohort.quota.get(kind, 0))

    def _own(self, kind: str) -> int:
        owned = self.spec.quota.get(kind, 0)
        if not self.spec.cohort:
            return owned
        borrow = self.spec.borrow.get(kind)
        return ENDLESS if borrow is None else owned + borrow

    def room_now(self, kind: str) -> int:
        """Devices of a kind that its jobs may occupy more at this time."""
        if not self.spec.quota:
            return ENDLESS
        lent = self.cohort.quota.get(kind, 0) - self.cohort.tally.now(kind)
        return min(self._own(kind) - self.tally.now(kind), lent)

    def room_own(self, kind: str) -> int:
        """What it may be promised by its own quota and what it may borrow."""
        return self._own(kind) - self.tally.later(kind) if self.spec.quota else ENDLESS

    def room_shared(self, kind: str) -> int:
        """What it may be promised by what its cohort owns."""
        if not self.spec.quota:
            return ENDLESS
        return self.cohort.quota.get(kind, 0) - self.cohort.tally.later(kind)

    def room_later(self, kind: str) -> int:
        """Devices of a kind that may be promised beyond what was."""
        return min(self.room_own(kind), self.room_shared(kind))

    def room(self, kind: str) -> int:
        """Devices of a kind that a job may take now without breaking a promise."""
        if not self.spec.quota:
            return ENDLESS
        own = self.spare.get(kind)
        if own is None:
            own = self.spare[kind] = self._own(kind) - self.tally.most(kind)
        lent = self.cohort.lent(kind)
        return own if own < lent else lent

    def borrows(self, kind: str) -> int:
        """Devices of a kind that it has beyond what it owns, as it will be (below 0: it lends)."""
        return self.tally.later(kind) - self.spec.quota.get(kind, 0) if self.spec.quota else 0

    def count(self, tally: Tally, sign: int = 1) -> None:
        """Count a job's devices in, or with sign -1 out."""
        self.tally.add(tally, sign)
        self.cohort.tally.add(tally, sign)
        self.spare.clear()
        self.cohort.spare.clear()


def queues_of(specs: tuple[QueueSpec, ...]) -> dict[str, Queue]:
    """The queues by name, each in its cohort; one without a cohort is alone in its own."""
    cohorts: dict[str, Cohort] = {}
    queues = {}
    for spec in specs:
        label = f"cohort {spec.cohort}" if spec.cohort else f"queue {spec.name}"
        cohort = cohorts.setdefault(label, Cohort(label))
        for kind, amount in spec.quota.items():
            cohort.quota[kind] = cohort.quota.get(kind, 0) + amount
        queues[spec.name] = queue = Queue(spec, cohort)
        cohort.queues.append(queue)
        cohort.is_bound &= bool(spec.quota)
    return queues


def likeness(gang: Gang) -> tuple[object, ...]:
    """What two jobs of a queue share when one bucket holds both. What is left of their limits
    counts by powers of two: whether a job ends before a reservation is asked of the first of its
    bucket. What a job with options asks for is its own."""
    spec = gang.spec
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
        *(spec.required, spec.balanced, spec.mixed, spec.user, gang.shortest_s),
        gang.job if spec.options else None,
    )
