"""Which hardware and how many devices each job gets, when jobs leave that open.

Every job lists alternatives: a kind, a number of devices, a strategy, and the goodput that it would
have with them (from measurements or a planner), as a part of its best one. The choice takes at most
one for each job so that the weighted sum is greatest within the devices that there are, and within
further bounds (quotas). That is a multiple-choice knapsack; it is solved exactly, by branch and
bound, where that takes few steps, and else by the best of greedy ascents (by gain for a device)
with exchanges between pairs of jobs."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hal.core.facts import dataclass

EXACT = 3000
"""Partial choices that are looked at before the search for the best one is given up."""
PAIRS = 16
"""Jobs up to which the best choice of all, and exchanges between two, are looked for."""
_GAIN = 1e-9


@dataclass(frozen=True, slots=True)
class Alternative:
    """`goodput` of a job on so many devices of a kind by a strategy."""

    kind: str
    devices: int
    strategy: str
    goodput: float

    def __post_init__(self) -> None:
        if self.devices < 1 or not self.goodput >= 0:
            raise ValueError(f"an option needs devices and a goodput of 0 or more: {self}")


@dataclass(frozen=True, slots=True)
class Open:
    """A job that leaves its devices open. One that runs `has` an alternative, which is worth
    `moving` more to it than its goodput (what it loses by a save and a restore). It, and one that
    is `owed` an alternative, is not left without any. `bounds` name what it counts against besides
    the devices."""

    job: int
    options: tuple[Alternative, ...]
    weight: float = 1.0
    has: Alternative | None = None
    moving: float = 0.0
    bounds: tuple[str, ...] = ()
    owed: bool = False

    @property
    def must(self) -> bool:
        """Whether it is not left without any."""
        return self.owed or self.has is not None

    def worth(self, option: Alternative | None) -> float:
        """What an alternative counts for in the sum."""
        if option is None:
            return 0.0
        return self.weight * (option.goodput + (self.moving if option == self.has else 0.0))


Chosen = dict[int, Alternative]
Room = dict[tuple[str, str], int]
"""Devices that are left, by bound ("" for those that there are) and kind."""


def worth(jobs: Sequence[Open], chosen: Chosen) -> float:
    """The weighted sum of a choice; a job without an alternative counts 0."""
    return math.fsum(job.worth(chosen.get(job.job)) for job in jobs)


def choose(
    jobs: Sequence[Open],
    free: Mapping[str, int],
    bounds: Mapping[tuple[str, str], int] | None = None,
) -> Chosen:
    """An alternative for each job, or none, within `free` devices of each kind (those that jobs
    have among them) and `bounds` by name and kind. What jobs have now stays unless another choice
    is worth more."""
    room = {("", kind): count for kind, count in free.items()} | dict(bounds or {})
    useful = [_useful(job, room) for job in jobs]
    now = {job.job: job.has for job in useful if job.has is not None}
    best = _exact(useful, room) if len(useful) <= PAIRS else None
    if best is None:
        # Fewest devices for each job that must have something, of the kind that it has.
        least: Chosen = {}
        for job in useful:
            mine = [
                option for option in job.options if job.has is None or option.kind == job.has.kind
            ]
            if job.must and mine:
                least[job.job] = min(mine, key=lambda option: option.devices)
        starts = [now, least, *_starts(useful, room)]
        whole = (start for start in starts if _holds(useful, start, room))
        tries = [_ascend(useful, room, dict(start)) for start in whole]
        best = max(tries, key=lambda chosen: worth(useful, chosen), default={})
        if len(useful) <= PAIRS:
            # Change two jobs at once while that gains
            left = dict(room)
            by_number = {job.job: job for job in useful}
            for job in useful:
                _take(left, job, best.get(job.job))
            while step := _best_pair(useful, left, best):
                for number in step:
                    _take(left, by_number[number], best.pop(number, None), -1)
                for number, changed in step.items():
                    _take(left, by_number[number], changed)
                    if changed is not None:
                        best[number] = changed
            best = _ascend(useful, room, best)
    if _holds(useful, now, room) and worth(useful, best) <= worth(useful, now) * (1 + _GAIN):
        return now
    return best


def _useful(job: Open, room: Room) -> Open:
    """The job with those alternatives that fit, and that none of the same kind beats with as few
    devices."""
    kept: list[Alternative] = []
    order = sorted(job.options, key=lambda o: (o.kind, o.devices, -job.worth(o), o != job.has))
    for option in order:
        beaten = kept and kept[-1].kind == option.kind and job.worth(kept[-1]) >= job.worth(option)
        fits = all(option.devices <= room.get(key, 0) for key in _keys(job, option))
        if fits and not beaten and option.goodput > 0:
            kept.append(option)
    return replace(job, options=tuple(kept))


def _keys(job: Open, option: Alternative) -> list[tuple[str, str]]:
    return [("", option.kind), *((bound, option.kind) for bound in job.bounds)]


def _take(room: Room, job: Open, option: Alternative | None, sign: int = 1) -> bool:
    """Count an alternative against the room, or with sign -1 back; says whether it is enough."""
    if option is None:
        return True
    enough = True
    for key in _keys(job, option):
        room[key] -= sign * option.devices
        enough = enough and room[key] >= 0
    return enough


def _holds(jobs: Sequence[Open], chosen: Chosen, room: Room) -> bool:
    """Whether a choice is within the room, and leaves nobody without who has something."""
    left = dict(room)
    for job in jobs:
        option = chosen.get(job.job)
        if option is None and job.must:
            return False
        if option not in (None, *job.options) or not _take(left, job, option):
            return False
    return True


def _exact(jobs: Sequence[Open], room: Room) -> Chosen | None:
    """The best choice of all; None where that would take long."""
    order = sorted(jobs, key=lambda job: -max(map(job.worth, job.options), default=0.0))
    ranked = [
        sorted([*job.options, *([] if job.must else [None])], key=lambda o: -job.worth(o))
        for job in order
    ]
    most = [max(map(job.worth, job.options), default=0.0) for job in order]
    after = [*itertools.accumulate(reversed(most), initial=0.0)][::-1]
    left, taken = dict(room), list[Alternative | None]()
    best: Chosen = {}
    best_worth, steps = -1.0, 0

    def go_on(place: int, total: float) -> None:
        nonlocal best, best_worth, steps
        steps += 1
        if place == len(order):
            if total > best_worth:
                best_worth = total
                best = {j.job: o for j, o in zip(order, taken, strict=True) if o is not None}
            return
        job = order[place]
        for option in ranked[place]:
            with_it = total + job.worth(option)
            if steps > EXACT or with_it + after[place + 1] <= best_worth:
                return
            if _take(left, job, option):
                taken.append(option)
                go_on(place + 1, with_it)
                taken.pop()
            _take(left, job, option, -1)

    go_on(0, 0.0)
    return None if steps > EXACT else best


def _starts(jobs: Sequence[Open], room: Room) -> list[Chosen]:
    """For each rule that always asks for the same thing (fewest devices, most, one kind), what the
    jobs get by it in the order of their gain for a device."""
    starts: list[Chosen] = []
    keys: list[Callable[[Open, Alternative], float]] = [
        lambda _, option: -option.devices,
        lambda job, option: job.worth(option),
        lambda job, option: job.worth(option) / option.devices,
    ]
    kinds = sorted({kind for bound, kind in room if not bound})
    for kind, key in itertools.product((None, *kinds), keys):
        asked = []
        for job in jobs:
            options = [option for option in job.options if kind in (None, option.kind)]
            if options:
                asked.append((job, max(options, key=lambda option: key(job, option))))
        asked.sort(key=lambda pair: -pair[0].worth(pair[1]) / pair[1].devices)
        left = dict(room)
        chosen: Chosen = {}
        for job, option in asked:
            if _take(left, job, option):
                chosen[job.job] = option
            else:
                _take(left, job, option, -1)
        starts.append(chosen)
    return starts


def _ascend(jobs: Sequence[Open], room: Room, chosen: Chosen) -> Chosen:
    """Take the change of one job with the greatest gain for a device, until none gains."""
    left = dict(room)
    for job in jobs:
        _take(left, job, chosen.get(job.job))
    changes: list[tuple[float, int, int, int]] = []
    turns = [0] * len(jobs)
    kept_up: dict[str, list[tuple[float, int, int, int]]] = {}

    def offer(place: int) -> None:
        job = jobs[place]
        old = chosen.get(job.job)
        has = job.worth(old)
        for number, option in enumerate(job.options):
            gain = job.worth(option) - has
            if gain > _GAIN:
                back = old.devices if old is not None and old.kind == option.kind else 0
                rate = gain / max(option.devices - back, 0.5)
                heapq.heappush(changes, (-rate, place, number, turns[place]))

    for place in range(len(jobs)):
        offer(place)
    while changes:
        change = heapq.heappop(changes)
        _, place, number, turn = change
        job, option = jobs[place], jobs[place].options[number]
        if turn != turns[place]:
            continue
        old = chosen.get(job.job)
        if not _fits(left, job, old, option):
            kept_up.setdefault(option.kind, []).append(change)  # until devices fall free
            continue
        _take(left, job, old, -1)
        _take(left, job, option)
        chosen[job.job] = option
        turns[place] += 1
        offer(place)
        if old is not None:
            for again in kept_up.pop(old.kind, ()):
                heapq.heappush(changes, again)
    return chosen


def _fits(left: Room, job: Open, old: Alternative | None, new: Alternative) -> bool:
    back = old.devices if old is not None and old.kind == new.kind else 0
    return all(new.devices <= left[key] + back for key in _keys(job, new))


def _best_pair(jobs: Sequence[Open], left: Room, chosen: Chosen) -> dict[int, Alternative | None]:
    """A job takes what another gives up (for an option that is smaller, elsewhere, or none)."""
    best: dict[int, Alternative | None] = {}
    best_gain = _GAIN
    for giver in jobs:
        given = chosen.get(giver.job)
        if given is None:
            continue
        for instead in (*([] if giver.must else [None]), *giver.options):
            if instead == given or (instead is not None and not _fits(left, giver, given, instead)):
                continue
            loss = giver.worth(given) - giver.worth(instead)
            room = dict(left)
            _take(room, giver, given, -1)
            _take(room, giver, instead)
            for taker in jobs:
                if taker is giver:
                    continue
                old = chosen.get(taker.job)
                for option in taker.options:
                    gain = taker.worth(option) - taker.worth(old) - loss
                    if gain > best_gain and _fits(room, taker, old, option):
                        best_gain, best = gain, {giver.job: instead, taker.job: option}
    return best
