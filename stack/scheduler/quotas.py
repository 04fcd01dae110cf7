"""What queues own, lend and borrow."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from stack.scheduler.gang import Blocker, Bucket
from stack.scheduler.tally import Tally

if TYPE_CHECKING:
    from stack.scheduler.gang import Gang
    from stack.scheduler.running import Reservation
    from stack.scheduler.spec import QueueSpec

ENDLESS = sys.maxsize


@dataclass(slots=True, eq=False)
class Cohort:
    """Queues that lend to each other: the sum of what they own, and of what they use. `by_end` are
    their running jobs by the end of their limits; `claims` reserve quota of a kind for the first
    job that lacks some."""

    name: str
    quota: dict[str, int] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    blocker: Blocker = field(default_factory=lambda: Blocker("quota"))
    queues: list[Queue] = field(default_factory=list)
    by_end: SortedDict[tuple[float, int], Gang] = field(default_factory=SortedDict)
    claims: dict[str, Reservation] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Queue:
    """A queue, its waiting jobs in buckets, and what its running ones use."""

    spec: QueueSpec
    cohort: Cohort
    tally: Tally = field(default_factory=Tally)
    buckets: dict[tuple[object, ...], Bucket] = field(default_factory=dict)
    running: dict[Gang, None] = field(default_factory=dict)
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
        mine, shared = self.tally, self.cohort.tally
        used = mine.occupied.get(kind, 0)
        later = used - mine.leaving.get(kind, 0) + mine.promised.get(kind, 0)
        all_used = shared.occupied.get(kind, 0)
        all_later = all_used - shared.leaving.get(kind, 0) + shared.promised.get(kind, 0)
        lent = self.cohort.quota.get(kind, 0) - max(all_used, all_later)
        return min(self._own(kind) - max(used, later), lent)

    def borrows(self, kind: str) -> int:
        """Devices of a kind that it has beyond what it owns, as it will be (below 0: it lends)."""
        return self.tally.later(kind) - self.spec.quota.get(kind, 0) if self.spec.quota else 0

    def count(self, tally: Tally, sign: int = 1) -> None:
        """Count a job's devices in, or with sign -1 out."""
        self.tally.add(tally, sign)
        self.cohort.tally.add(tally, sign)


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
    return queues
