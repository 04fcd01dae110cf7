"""Room is made for a waiting job: running ones shrink or stop; what nobody wants lets others
grow."""

from __future__ import annotations

from collections.abc import Iterator

from stack.scheduler.books import Books
from stack.scheduler.gang import Gang, Holding, State
from stack.scheduler.moves import ask, resize
from stack.scheduler.topology import DeviceTree, lowest
from stack.scheduler.victims import Offer, rest_of, surpluses


def promise(books: Books, gang: Gang, key: tuple[float, ...]) -> bool:
    """Make others leave for a job and promise it what they leave, if the rules let it and that
    is enough; says whether."""
    spec = gang.spec
    if spec.mixed:
        return False
    for kind in spec.kinds:
        tree = books.trees.get(kind)
        if tree is None:
            continue
        if not (
            gang.overdue
            or books.rules.preempt
            or (books.rules.elastic and bool(books.running[kind].surplus))
            or _may_reclaim(books, gang, kind)
        ):
            continue
        held, claim = books.reserved.get(kind), gang.queue.cohort.claims.get(kind)
        if (held and held.bars(gang, key)) or (claim and claim.bars(gang, key)):
            continue
        index = tree.size(spec.devices)
        taken: list[Offer] = []
        within = False
        for offer in _offers(books, gang, tree):
            within = within or _is_of_own_quota(offer, gang, kind)
            taken.append(offer)
            _suppose(books, tree, offer)
            if tree.most(spec, index) >= spec.fewest and _may_have(gang, kind, within):
                break
        else:
            for offer in taken:
                _retract(books, tree, offer)
            continue
        for offer in taken[:-1]:
            _retract(books, tree, offer)
            if tree.most(spec, index) >= spec.fewest and _may_have(gang, kind, within):
                taken.remove(offer)
            else:
                _suppose(books, tree, offer)
        fit = tree.fit(spec, index, spec.fewest)
        for offer in taken:
            _retract(books, tree, offer)
        books.unwait(gang)
        gang.state, gang.ranks, gang.due = State.PROMISED, spec.fewest, not key[0]
        books.promised[gang] = None
        for leaf, ranks in fit:
            wanted = ranks * spec.devices
            bits = lowest(leaf.free, min(wanted, leaf.free.bit_count()))
            if bits:
                tree.take(leaf, bits)
                gang.holding[leaf] = bits
                books.occupants[leaf][gang] = None
            if wanted > bits.bit_count():
                gang.owed[leaf] = wanted - bits.bit_count()
        books.changed(kind)
        _evict(books, gang, taken)
        books.book(gang)
        return True
    return False


def _may_reclaim(books: Books, gang: Gang, kind: str) -> bool:
    queue = gang.queue
    return books.rules.reclaim and bool(queue.spec.quota) and queue.borrows(kind) + gang.need <= 0


def _is_of_own_quota(offer: Offer, gang: Gang, kind: str) -> bool:
    """Whether a job is to be stopped that has what its queue owns, for another of this queue."""
    queue = gang.queue
    return (
        offer.stop
        and offer.gang.queue is queue
        and bool(queue.spec.quota)
        and (queue.borrows(kind) <= 0)
    )


def _may_have(gang: Gang, kind: str, within: bool) -> bool:
    """Whether a queue's quota allows a job; with `within` what the queue owns alone."""
    queue, need = gang.queue, gang.need
    return queue.room_later(kind) >= need and (not within or queue.borrows(kind) + need <= 0)


def _offers(books: Books, gang: Gang, tree: DeviceTree) -> Iterator[Offer]:
    """What running jobs could leave for this one, the least harm first: ranks beyond what an
    elastic job needs; then jobs on borrowed quota, if the queue would be within its own; then, if
    plain FIFO would have started it by now, those that came later, the last first; then jobs of
    lower priority, the newest first."""
    running = books.running[tree.kind]
    offered: dict[Gang, Holding] = {}
    if books.rules.elastic and running.surplus:
        for offer in surpluses(gang, list(running.surplus), tree.kind):
            offered[offer.gang] = {**offered.get(offer.gang, {}), **offer.masks}
            yield offer
    stopped: set[Gang] = set()
    for other in _stoppable(books, gang, tree.kind):
        if other not in stopped and not other.due and not other.leaving:
            stopped.add(other)
            yield rest_of(other, offered.get(other, {}))


def _stoppable(books: Books, gang: Gang, kind: str) -> Iterator[Gang]:
    if _may_reclaim(books, gang, kind):
        for queue in gang.queue.cohort.queues:
            if queue is gang.queue or queue.borrows(kind) <= 0:
                continue
            for other in sorted(queue.running, key=lambda g: (-g.started, -g.seq)):
                if queue.borrows(kind) <= 0:
                    break
                if other.booked is not None and other.booked.occupied.get(kind):
                    yield other
    if gang.overdue:
        for place, other in books.running[kind].newest.items():
            if -place < gang.seq:
                break
            yield other
    if books.rules.preempt:
        ours = not gang.queue.spec.quota or _is_entitled(gang, kind)
        for (priority, _, _), other in books.running[kind].by_priority.items():
            if priority >= gang.spec.priority:
                break
            if other.queue is gang.queue:
                free = ours
            else:
                free = not (other.queue.spec.quota or gang.queue.spec.quota)
            if free or other.queue.borrows(kind) > 0:
                yield other


def _is_entitled(gang: Gang, kind: str) -> bool:
    """Whether a job would have what its queue owns, if those of lower priority there left. One that
    would borrow stops none of these: who was stopped could take back what it has borrowed, be
    stopped by it again, and so on for ever."""
    lower = sum(
        other.booked.occupied.get(kind, 0)
        for other in gang.queue.running
        if other.booked is not None
        and other.spec.priority < gang.spec.priority
        and not (other.due or other.leaving)
    )
    return gang.queue.borrows(kind) + gang.need - lower <= 0


def _suppose(books: Books, tree: DeviceTree, offer: Offer) -> None:
    for leaf, mask in offer.masks.items():
        if leaf.kind == tree.kind:
            tree.put(leaf, mask)
    offer.gang.queue.count(offer.tally)


def _retract(books: Books, tree: DeviceTree, offer: Offer) -> None:
    for leaf, mask in offer.masks.items():
        if leaf.kind == tree.kind:
            tree.take(leaf, mask)
    offer.gang.queue.count(offer.tally, -1)


def _evict(books: Books, heir: Gang, taken: list[Offer]) -> None:
    """Have victims leave: a job that is stopped leaves all, one that shrinks what was
    chosen."""
    why = f"job {heir.job} of priority {heir.spec.priority} in queue {heir.spec.queue} needs it"
    stops = {offer.gang: None for offer in taken if offer.stop}
    shrinks: dict[Gang, Holding] = {}
    for offer in taken:
        if offer.gang not in stops:
            into = shrinks.setdefault(offer.gang, {})
            for leaf, mask in offer.masks.items():
                into[leaf] = into.get(leaf, 0) | mask
    for victim in stops:
        ask(books, victim, why, requeue=True)
        heir.awaits[victim.job] = None
    for victim, leaving in shrinks.items():
        books.unbook(victim)
        victim.leaving = leaving
        less = sum(mask.bit_count() for mask in leaving.values()) // victim.spec.devices
        victim.now_has(victim.ranks - less, books.now)
        books.book(victim)
        resize(books, victim, why)
        heir.awaits[victim.job] = None


def grow(books: Books) -> None:
    """Give devices that nobody waits for to running jobs that want more ranks, those that have
    the smallest part of what they want first."""
    for kind, tree in books.trees.items():
        running = books.running[kind]
        if not tree.root.room[0] or not running.hungry:
            continue
        if books.pools[kind].waiters:
            continue
        for gang in sorted(running.hungry, key=lambda g: (g.ranks / g.spec.ranks, g.seq)):
            spec = gang.spec
            index = tree.size(spec.devices)
            inside = tree.domain_of(next(iter(gang.holding)), spec)
            more = min(
                spec.ranks - gang.ranks,
                inside.room[index],
                gang.queue.room(kind) // spec.devices,
            )
            if more > 0:
                books.unbook(gang)
                books.take(gang, tree, tree.fit(spec, index, more, inside))
                gang.now_has(gang.ranks + more, books.now)
                books.book(gang)
                resize(books, gang, "nobody waits for these devices")
