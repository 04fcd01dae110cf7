"""The scheduler: events in, decisions out.

What it promises, whatever the rules:

* a gang starts whole (at least `JobSpec.least` ranks) or not at all;
* no queue uses more than its quota and what it may borrow, no cohort more than its queues own;
* devices that somebody leaves for a job go to that job;
* a job that can never fit is refused at once;
* with a finite `Rules.patience_s`, a job that has waited so long is passed by none: it starts when
  the limits of those that run let it;
* with `Rules.fair_start`, none starts later than plain FIFO would start it, but for saving, quotas
  and domains;
* a job with options goes over to another one only where that is worth what it loses by it;
* a job that is stopped for another has saved, or its grace is over.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace

from stack.scheduler.books import Books
from stack.scheduler.events import (
    Alarm,
    Cancelled,
    Decision,
    Ended,
    Event,
    Held,
    HostDrained,
    HostJoined,
    HostLost,
    Measured,
    Refuse,
    Released,
    Resized,
    Saved,
    Submitted,
    Wanted,
)
from stack.scheduler.fifo import PlainFifo
from stack.scheduler.gang import Gang, State
from stack.scheduler.hosts import host_drained, host_joined, host_lost
from stack.scheduler.joint import fewest, start_and_choose
from stack.scheduler.moves import ask, break_promise, left, release, resize, shrink, tell
from stack.scheduler.room import grow
from stack.scheduler.spec import JobSpec, QueueSpec, Rules, SpecError
from stack.scheduler.starting import start_waiting
from stack.scheduler.why import ranks_of, why


class Scheduler:
    """Jobs in queues on a cluster whose hosts lie in domains of these levels, outermost first."""

    def __init__(
        self, queues: Sequence[QueueSpec], levels: Sequence[str] = (), rules: Rules | None = None
    ) -> None:
        self.books = Books(queues, levels, rules or Rules())

    @property
    def alarm_at(self) -> float:
        """When it wants an `Alarm`, if nothing happens before; infinity: never."""
        books = self.books
        own = books.alarms[0][0] if books.alarms else math.inf
        return own if books.fifo is None else min(own, books.fifo.next_at)

    def handle(self, event: Event) -> list[Decision]:
        """What is to be done, in order, now that this has happened.

        Raises SpecError for an event before the last one, or about a job or host that is not
        there."""
        books = self.books
        if not event.at >= books.now:
            raise SpecError(f"event at {event.at}, after one at {books.now}: time goes forward")
        books.now, books.out = event.at, []
        if not isinstance(event, (Ended, Saved, Resized, Alarm)):
            books.news_at = event.at
        if books.fifo is not None:
            _fair_starts(books, books.fifo)
        match event:
            case Submitted(_, job, spec):
                _submitted(books, job, spec)
            case Ended(_, job, done):
                _ended(books, books.gang(job), done)
            case Saved(_, job):
                tell(books, books.gang(job))
            case Cancelled(_, job):
                _cancelled(books, books.gang(job))
            case Held(_, job):
                gang = books.gang(job)
                if gang.state is State.WAITING:
                    books.unwait(gang)
                    gang.state = State.HELD
            case Released(_, job):
                if books.gang(job).state is State.HELD:
                    books.wait(books.gang(job))
            case Wanted(_, job, ranks):
                _wanted(books, books.gang(job), self.with_ranks(job, ranks))
            case Measured(_, job, speed):
                _measured(books.gang(job), speed)
            case Resized(_, job, number):
                if number == books.gang(job).resizes:
                    _resized(books, books.gang(job))
            case HostJoined(_, host):
                host_joined(books, host)
            case HostLost(_, host):
                host_lost(books, host)
            case HostDrained(_, host):
                host_drained(books, host)
            case Alarm():
                pass
        if books.fifo is not None:
            _fair_starts(books, books.fifo)
        if books.alarms and books.alarms[0][0] <= books.now:
            _overdue(books)
        if books.open:
            start_and_choose(books)
        else:
            start_waiting(books)
        if books.rules.elastic:
            grow(books)
        return books.out

    def with_ranks(self, job: int, ranks: int) -> JobSpec:
        """What a job would be with another number of ranks. Raises SpecError for one that is not
        here, or that could not be here so."""
        old = self.books.gang(job).spec
        if old.options:
            raise SpecError(f"job {job} lists options, which say how many ranks it may have")
        spec = replace(old, ranks=ranks, least=min(old.fewest, ranks) if ranks > 0 else 0)
        never = _never(self.books, spec)
        if never:
            raise SpecError(never)
        return spec

    def why(self, job: int) -> str:
        """What a job waits for, in a sentence: who holds it, and until when by the limits of those
        that run. Raises SpecError for a job that is not here."""
        return why(self.books, self.books.gang(job))


def _submitted(books: Books, job: int, spec: JobSpec) -> None:
    if job in books.gangs:
        raise SpecError(f"job {job} was submitted before")
    ways = [spec.placed(option) for option in spec.options] or [spec]
    nevers = dict.fromkeys(_never(books, way) for way in ways)
    if "" not in nevers:
        books.out.append(Refuse(job, "; ".join(nevers)))
        return
    queue = books.queues[spec.queue]
    gang = Gang(job, spec, job, books.now, queue, spec.limit_s)
    if gang.option is not None:
        gang.becomes(fewest(books, gang), books.now)
    books.enter(gang)
    _queued(books, gang)
    for wait_s in (books.rules.patience_s, queue.spec.rung_s):
        if math.isfinite(wait_s):
            heapq.heappush(books.alarms, (books.now + wait_s, job))


def _never(books: Books, spec: JobSpec) -> str:
    """Why a job can never run here; "" if it can."""
    queue = books.queues.get(spec.queue)
    if queue is None:
        there = ", ".join(sorted(books.queues)) or "none"
        return f"there is no queue {spec.queue!r}; there are: {there}"
    if spec.within and spec.within not in (*books.levels, "host", "chip"):
        there = ", ".join((*books.levels, "host", "chip"))
        return f"there is no level {spec.within!r}; there are: {there}"
    most, texts = 0, []
    for kind in spec.kinds:
        tree = books.trees.get(kind)
        if tree is None:
            there = ", ".join(sorted(books.trees)) or "none"
            texts.append(f"there is no device of kind {kind!r}; there are: {there}")
            continue
        fits, owned = tree.capacity(spec), queue.most(kind) // spec.devices
        most = (most if spec.mixed else 0) + min(fits, owned)
        if most >= spec.fewest:
            return ""
        if owned <= fits:
            texts.append(
                f"queue {spec.queue!r} may have {queue.most(kind)} devices of kind {kind!r}"
            )
        else:
            where = f"one {spec.within} of" if spec.required else "all of"
            texts.append(f"{where} kind {kind!r} has room for {ranks_of(spec, fits)}")
    return f"it needs {ranks_of(spec, spec.fewest)}, but " + "; ".join(texts)


def _measured(gang: Gang, speed: float) -> None:
    """Count a measured speed for the option that a job has; while it goes over to another one,
    nobody knows of which it is."""
    if not 0 < speed < math.inf:
        raise SpecError(f"job {gang.job}: its speed is {speed}; above 0, and finite")
    if gang.option is not None and gang.state is State.RUNNING and not gang.leaving:
        gang.speeds[gang.spec.options.index(gang.option)] = speed


def _wanted(books: Books, gang: Gang, spec: JobSpec) -> None:
    match gang.state:
        case State.WAITING:
            books.unwait(gang)
            gang.wants(spec, books.now)
            _queued(books, gang)
        case State.PROMISED:
            break_promise(books, gang)
            gang.wants(spec, books.now)
            _queued(books, gang)
        case State.HELD:
            gang.wants(spec, books.now)
        case State.RUNNING:
            books.unbook(gang)
            gang.wants(spec, books.now)
            if gang.ranks > spec.ranks:
                shrink(gang, gang.ranks - spec.ranks)
                gang.now_has(spec.ranks, books.now)
                resize(books, gang, f"its user wants {spec.ranks} ranks")
            books.book(gang)


def _queued(books: Books, gang: Gang) -> None:
    books.rank(gang)
    books.wait(gang)


def _cancelled(books: Books, gang: Gang) -> None:
    gang.requeue = False
    match gang.state:
        case State.WAITING:
            books.unwait(gang)
            books.over(gang)
        case State.HELD:
            books.over(gang)
        case State.PROMISED:
            break_promise(books, gang)
            books.over(gang)
        case State.RUNNING | State.STOPPING:
            books.unbook(gang)
            gang.state, gang.why = State.STOPPING, "it was cancelled"
            books.book(gang)
            tell(books, gang)


def _ended(books: Books, gang: Gang, done: bool) -> None:
    if gang.state not in (State.RUNNING, State.STOPPING):
        raise SpecError(f"job {gang.job} ended, but it is {gang.state.value}")
    books.unbook(gang)
    books.wake_quota(gang.queue.cohort)
    gang.now_has(0, books.now)
    holding, gang.holding, gang.leaving = gang.holding, {}, {}
    for leaf, mask in holding.items():
        books.occupants[leaf].pop(gang, None)
        release(books, leaf, mask)
    left(books, gang)
    if gang.requeue and not done:
        gang.told, gang.due, gang.yields, gang.requeue = False, False, False, False
        gang.stop_by, gang.why = math.inf, ""
        books.wait(gang)
    else:
        books.over(gang)


def _resized(books: Books, gang: Gang) -> None:
    books.unbook(gang)
    books.wake_quota(gang.queue.cohort)
    leaving, gang.leaving = gang.leaving, {}
    for leaf, mask in leaving.items():
        rest = gang.holding.pop(leaf) & ~mask
        if rest:
            gang.holding[leaf] = rest
        else:
            books.occupants[leaf].pop(gang, None)
        release(books, leaf, mask)
    books.book(gang)
    left(books, gang)


def _fair_starts(books: Books, fifo: PlainFifo) -> None:
    """Jobs that plain FIFO would have started by now are out of patience."""
    for job in fifo.until(books.now):
        gang = books.gangs.get(job)
        if gang is not None:
            gang.overdue = True
            if gang.state is State.WAITING:
                books.news_at = books.now
                _out_of_patience(books, gang)


def _out_of_patience(books: Books, gang: Gang) -> None:
    books.woken[books.bucket(gang)] = None
    books.wake(gang.queue.turn)


def _overdue(books: Books) -> None:
    """Limits, graces and patiences that are over."""
    while books.alarms and books.alarms[0][0] <= books.now:
        at, job = heapq.heappop(books.alarms)
        gang = books.gangs.get(job)
        if gang is None:
            continue
        if gang.state is State.WAITING:
            patiences_s = books.rules.patience_s, gang.queue.spec.rung_s
            if any(at == gang.submitted + patience_s for patience_s in patiences_s):
                books.news_at = books.now
            _out_of_patience(books, gang)
        elif gang.state is State.STOPPING and gang.stop_by <= books.now:
            tell(books, gang)
        elif gang.state is State.RUNNING and gang.ends_at <= books.now:
            ask(books, gang, f"its limit of {gang.spec.limit_s:g} s is over", requeue=False)
