"""What a job waits for, in words."""

from __future__ import annotations

import math

from stack.scheduler.books import Books
from stack.scheduler.gang import Gang, Reservation, State
from stack.scheduler.spec import JobSpec


def why(books: Books, gang: Gang) -> str:
    """The sentence for a job, as things are now."""
    match gang.state:
        case State.RUNNING:
            more = f" of {gang.spec.ranks}" if gang.ranks < gang.spec.ranks else ""
            by = "" if gang.option is None else f" of kind {gang.option.kind!r}"
            by += f" by {gang.strategy}" if gang.strategy else ""
            return f"it runs with {gang.ranks}{more} ranks{by}{_until(books, gang.ends_at)}"
        case State.HELD:
            return "it is held until somebody releases it"
        case State.STOPPING:
            then = "; it waits again after that" if gang.requeue else ""
            return f"it stops, since {gang.why}{then}"
        case State.PROMISED:
            names = ", ".join(str(other) for other in gang.awaits) or "others"
            return f"it starts when jobs {names} have left its devices, which they were told to"
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
        return (
            f"it needs room for {ranks_of(spec, spec.fewest)} of kind {kind!r} {where}"
            f"and finds room for {most}" + _before(books, gang, books.reserved.get(kind))
        )
    for held in (books.reserved.get(kind), gang.queue.cohort.claims.get(kind)):
        if held is not None and held.gang is not gang:
            return (
                f"free devices of kind {kind!r} are kept for job {held.gang.job}, which is before "
                f"it{_until(books, held.at)}"
            )
    return f"devices of kind {kind!r} are given out in order, and others are before it"


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
