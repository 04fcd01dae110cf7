"""What the scheduler knows: who waits, who holds which devices, what queues use, what was
reserved."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence

from stack.scheduler.choice import Chosen
from stack.scheduler.events import Decision
from stack.scheduler.fifo import PlainFifo
from stack.scheduler.gang import (
    Blocker,
    Bucket,
    Cohort,
    Gang,
    Reservation,
    State,
    likeness,
    queues_of,
)
from stack.scheduler.order import KEYS, MOVING, Use
from stack.scheduler.running import RunningJobs
from stack.scheduler.spec import HostSpec, QueueSpec, Rules, SpecError
from stack.scheduler.tally import Tally
from stack.scheduler.topology import DeviceTree, Domain, Fit, lowest


class Books:
    """One cluster's state. `open` are the jobs with options, and `choice` is what those wait for
    that could start where others make more of the devices; `choices` are what was chosen from last,
    and what, which is the same for the same. `woken` are buckets whose first is
    another, or whose time has come, `stirred` what has changed that others wait for, `out` the
    decisions of the event that is handled. `news_at` is when something last happened that does not
    just follow from decisions: a job came or is over, a host, a speed, a patience that ended."""

    def __init__(self, queues: Sequence[QueueSpec], levels: Sequence[str], rules: Rules) -> None:
        self.rules = rules
        self.levels = tuple(levels)
        for name in self.rules.order:
            if name not in KEYS:
                there = ", ".join(KEYS)
                raise SpecError(f"rules: there is no key {name!r} to order by; there are: {there}")
        self.keys = [KEYS[name] for name in self.rules.order]
        self.moving = any(name in MOVING for name in self.rules.order)
        self.by_user = "user" in self.rules.order
        self.queues = queues_of(tuple(queues))
        self.trees: dict[str, DeviceTree] = {}
        self.pools: dict[str, Blocker] = {}
        self.hosts: dict[str, tuple[HostSpec, list[Domain]]] = {}
        self.gangs: dict[int, Gang] = {}
        self.open: dict[Gang, None] = {}
        self.choice = Blocker("the choice of options")
        self.choices: tuple[object, Chosen] | None = None
        self.buckets: dict[tuple[object, ...], Bucket] = {}
        self.occupants: dict[Domain, dict[Gang, None]] = {}
        self.promised: dict[Gang, None] = {}
        self.running: dict[str, RunningJobs] = {}
        self.reserved: dict[str, Reservation] = {}
        self.alarms: list[tuple[float, int]] = []
        self.woken: dict[Bucket, None] = {}
        self.stirred: dict[Blocker, Bucket | None] = {}
        self.fifo = PlainFifo(rules.fair_start) if rules.fair_start else None
        self.users: dict[str, Tally] = defaultdict(Tally)
        self.use = Use({}, self.users, rules.head_start_s)
        self.now = self.news_at = -math.inf
        self.out: list[Decision] = []

    def gang(self, job: int) -> Gang:
        gang = self.gangs.get(job)
        if gang is None:
            raise SpecError(f"job {job} is not here: it ended, was refused, or never came")
        return gang

    def wait(self, gang: Gang) -> None:
        gang.state = State.WAITING
        key = likeness(gang)
        bucket = self.buckets.get(key)
        if bucket is None:
            bucket = self.buckets[key] = Bucket(len(self.buckets), gang.queue, gang, key)
            gang.queue.buckets[key] = bucket
        gang.bucket = bucket
        bucket.add(gang)
        if bucket.first is gang:
            self.woken[bucket] = None

    def unwait(self, gang: Gang) -> None:
        """Take a job out of the waiting ones; whoever waited behind it is tried again."""
        bucket = self.bucket(gang)
        was_first = bucket.first is gang
        bucket.remove(gang)
        if not bucket.gangs:
            bucket.unblock()
            del self.buckets[bucket.likeness], gang.queue.buckets[bucket.likeness]
            self.woken.pop(bucket, None)
        elif was_first:
            self.woken[bucket] = None
        self.wake(gang.queue.turn)
        self.unreserve(gang)

    def unreserve(self, gang: Gang) -> None:
        """What a job has reserved is for all again."""
        for kind in gang.spec.kinds:
            held = self.reserved.get(kind)
            if held is not None and held.gang is gang:
                del self.reserved[kind]
                self.wake(self.pools[kind])
            claim = gang.queue.cohort.claims.get(kind)
            if claim is not None and claim.gang is gang:
                del gang.queue.cohort.claims[kind]
                self.wake(gang.queue.cohort.blocker(kind))

    def wake(self, blocker: Blocker) -> None:
        if blocker.waiters:
            self.stirred[blocker] = None

    def wake_quota(self, cohort: Cohort) -> None:
        for blocker in cohort.blockers.values():
            self.wake(blocker)

    def leaves(self, host: str) -> list[Domain]:
        if host not in self.hosts:
            raise SpecError(f"there is no host {host!r}")
        return self.hosts[host][1]

    def take(self, gang: Gang, tree: DeviceTree, fit: Fit) -> None:
        """Hold free devices of these leaves for a job."""
        for leaf, ranks in fit:
            bits = lowest(leaf.free, ranks * gang.spec.devices)
            tree.take(leaf, bits)
            gang.holding[leaf] = gang.holding.get(leaf, 0) | bits
            self.occupants[leaf][gang] = None
        self.changed(tree.kind)

    def book(self, gang: Gang) -> None:
        """Count what a job has, and sort it among those that run."""
        gang.booked = tally = gang.tally()
        gang.booked_end = gang.ends_at if gang.ranks else math.inf
        gang.queue.count(tally)
        if self.by_user:
            self.users[gang.spec.user].add(tally, 1)
        if gang.state is not State.PROMISED:
            gang.queue.cohort.by_end.add((gang.booked_end, gang.job, gang))
            for kind in tally.occupied:
                self.running[kind].add(gang)
            if gang.state is State.RUNNING:
                gang.queue.running[gang] = None
                if math.isfinite(gang.booked_end):
                    heapq.heappush(self.alarms, (gang.booked_end, gang.job))

    def unbook(self, gang: Gang) -> None:
        """Undo `book`, before anything that it read changes."""
        tally = gang.booked
        assert tally is not None
        gang.booked = None
        gang.queue.count(tally, -1)
        if self.by_user:
            self.users[gang.spec.user].add(tally, -1)
        if gang.state is not State.PROMISED:
            gang.queue.cohort.by_end.remove((gang.booked_end, gang.job, gang))
            for kind in tally.occupied:
                self.running[kind].remove(gang)
            gang.queue.running.pop(gang, None)

    def stops(self, gang: Gang) -> None:
        """A running job is asked to stop: none asks for what it has again, and if it `yields`, all
        of that is about to be left. Its end stays where it is sorted."""
        tally = gang.booked
        assert tally is not None
        gang.queue.running.pop(gang, None)
        for kind in tally.occupied:
            self.running[kind].stops(gang)
        if gang.yields:
            gang.booked = yielded = gang.tally()
            for counted, sign in ((tally, -1), (yielded, 1)):
                gang.queue.count(counted, sign)
                if self.by_user:
                    self.users[gang.spec.user].add(counted, sign)

    def changed(self, kind: str) -> None:
        held = self.reserved.get(kind)
        if held is not None:
            held.changes += 1

    def enter(self, gang: Gang) -> None:
        """A job is here."""
        self.gangs[gang.job] = gang
        if gang.spec.options:
            self.open[gang] = None
        if self.fifo is not None:
            spec = gang.spec
            kind = next(kind for kind in spec.kinds if kind in self.trees)
            self.fifo.submitted(gang.job, kind, spec.ranks * spec.devices)

    def over(self, gang: Gang) -> None:
        """A job is here no more."""
        self.news_at = self.now
        del self.gangs[gang.job]
        self.open.pop(gang, None)
        if self.fifo is not None:
            self.fifo.over(gang.job, gang.ran_s, self.now)

    def bucket(self, gang: Gang) -> Bucket:
        assert gang.bucket is not None, "it waits"
        return gang.bucket

    def key(self, gang: Gang) -> tuple[float, ...]:
        """A job's place among those that wait: those whose patience is over come first, by
        submission, since by any other key a newer one could pass."""
        if (
            gang.overdue or self.now >= gang.submitted + self.rules.patience_s
        ):  # when the alarm rings, to the bit
            return (0.0, gang.seq)
        if self.moving:
            self.rank(gang)
        return gang.key

    def rank(self, gang: Gang) -> None:
        """Give a job its place among those that wait, by what the rules compare now."""
        gang.key = (1.0, *[key(gang, self.use) for key in self.keys], gang.seq)

    def has(self, gang: Gang) -> dict[str, int]:
        tally = gang.tally()
        return tally.promised if gang.state is State.PROMISED else tally.occupied
