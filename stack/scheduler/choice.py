"""Which hardware and how many devices each job gets, when jobs leave that open.

Every job lists options: a kind, a number of devices, a strategy, and the goodput that it would have
with them (samples per second, from measurements or a planner), as a part of its best one. The
choice takes at most one option for each job so that the weighted sum is greatest within the devices
that there are. That is a multiple-choice knapsack; it is solved exactly where the number of
combinations is small, and else by the best of greedy ascents (by gain for the scarcest device) with
exchanges between pairs of jobs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

EXACT = 20_000
"""Combinations of options up to which all are looked at."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """`goodput` of a job on so many devices of a kind by a strategy; `moving` is what it loses when
    this is not what it has now (a save and a restore), in the same unit."""

    kind: str
    devices: int
    strategy: str
    goodput: float
    moving: float = 0.0

    def __post_init__(self) -> None:
        if self.devices < 1 or not self.goodput >= 0 or not self.moving >= 0:
            raise ValueError(f"an option needs devices and a goodput of 0 or more: {self}")

    @property
    def worth(self) -> float:
        """Goodput less what moving there costs."""
        return self.goodput - self.moving


@dataclass(frozen=True, slots=True)
class Open:
    """A job that leaves its devices open."""

    job: int
    options: tuple[Alternative, ...]
    weight: float = 1.0


Chosen = dict[int, Alternative]


def worth(jobs: Sequence[Open], chosen: Chosen) -> float:
    """The weighted sum of a choice; a job without an option counts 0."""
    return math.fsum(job.weight * chosen[job.job].worth for job in jobs if job.job in chosen)


def choose(jobs: Sequence[Open], free: Mapping[str, int]) -> Chosen:
    """An option for each job, or none, within `free` devices of each kind."""
    useful = [
        Open(
            job.job,
            tuple(o for o in _undominated(job) if o.devices <= free.get(o.kind, 0)),
            job.weight,
        )
        for job in jobs
    ]
    combinations = math.prod(len(job.options) + 1 for job in useful)
    if combinations <= EXACT:
        return _all(useful, free)
    tries = [_ascend(useful, free, dict(start)) for start in _starts(useful, free)]
    return max(tries, key=lambda chosen: worth(useful, chosen))


def _undominated(job: Open) -> list[Alternative]:
    """Options that no other of the same kind beats with as few devices."""
    kept: list[Alternative] = []
    for option in sorted(job.options, key=lambda o: (o.kind, o.devices, -o.worth)):
        if not kept or kept[-1].kind != option.kind or option.worth > kept[-1].worth:
            kept.append(option)
    return [option for option in kept if option.worth > 0]


def _all(jobs: Sequence[Open], free: Mapping[str, int]) -> Chosen:
    best: Chosen = {}
    best_worth = 0.0
    for options in itertools.product(*((None, *job.options) for job in jobs)):
        used: dict[str, int] = {}
        total = 0.0
        for job, option in zip(jobs, options, strict=True):
            if option is not None:
                used[option.kind] = used.get(option.kind, 0) + option.devices
                total += job.weight * option.worth
        if total > best_worth and all(free[kind] >= count for kind, count in used.items()):
            best_worth = total
            best = {j.job: o for j, o in zip(jobs, options, strict=True) if o is not None}
    return best


def _starts(jobs: Sequence[Open], free: Mapping[str, int]) -> list[Chosen]:
    """From nothing; and for each rule that always asks for the same thing (fewest devices, most,
    one kind), what the jobs get by it in the order of their gain for a device."""
    starts: list[Chosen] = [{}]
    keys: list[Callable[[Alternative], float]] = [
        lambda option: -option.devices,
        lambda option: option.worth,
        lambda option: option.worth / option.devices,
    ]
    for kind, key in itertools.product((None, *free), keys):
        asked = []
        for job in jobs:
            options = [option for option in job.options if kind in (None, option.kind)]
            if options:
                asked.append((job, max(options, key=key)))
        asked.sort(key=lambda pair: -pair[0].weight * pair[1].worth / pair[1].devices)
        left = dict(free)
        chosen: Chosen = {}
        for job, option in asked:
            if left[option.kind] >= option.devices:
                left[option.kind] -= option.devices
                chosen[job.job] = option
        starts.append(chosen)
    return starts


def _ascend(jobs: Sequence[Open], free: Mapping[str, int], chosen: Chosen) -> Chosen:
    """Take the change of one job with the greatest gain for a device while there is one, then
    changes of two jobs at once that gain, until none does."""
    left = dict(free)
    for option in chosen.values():
        left[option.kind] -= option.devices
    while True:
        step = _best_single(jobs, left, chosen) or _best_pair(jobs, left, chosen)
        if not step:
            return chosen
        for job, changed in step.items():
            old = chosen.pop(job, None)
            if old is not None:
                left[old.kind] += old.devices
            if changed is not None:
                left[changed.kind] -= changed.devices
                chosen[job] = changed


def _best_single(
    jobs: Sequence[Open], left: Mapping[str, int], chosen: Chosen
) -> dict[int, Alternative | None]:
    best: dict[int, Alternative | None] = {}
    best_rate = 0.0
    for job in jobs:
        old = chosen.get(job.job)
        for option in job.options:
            back = old.devices if old is not None and old.kind == option.kind else 0
            gain = job.weight * (option.worth - (old.worth if old is not None else 0.0))
            if gain > 1e-12 and option.devices <= left[option.kind] + back:
                rate = gain / max(option.devices - back, 0.5)
                if rate > best_rate:
                    best_rate, best = rate, {job.job: option}
    return best


def _best_pair(
    jobs: Sequence[Open], left: Mapping[str, int], chosen: Chosen
) -> dict[int, Alternative | None]:
    """A job takes what another gives up (for an option that is smaller, elsewhere, or none)."""
    best: dict[int, Alternative | None] = {}
    best_gain = 1e-9
    for giver in jobs:
        given = chosen.get(giver.job)
        if given is None:
            continue
        for instead in (None, *giver.options):
            if instead is given:
                continue
            room = dict(left)
            room[given.kind] += given.devices
            if instead is not None:
                if instead.devices > room[instead.kind]:
                    continue
                room[instead.kind] -= instead.devices
            loss = giver.weight * (given.worth - (instead.worth if instead is not None else 0.0))
            for taker in jobs:
                if taker is giver:
                    continue
                old = chosen.get(taker.job)
                for option in taker.options:
                    back = old.devices if old is not None and old.kind == option.kind else 0
                    gain = taker.weight * (option.worth - (old.worth if old is not None else 0.0))
                    if gain - loss > best_gain and option.devices <= room[option.kind] + back:
                        best_gain = gain - loss
                        best = {giver.job: instead, taker.job: option}
    return best
