"""Steps of a job from one state to the next, each with its decision."""

from __future__ import annotations

import heapq

from stack.scheduler.books import Books
from stack.scheduler.events import Admit, AskToStop, Resize, Stop
from stack.scheduler.gang import Gang, State
from stack.scheduler.topology import Domain, lowest


def tell(books: Books, gang: Gang) -> None:
    """Stop a job that was asked to and has saved, or has no time left."""
    if gang.state is State.STOPPING and not gang.told:
        gang.told = True
        books.out.append(Stop(gang.job, gang.why))


def ask(books: Books, gang: Gang, why: str, *, requeue: bool) -> None:
    """Have a running job save and stop; one that is to wait again yields what it has."""
    gang.state, gang.why, gang.requeue, gang.yields = State.STOPPING, why, requeue, requeue
    books.stops(gang)
    gang.stop_by = books.now + gang.spec.grace_s
    heapq.heappush(books.alarms, (gang.stop_by, gang.job))
    books.out.append(AskToStop(gang.job, gang.stop_by, why))


def left(books: Books, gang: Gang) -> None:
    """Those who were promised what this job had wait for it no more."""
    for heir in list(books.promised):
        heir.awaits.pop(gang.job, None)
        if not (heir.awaits or heir.owed):
            _keep_promise(books, heir)


def release(books: Books, leaf: Domain, mask: int) -> None:
    """Devices are free: first for those who were promised devices of this leaf."""
    for heir in list(books.promised):
        owed = heir.owed.get(leaf, 0)
        if owed and mask and leaf.usable:
            bits = lowest(mask, min(owed, mask.bit_count()))
            mask &= ~bits
            heir.holding[leaf] = heir.holding.get(leaf, 0) | bits
            books.occupants[leaf][heir] = None
            heir.owed[leaf] = owed - bits.bit_count()
            if not heir.owed[leaf]:
                del heir.owed[leaf]
            _keep_promise(books, heir)
    if mask:
        books.trees[leaf.kind].put(leaf, mask)
        books.changed(leaf.kind)
        books.wake(books.pools[leaf.kind])


def resize(books: Books, gang: Gang, why: str) -> None:
    gang.resizes += 1
    books.out.append(Resize(gang.job, gang.shares(), why, gang.resizes, gang.strategy))


def shrink(gang: Gang, fewer: int) -> None:
    """Choose devices of so many ranks to leave, of the emptiest leaves first, so that hosts fall
    free."""
    for leaf, mask in sorted(gang.holding.items(), key=lambda item: item[1].bit_count()):
        kept = mask & ~gang.leaving.get(leaf, 0)
        count = min(kept.bit_count() // gang.spec.devices, fewer)
        if count:
            bits = lowest(kept, count * gang.spec.devices)
            gang.leaving[leaf] = gang.leaving.get(leaf, 0) | bits
            fewer -= count


def start(books: Books, gang: Gang) -> None:
    """All devices are there: the whole gang starts."""
    gang.state = State.RUNNING
    gang.since = gang.started = books.now
    gang.swapped = False
    books.book(gang)
    books.out.append(Admit(gang.job, gang.shares(), gang.strategy))


def _keep_promise(books: Books, gang: Gang) -> None:
    """Start a promised job once it has its devices, and the quota that others left for it."""
    if gang.state is not State.PROMISED or gang.owed or gang.awaits:
        return
    kinds = gang.tally().promised
    if all(gang.queue.room_now(kind) >= count for kind, count in kinds.items()):
        del books.promised[gang]
        books.unbook(gang)
        start(books, gang)


def break_promise(books: Books, gang: Gang) -> None:
    """What a promised job has or was to get is for all again."""
    del books.promised[gang]
    books.unbook(gang)
    books.wake_quota(gang.queue.cohort)
    gang.owed.clear()
    gang.awaits.clear()
    gang.ranks = 0
    holding, gang.holding = gang.holding, {}
    for leaf, mask in holding.items():
        books.occupants[leaf].pop(gang, None)
        release(books, leaf, mask)
