"""Waiting jobs are tried in order: those that fit start, the first that does not gets a
reservation."""

from __future__ import annotations

import heapq
from operator import attrgetter

from hal.core.facts import dataclass
from stack.scheduler.books import Books
from stack.scheduler.gang import Blocker, Bucket, Gang
from stack.scheduler.moves import start
from stack.scheduler.room import promise
from stack.scheduler.running import Profile, claim_quota, reserve
from stack.scheduler.spec import Backfill, Discipline
from stack.scheduler.topology import DeviceTree, Fit


@dataclass(slots=True, eq=False)
class Fitting:
    """Where a job can start now: ranks in all, and on which leaves of each tree."""

    ranks: int
    fits: list[tuple[DeviceTree, Fit]]


@dataclass(slots=True, eq=False)
class Lacking:
    """What a job waits for; where it is `barred`, nobody leaves for it (see `promise`), since
    another before it has reserved that of every kind."""

    blockers: tuple[Blocker, ...]
    barred: bool


def start_waiting(books: Books) -> None:
    """Try the first of every bucket that something has changed for, in order."""
    if books.rules.backfill is Backfill.CONSERVATIVE:
        # Give every waiting job in order the first time at which it fits, and start those whose
        # time is now. Kinds are counted whole: a job that its domain has no room for goes on
        # waiting
        while books.woken or books.stirred or _overtaken(books):
            books.woken.clear()
            books.stirred.clear()
            _one_pass_with_profile(books)
        return
    heap: list[_Entry] = []
    while True:
        if books.woken:
            for bucket in books.woken:
                _queue(books, heap, bucket)
            books.woken.clear()
        if books.stirred:
            for blocker, tried in list(books.stirred.items()):
                _stir(books, heap, blocker, tried)
        if not heap:
            if _overtaken(books):
                continue
            return
        key, _, bucket = heapq.heappop(heap)
        bucket.queued = False
        if not bucket.gangs:
            continue
        first = bucket.first
        if (books.moving or first.seq != key[-1]) and books.key(first) != key:
            _queue(books, heap, bucket)
            continue
        known = _plainly(books, first, key)
        lacks = known.blockers if known and known.barred else _attempt(books, first, key, known)
        if lacks != bucket.blocked:
            bucket.unblock()
            bucket.block(lacks)


_Entry = tuple[tuple[float, ...], int, Bucket]


def _queue(books: Books, heap: list[_Entry], bucket: Bucket) -> None:
    """Have a bucket tried in its turn."""
    if bucket.gangs and not bucket.queued:
        bucket.queued, bucket.key = True, books.key(bucket.first)
        heapq.heappush(heap, (bucket.key, bucket.ordinal, bucket))


def _stir(books: Books, heap: list[_Entry], blocker: Blocker, tried: Bucket | None) -> None:
    """Queue those whom a change may help: first who has reserved it, or else the first in order,
    `tried` the last one; then those whom the reservation that he makes does not seal. All that wait
    for this come after him, since who comes before takes the reservation over when it is tried."""
    if tried is not None and tried.queued:
        return
    held = None
    if blocker.kind and not books.moving:
        cohort, kind = blocker.cohort, blocker.kind
        held = cohort.claims.get(kind) if cohort else books.reserved.get(kind)
        if held is not None:
            first: Bucket | None = books.bucket(held.gang)
        else:
            first = min(blocker.buckets(), key=attrgetter("key"), default=tried)
        if first is not None and first is not tried:
            books.stirred[blocker] = first
            _queue(books, heap, first)
            return
    if held is not None:
        free = cohort.widest(kind) if cohort else books.trees[kind].root.room[0]
    for shape, same in list(blocker.waiters.items()):
        if held is None or not held.seals(shape, free, books.now):
            for bucket in list(same):
                exactly = (shape[0], bucket.first.left_s)
                if held is None or not held.seals(exactly, free, books.now):
                    _queue(books, heap, bucket)
    del books.stirred[blocker]


def _plainly(books: Books, gang: Gang, key: tuple[float, ...]) -> Lacking | None:
    """What a job lacks, where that is plain without a look for a place: another before it has
    reserved that of every kind, or quota of the only one is short."""
    spec = gang.spec
    if spec.mixed:
        return None
    cohort = gang.queue.cohort
    lacks = []
    for kind in spec.kinds:
        tree = books.trees.get(kind)
        if tree is None:
            continue
        claim = cohort.claims.get(kind)
        room = gang.queue.room(kind)
        if claim is not None and claim.bars(gang, key):
            if room < gang.need or claim.refuses(gang, _ends(books, gang, room)):
                lacks.append(cohort.blocker(kind))
                continue
        elif room < gang.need:
            return Lacking((cohort.blocker(kind),), False) if len(spec.kinds) == 1 else None
        held = books.reserved.get(kind)
        if held is None or not held.bars(gang, key):
            return None
        most = tree.most(spec, tree.size(spec.devices))
        if most >= spec.fewest:
            fresh = held.at > books.now and not held.stale
            ends = _ends(books, gang, min(room, most * spec.devices))
            if not (fresh and held.domain is tree.root and held.refuses(gang, ends)):
                return None
        lacks.append(books.pools[kind])
    return Lacking(tuple(lacks), True) if lacks else None


def _ends(books: Books, gang: Gang, room: int) -> float:
    """When a job ends by its limit, if it starts now with as many ranks as these devices allow."""
    ranks = min(gang.spec.ranks, room // gang.spec.devices)
    return books.now + gang.lasts_s(ranks)


def _overtaken(books: Books) -> bool:
    """Wake jobs that waited for their turn and are the first of their queue now, since keys that
    depend on what is used have changed; says whether there are any."""
    if books.moving:
        for queue in books.queues.values():
            if queue.turn.waiters:
                first = min((b.first for b in queue.buckets.values()), key=books.key)
                bucket = books.bucket(first)
                if queue.turn in bucket.blocked:
                    books.woken[bucket] = None
    return bool(books.woken)


def _attempt(
    books: Books, gang: Gang, key: tuple[float, ...], known: Lacking | None = None
) -> tuple[Blocker, ...]:
    """Start a waiting job, or promise it devices; else what it waits for, if that is not known."""
    turn = turn_of(books, gang, key)
    if turn:
        books.unreserve(gang)  # who comes before it by now must not wait for it
        return turn
    if gang.option is not None and not gang.chosen and key[0] and _fits_now(books, gang):
        books.unreserve(gang)  # it could start, but others make more of these devices
        return (books.choice,)
    place = known or _place(books, gang, key)
    if isinstance(place, Fitting):
        books.unwait(gang)
        for tree, fit in place.fits:
            books.take(gang, tree, fit)
        gang.ranks, gang.due = place.ranks, not key[0]
        start(books, gang)
        return ()
    if not place.barred:
        if promise(books, gang, key):
            return ()
        # A job that lacks devices gets a reservation, if it is the first and the rules give one;
        # one that has waited its patience for quota keeps the others of its cohort from taking any
        lacks = place.blockers
        if not (books.rules.backfill is not Backfill.EASY and key[0]):
            cohort = gang.queue.cohort
            for kind in gang.spec.kinds:
                if cohort.blockers.get(kind) in lacks:
                    claim = cohort.claims.get(kind)
                    if claim is None or not claim.bars(gang, key):
                        cohort.claims[kind] = claim_quota(gang, key, kind, books.now)
            for kind in gang.spec.kinds:
                if books.pools.get(kind) not in lacks:
                    continue
                held = books.reserved.get(kind)
                if held is None or not held.bars(gang, key):
                    tree = books.trees[kind]
                    books.reserved[kind] = reserve(gang, key, tree, books.running[kind], books.now)
    return place.blockers


def _fits_now(books: Books, gang: Gang) -> bool:
    """Whether there are devices and quota for a job of one kind, whoever has reserved them."""
    (kind,) = gang.spec.kinds
    tree = books.trees.get(kind)
    if tree is None or gang.queue.room(kind) < gang.need:
        return False
    return tree.most(gang.spec, tree.size(gang.spec.devices)) >= gang.spec.fewest


def turn_of(books: Books, gang: Gang, key: tuple[float, ...]) -> tuple[Blocker, ...]:
    """Its queue, if somebody before it may not be passed."""
    queue = gang.queue
    if queue.spec.discipline is Discipline.FILL or not key[0]:
        return ()
    first = min((bucket.first for bucket in queue.buckets.values()), key=books.key)
    if first is gang:
        return ()
    climbs = queue.spec.discipline is Discipline.LADDER
    if climbs and books.now >= first.submitted + queue.spec.rung_s:
        return ()
    return (queue.turn,)


def _place(books: Books, gang: Gang, key: tuple[float, ...]) -> Fitting | Lacking:
    """Where a job can start now, with as many ranks as it wants and finds; else what it
    lacks."""
    spec = gang.spec
    lacks: list[Blocker] = []
    found: list[tuple[DeviceTree, Fit]] = []
    total = 0
    barred = True
    for kind in spec.kinds:
        tree = books.trees.get(kind)
        if tree is None:
            continue
        index = tree.size(spec.devices)
        wanted = spec.ranks - total
        fewest = 1 if spec.mixed else spec.fewest
        allowed = gang.queue.room(kind) // spec.devices
        claim = gang.queue.cohort.claims.get(kind)
        if (
            allowed >= fewest
            and claim is not None
            and claim.bars(gang, key)
            and not claim.outlasts(_ends(books, gang, allowed * spec.devices))
        ):
            allowed = min(allowed, claim.extra // spec.devices)
            if allowed < fewest:
                lacks.append(gang.queue.cohort.blocker(kind))
                continue
        barred = False
        if allowed < fewest:
            lacks.append(gang.queue.cohort.blocker(kind))
            continue
        ranks = min(wanted, allowed, tree.most(spec, index))
        fit = _unreserved(books, gang, key, tree, index, ranks, fewest) if ranks >= fewest else []
        if not fit:
            lacks.append(books.pools[kind])
            continue
        found.append((tree, fit))
        total += sum(count for _, count in fit)
        if not spec.mixed or total == spec.ranks:
            return Fitting(total, found)
        lacks += [books.pools[kind], gang.queue.cohort.blocker(kind)]
    if total >= spec.fewest:
        return Fitting(total, found)
    return Lacking(tuple(dict.fromkeys(lacks)), barred)


def _unreserved(
    books: Books,
    gang: Gang,
    key: tuple[float, ...],
    tree: DeviceTree,
    index: int,
    ranks: int,
    fewest: int,
) -> Fit:
    """Leaves for so many ranks, or for fewer, that delay no reservation of a job before this
    one; empty if there are none."""
    spec = gang.spec
    held = books.reserved.get(tree.kind)
    if held is None or not held.bars(gang, key):
        return tree.fit(spec, index, ranks)
    if held.stale or held.at <= books.now:
        held = books.reserved[tree.kind] = reserve(
            held.gang, held.key, tree, books.running[tree.kind], books.now
        )
    if held.domain is tree.root:
        if not held.outlasts(_ends(books, gang, ranks * spec.devices)):
            ranks = min(ranks, held.extra // spec.devices)
            if ranks < fewest:
                return []
            held.extra -= ranks * spec.devices
        return tree.fit(spec, index, ranks)
    for count in dict.fromkeys((ranks, fewest)):
        fit = tree.fit(spec, index, count)
        if held.outlasts(_ends(books, gang, count * spec.devices)):
            return fit
        if held.lets(fit, spec.devices):
            held.extra -= count * spec.devices
            return fit
    return []


def _one_pass_with_profile(books: Books) -> None:
    waiting = [gang for bucket in books.buckets.values() for gang in bucket.gangs.values()]
    waiting.sort(key=books.key)
    profiles = {
        kind: Profile(tree, books.running[kind], books.now) for kind, tree in books.trees.items()
    }
    blocked: dict[Bucket, tuple[Blocker, ...]] = {}
    for gang in waiting[: books.rules.depth]:
        bucket = books.bucket(gang)
        need = gang.need
        long_s = gang.lasts_s(gang.spec.fewest)
        times = {k: profiles[k].first(need, long_s) for k in gang.spec.kinds if k in profiles}
        kind = min(times, key=lambda k: (times[k], gang.spec.kinds.index(k)))
        lacks: tuple[Blocker, ...] = tuple(books.pools[k] for k in times)
        if times[kind] <= books.now or gang.spec.mixed or gang.overdue:
            lacks = _attempt(books, gang, books.key(gang))
        if lacks:
            blocked.setdefault(bucket, lacks)
            if books.pools[kind] in lacks:
                profiles[kind].take(need, times[kind], long_s)
        else:
            for leaf_kind, used in books.has(gang).items():
                profiles[leaf_kind].take(used, books.now, gang.lasts_s(gang.ranks))
        books.woken.pop(bucket, None)
    for bucket, lacks in blocked.items():
        bucket.unblock()
        bucket.block(lacks)
