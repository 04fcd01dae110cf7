"""The jobs that run on devices of one kind, sorted by what is asked of them, and when the first one
that waits can have what it lacks."""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict, SortedList

from hal.core.facts import dataclass
from stack.scheduler.gang import Gang, Reservation, State

if TYPE_CHECKING:
    from stack.scheduler.topology import DeviceTree, Domain


@dataclass(slots=True, eq=False)
class RunningJobs:
    """`by_end` are all, by the end of their limits; `by_priority` those that may be asked to stop,
    lowest and newest first (none unless the rules `preempt`); `newest` those by submission, the
    last first (none without fair starts); `surplus` those with more ranks than they need, and
    `hungry` those with fewer than they want."""

    preempt: bool
    fair_start: bool
    by_end: SortedList[tuple[float, int, Gang]] = field(default_factory=SortedList)
    by_priority: SortedDict[tuple[int, float, int], Gang] = field(default_factory=SortedDict)
    newest: SortedDict[int, Gang] = field(default_factory=SortedDict)
    surplus: dict[Gang, None] = field(default_factory=dict)
    hungry: dict[Gang, None] = field(default_factory=dict)

    def add(self, gang: Gang) -> None:
        """Sort a job in."""
        self.by_end.add((gang.booked_end, gang.job, gang))
        if gang.state is State.RUNNING:
            if self.preempt:
                self.by_priority[gang.spec.priority, -gang.started, gang.job] = gang
            if self.fair_start:
                self.newest[-gang.seq] = gang
            if not gang.leaving and gang.spec.elastic and not gang.spec.mixed:
                if gang.ranks > gang.spec.fewest:
                    self.surplus[gang] = None
                if gang.ranks < gang.spec.ranks:
                    self.hungry[gang] = None

    def remove(self, gang: Gang) -> None:
        """Take a job out, as it was added."""
        self.by_end.remove((gang.booked_end, gang.job, gang))
        self.stops(gang)

    def stops(self, gang: Gang) -> None:
        """A job is asked for nothing more: it has stopped, or is to."""
        if self.preempt:
            self.by_priority.pop((gang.spec.priority, -gang.started, gang.job), None)
        if self.fair_start:
            self.newest.pop(-gang.seq, None)
        self.surplus.pop(gang, None)
        self.hungry.pop(gang, None)


def reserve(
    gang: Gang, key: tuple[float, ...], tree: DeviceTree, running: RunningJobs, now: float
) -> Reservation:
    """The first time at which, by the limits of those that run, there is room for a job (EASY
    backfill, Lifka 1995): devices of each leaf are counted as they become free, ranks by leaf."""
    spec = gang.spec
    if not spec.required and spec.devices == 1:
        return _by_count(gang, key, tree, running, now)
    index = tree.size(spec.devices)
    free: dict[Domain, int] = {}
    ranks: dict[Domain, int] = {}
    freed: dict[Domain, int] = {}
    for looked, (end, _, other) in enumerate(running.by_end):
        for leaf, mask in other.holding.items():
            if leaf.kind != tree.kind or not leaf.usable:
                continue
            domain = tree.domain_of(leaf, spec)
            before = free.get(leaf)
            if before is None:
                before = leaf.free.bit_count()
            free[leaf] = after = before + mask.bit_count()
            freed[domain] = freed.get(domain, 0) + mask.bit_count()
            gained = after // spec.devices - before // spec.devices
            ranks[domain] = ranks.get(domain, 0) + gained
            if domain.room[index] + ranks[domain] >= spec.fewest:
                if math.isinf(end):
                    return Reservation(gang, key, end, domain, 0, looked)
                extra = domain.room[0] + freed[domain] - gang.need
                return Reservation(gang, key, max(end, now), domain, extra, looked)
    return Reservation(gang, key, math.inf, tree.root, 0, len(running.by_end))


def _by_count(
    gang: Gang, key: tuple[float, ...], tree: DeviceTree, running: RunningJobs, now: float
) -> Reservation:
    """The same for ranks of one device anywhere: devices are counted, wherever they are."""
    need, free, usable = gang.spec.fewest, tree.root.room[0], not tree.closed
    kind = tree.kind
    for looked, (end, _, other) in enumerate(running.by_end):
        if usable and other.booked is not None:
            free += other.booked.occupied.get(kind, 0)
        else:
            free += sum(
                mask.bit_count()
                for leaf, mask in other.holding.items()
                if leaf.kind == kind and leaf.usable
            )
        if free >= need:
            extra = 0 if math.isinf(end) else free - need
            return Reservation(gang, key, max(end, now), tree.root, extra, looked)
    return Reservation(gang, key, math.inf, tree.root, 0, len(running.by_end))


def claim_quota(gang: Gang, key: tuple[float, ...], kind: str, now: float) -> Reservation:
    """The first time at which, by the limits of those that run, the job's queue and cohort have
    room for it."""
    queue, need = gang.queue, gang.need
    own, shared = queue.room_own(kind), queue.room_shared(kind)
    at = now
    if own < need or shared < need:
        for end, _, other in queue.cohort.by_end:
            count = other.booked.occupied.get(kind, 0) if other.booked else 0
            if count:
                at = end
                shared += count
                if other.queue is queue:
                    own += count
                if shared >= need and own >= need:
                    break
        else:
            at = math.inf
    if math.isinf(at):
        return Reservation(gang, key, math.inf, None, 0)
    return Reservation(gang, key, max(at, now), None, shared - need)


class Profile:
    """Free devices of a kind over time, by the limits of those that run and what was promised on
    top (conservative backfill: every job in order gets the first time at which it fits)."""

    def __init__(self, tree: DeviceTree, running: RunningJobs, now: float) -> None:
        self._times = [now]
        self._free = [tree.root.room[0]]
        for end, _, gang in running.by_end:
            count = sum(m.bit_count() for leaf, m in gang.holding.items() if leaf.kind == tree.kind)
            if end <= self._times[-1]:
                self._free[-1] += count
            elif math.isfinite(end):
                self._times.append(end)
                self._free.append(self._free[-1] + count)

    def first(self, devices: int, seconds: float) -> float:
        """When so many devices are free for so long, at the earliest; infinity if never."""
        start: int | None = None
        for i, free in enumerate(self._free):
            if free < devices:
                start = None
            elif start is None:
                start = i
            if start is not None:
                until = self._times[i + 1] if i + 1 < len(self._times) else math.inf
                if until >= self._times[start] + seconds:
                    return self._times[start]
        return math.inf

    def take(self, devices: int, start: float, seconds: float) -> None:
        """Promise so many devices from a time on."""
        if math.isinf(start):
            return
        for edge in (start, start + seconds):
            self._cut(edge)
        for i, time in enumerate(self._times):
            if start <= time < start + seconds:
                self._free[i] -= devices

    def _cut(self, time: float) -> None:
        if math.isinf(time):
            return
        for i, known in enumerate(self._times):
            if known == time:
                return
            if known > time:
                self._times.insert(i, time)
                self._free.insert(i, self._free[i - 1])
                return
        self._times.append(time)
        self._free.append(self._free[-1])
