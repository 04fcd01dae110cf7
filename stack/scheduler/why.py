"""What a job waits for, in words."""

from __future__ import annotations

import math

from stack.scheduler.books import Books
from stack.scheduler.gang import Gang, Reservation, State
from stack.scheduler.spec import JobSpec

_NAMED = 3
"""How many of those that hold devices are named."""


def why(books: Books, gang: Gang) -> str:
    """The sentence for a job, as things are now."""
    match gang.state:
        case State.RUNNING:
            more = f"{gang.ranks} of " if gang.ranks < gang.spec.ranks else ""
            ranks = f"{more}{ranks_of(gang.spec, gang.spec.ranks)}"
            by = "" if gang.option is None else f" of kind {gang.option.kind!r}"
            by += f" by {gang.strategy}" if gang.strategy else ""
            return f"it runs with {ranks}{by}{_until(books, gang.ends_at)}"
        case State.HELD:
            return "it is held until somebody releases it"
        case State.STOPPING:
            then = "; it waits again after that" if gang.requeue else ""
            return f"it stops, since {gang.why}{then}"
        case State.PROMISED:
            names = _have([*gang.awaits], len(gang.awaits)) if gang.awaits else "others have"
            return f"it starts when {names} left its devices for it"
    first = books.bucket(gang).first
    if first is not gang:
        return (
            f"job {first.job} in queue {gang.spec.queue!r}, which asks for the same, is before it"
        )
    blocked = books.bucket(gang).blocked
    if books.choice in blocked:
        return (
            f"there is room for {gang.spec.ranks} ranks of kind {gang.spec.kinds[0]!r}, but other "
            "jobs with options make more of it"
        )
    if gang.queue.turn in blocked:
        first = min((b.first for b in gang.queue.buckets.values()), key=books.key)
        return f"job {first.job} is before it in queue {gang.spec.queue!r}, which lets none pass"
    return "; ".join(text for kind in gang.spec.kinds if (text := _lack(books, gang, kind)))


def _lack(books: Books, gang: Gang, kind: str) -> str:
    tree = books.trees.get(kind)
    if tree is None:
        return ""
    spec = gang.spec
    need = gang.need
    room = gang.queue.room(kind)
    if room < need:
        used = gang.queue.cohort.tally.later(kind)
        whose = gang.queue.cohort.name
        return (
            f"it needs {need} devices of kind {kind!r}, queue {spec.queue!r} may take {room} now: "
            f"{whose} uses {used} of {gang.queue.cohort.quota.get(kind, 0)}"
            + _before(books, gang, gang.queue.cohort.claims.get(kind))
        )
    most = tree.most(spec, tree.size(spec.devices))
    if most < spec.fewest:
        where = f"in one {spec.within} " if spec.required else ""
        # Who has the devices of a kind that are not free; those first that are over first
        running = books.running[kind].by_end
        mine = [gang.job for gang in books.promised if gang.spec.kinds[0] == kind]
        jobs = [*mine, *(gang.job for _, _, gang in running[:_NAMED])]
        text = f"; {_have(jobs, len(mine) + len(running))} the others" if jobs else ""
        closed = books.trees[kind].closed
        return (
            f"it needs room for {ranks_of(spec, spec.fewest)} of kind {kind!r} {where}"
            f"and finds room for {most}"
            + text
            + f"; {closed} of its chips are lost or drained with their hosts" * bool(closed)
            + _before(books, gang, books.reserved.get(kind))
        )
    for held in (books.reserved.get(kind), gang.queue.cohort.claims.get(kind)):
        if held is not None and held.gang is not gang:
            return (
                f"free devices of kind {kind!r} are kept for job {held.gang.job}, which is before "
                f"it{_until(books, held.at)}"
            )
    return f"devices of kind {kind!r} are given out in order, and others are before it"


def _have(jobs: list[int], count: int) -> str:
    """So many jobs, of which these are known by number, and a verb."""
    named = [str(job) for job in jobs[:_NAMED]]
    if count == 1:
        return f"job {named[0]} has"
    last = f"{count - len(named)} more" if count > len(named) else named.pop()
    return f"jobs {', '.join(named)} and {last} have"


def ranks_of(spec: JobSpec, count: int) -> str:
    """So many ranks of a job, in words, with their devices where these are several."""
    ranks = f"{count} rank" + "s" * (count != 1)
    return ranks if spec.devices == 1 else f"{ranks} of {spec.devices} devices"


def _before(books: Books, gang: Gang, held: Reservation | None) -> str:
    if held is None:
        return ""
    if held.gang is gang:
        return f"; it is next{_until(books, held.at)}"
    return f"; job {held.gang.job} is before it{_until(books, held.at)}"


def _until(books: Books, at: float) -> str:
    return f", in at most {at - books.now:.0f} s by the limits" if math.isfinite(at) else ""
