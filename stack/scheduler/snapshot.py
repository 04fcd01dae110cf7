"""A scheduler's state as plain data (dicts, lists, numbers, strings; infinity as a float) and back.

A scheduler restored from a snapshot decides what the one that made it would have decided, event for
event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from stack.scheduler.books import Books
from stack.scheduler.core import Scheduler
from stack.scheduler.events import HostDrained, HostJoined
from stack.scheduler.gang import Blocker, Gang, Reservation, State
from stack.scheduler.spec import Chip, HostSpec, JobSpec, Option, QueueSpec, Rules
from stack.scheduler.topology import Domain

VERSION = 6

PLAIN = (
    *("seq", "submitted", "left_s", "ranks", "since", "started", "stop_by", "yields", "due"),
    *("resizes", "told", "requeue", "why", "overdue", "ran_s", "chosen", "swapped"),
    *("went_at", "went"),
)
"""Fields of a Gang that are numbers, truths or text."""


def job_data(spec: JobSpec) -> dict[str, Any]:
    """A job's specification as plain data."""
    return {**asdict(spec), "kinds": list(spec.kinds)}


def job_spec(data: Mapping[str, Any]) -> JobSpec:
    """The specification of `job_data`."""
    options = tuple(Option(**option) for option in data["options"])
    return JobSpec(**{**data, "kinds": tuple(data["kinds"]), "options": options})


def host_data(host: HostSpec) -> dict[str, Any]:
    """A host as plain data."""
    return {
        "name": host.name,
        "chips": [asdict(chip) for chip in host.chips],
        "domains": list(host.domains),
    }


def host_spec(data: Mapping[str, Any]) -> HostSpec:
    """The host of `host_data`."""
    chips = tuple(Chip(**chip) for chip in data["chips"])
    return HostSpec(data["name"], chips, tuple(data["domains"]))


def snapshot(scheduler: Scheduler) -> dict[str, Any]:
    """All that a scheduler knows, between two events."""
    books = scheduler.books
    blockers = _blockers(books)
    names = {id(blocker): name for name, blocker in blockers.items()}
    claims = {
        (queue.cohort.name, kind): (queue.spec.name, claim)
        for queue in books.queues.values()
        for kind, claim in queue.cohort.claims.items()
    }
    return {
        "version": VERSION,
        "now": books.now,
        "news_at": books.news_at,
        "hosts": [
            {**host_data(host), "usable": all(leaf.usable for leaf in leaves)}
            for host, leaves in books.hosts.values()
        ],
        "jobs": [_gang_data(gang) for gang in books.gangs.values()],
        "fifo": None if books.fifo is None else books.fifo.data(),
        "promised": [gang.job for gang in books.promised],
        "alarms": [list(alarm) for alarm in books.alarms],
        "blocked": [
            [bucket.first.job, [names[id(blocker)] for blocker in bucket.blocked]]
            for bucket in sorted(books.buckets.values(), key=lambda bucket: bucket.first.seq)
        ],
        "reserved": {kind: _reservation_data(held) for kind, held in books.reserved.items()},
        "claims": [
            {"queue": queue, "kind": kind, **_reservation_data(claim)}
            for (_, kind), (queue, claim) in claims.items()
        ],
    }


def restored(
    queues: Sequence[QueueSpec], levels: Sequence[str], rules: Rules, data: Mapping[str, Any]
) -> Scheduler:
    """The scheduler of a snapshot, with the queues, levels and rules that it was made with.

    Raises ValueError for a snapshot of another version."""
    if data["version"] != VERSION:
        raise ValueError(f"a snapshot of version {data['version']}; this reads {VERSION}")
    scheduler = Scheduler(queues, levels, rules)
    books = scheduler.books
    now = data["now"]
    for entry in data["hosts"]:
        usable = entry["usable"]
        host = host_spec({key: value for key, value in entry.items() if key != "usable"})
        scheduler.handle(HostJoined(now, host))
        if not usable:
            scheduler.handle(HostDrained(now, host.name))
    for entry in data["jobs"]:
        _add_gang(books, entry)
    if books.fifo is not None and data["fifo"] is not None:
        books.fifo.restore(data["fifo"])
    elif books.fifo is not None:  # the rules ask only now: all that are here came now
        for gang in sorted(books.gangs.values(), key=lambda gang: gang.seq):
            books.enter(gang)
    books.promised = dict.fromkeys(books.gangs[job] for job in data["promised"])
    blockers = _blockers(books)
    waiting = []
    for job, names in data["blocked"]:
        bucket = books.bucket(books.gangs[job])
        bucket.block(tuple(blockers[name] for name in names))
        waiting.append(bucket)
    for kind, entry in data["reserved"].items():
        books.reserved[kind] = _reservation(books, entry, kind)
    for entry in data["claims"]:
        cohort = books.queues[entry["queue"]].cohort
        cohort.claims[entry["kind"]] = _reservation(books, entry, entry["kind"])
    books.alarms = [(at, job) for at, job in data["alarms"]]
    books.woken.clear()
    books.stirred.clear()
    books.now, books.news_at = now, data["news_at"]
    if not books.moving:  # else nobody asks
        for bucket in waiting:
            bucket.key = books.key(bucket.first)
    return scheduler


def _gang_data(gang: Gang) -> dict[str, Any]:
    return {
        "job": gang.job,
        "spec": job_data(gang.spec),
        "state": gang.state.value,
        **{name: getattr(gang, name) for name in PLAIN},
        "keys": list(gang.key[1:-1]),
        "option": None if gang.option is None else gang.spec.options.index(gang.option),
        "speeds": [[place, speed] for place, speed in gang.speeds.items()],
        "holding": [[*_leaf(leaf), mask] for leaf, mask in gang.holding.items()],
        "leaving": [[*_leaf(leaf), mask] for leaf, mask in gang.leaving.items()],
        "owed": [[*_leaf(leaf), count] for leaf, count in gang.owed.items()],
        "awaits": list(gang.awaits),
    }


def _add_gang(books: Books, data: Mapping[str, Any]) -> None:
    spec = job_spec(data["spec"])
    gang = Gang(
        *(data["job"], spec, data["seq"], data["submitted"], books.queues[spec.queue]),
        data["left_s"],
    )
    for name in PLAIN:
        setattr(gang, name, data[name])
    gang.state = State(data["state"])
    gang.option = None if data["option"] is None else spec.options[data["option"]]
    gang.speeds = dict(data["speeds"])
    gang.key = (1.0, *data["keys"], gang.seq)
    gang.awaits = dict.fromkeys(data["awaits"])
    books.gangs[gang.job] = gang
    if spec.options:
        books.open[gang] = None
    for kind, host, chip, mask in data["holding"]:
        leaf = books.trees[kind].leaves[host, chip]
        books.trees[kind].take(leaf, mask)
        gang.holding[leaf] = mask
        books.occupants[leaf][gang] = None
    gang.leaving = {books.trees[k].leaves[h, c]: mask for k, h, c, mask in data["leaving"]}
    gang.owed = {books.trees[k].leaves[h, c]: count for k, h, c, count in data["owed"]}
    if gang.state is State.WAITING:
        books.wait(gang)
    elif gang.state is not State.HELD:
        books.book(gang)


def _leaf(leaf: Domain) -> tuple[str, str, str]:
    return leaf.kind, leaf.host, leaf.name


def _blockers(books: Books) -> dict[str, Blocker]:
    """All that jobs may wait for, by a name."""
    blockers = {f"devices {kind}": pool for kind, pool in books.pools.items()}
    blockers["choice"] = books.choice
    for queue in books.queues.values():
        blockers[f"turn {queue.spec.name}"] = queue.turn
        for kind in books.trees:
            name = f"quota {queue.cohort.name} of {kind}"
            blockers[name] = queue.cohort.blocker(kind)
    return blockers


def _reservation_data(held: Reservation) -> dict[str, Any]:
    path = []
    domain = held.domain
    while domain is not None and domain.parent is not None:
        path.append(domain.name)
        domain = domain.parent
    return {
        "job": held.gang.job,
        "key": list(held.key),
        "at": held.at,
        "domain": None if held.domain is None else path[::-1],
        "extra": held.extra,
        "looked": held.looked,
        "changes": held.changes,
    }


def _reservation(books: Books, data: Mapping[str, Any], kind: str) -> Reservation:
    path = data["domain"]
    domain = None if path is None else books.trees[kind].domain(path)
    return Reservation(
        *(books.gangs[data["job"]], tuple(data["key"]), data["at"], domain, data["extra"]),
        *(data["looked"], data["changes"]),
    )
