"""A whole run: the first look, then a child process for each group."""

from __future__ import annotations

import datetime
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import field, replace

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal_conformance import look
from hal_conformance.case import Case
from hal_conformance.catalog import catalog, files_of
from hal_conformance.expected import Expected, read_expected
from hal_conformance.job import Job
from hal_conformance.judge import Result
from hal_conformance.plan import Choice, by_group, chosen
from hal_conformance.results import green
from hal_conformance.runner import DEAD, Look, not_run, run

BESIDE = {"D": ("F",), "E": ("J", "G", "H")}
"""The groups whose cases run beside those of another one, in processes of their own, one after the
other, but for what time decides, which comes behind, alone: none takes all memory, and drivers
compile for the most part of D, E and J. The group after it begins when all of them have ended."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to run on which device. `seeded` gives the device each seed as its setting "seed". With
    `others` the cases have mixed groups of the device and these."""

    device: str
    choice: Choice = field(default_factory=Choice)
    seeds: tuple[int, ...] = (0,)
    seeded: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupRun:
    """What a group's cases came to; `look` comes with the first look alone."""

    group: str
    results: tuple[Result, ...]
    look: Look | None = None


def conform(request: Request) -> Iterator[GroupRun]:
    """Run the chosen cases, group by group. The first look is part of group A, which comes first:
    its cases have results when they are chosen or red.

    Raises what `hal.open` raises for a device that is not there, InvalidCall when no case is
    chosen, PluginError for a wrong `hal-conformance.toml`.
    """
    cases = chosen(request.choice, request.seeds[0])
    rest = tuple(case for case in cases if case.id not in look.FIRST)
    for other in request.others:
        look.plugin_of(other)  # a name that is wrong is told now, not by the cases that need it
    expected = read_expected(folder_of(request.device))
    with tempfile.TemporaryDirectory(prefix="hal-conformance-") as cache:
        job = _first_job(request, expected, cache)
        first = _looked(job, expected)
        first = replace(first, results=tuple(_wanted(first.results, cases)))
        if green(first.results) and first.look:
            # A group's own environment may give it other devices: each child asks anew.
            job = replace(job, peers=(), seeds=request.seeds, others=request.others)
            groups = _groups(job, rest, expected)
        else:
            groups = _hopeless(rest, request.seeds)
        yield from _together(first, groups)


def _first_job(request: Request, expected: Expected, cache: str) -> Job:
    return Job(
        request.device,
        look.FIRST,
        look.FILES,
        (request.device,),
        request.seeds[:1],
        request.seeded,
        settings=request.settings,
        floors=expected.floors,
        cache_dir=cache,
    )


def _together(first: GroupRun, groups: Iterator[GroupRun]) -> Iterator[GroupRun]:
    """The first look and group A as one."""
    after = next(groups, None)
    if after is None:
        yield first
    elif after.group == first.group:
        yield replace(first, results=first.results + after.results)
    else:
        yield from (first, after)
    yield from groups


def folder_of(device: str) -> str:
    """Where the device's plugin has its manifest, and beside it what it says about the suite."""
    return look.folder(look.plugin_of(device))


def _looked(job: Job, expected: Expected) -> GroupRun:
    results: list[Result] = []
    seen = None
    for found in run(replace(job, look=True), expected.environment_of("A", job.device)):
        if isinstance(found, Look):
            seen = found
            continue
        results.append(_judged(found, expected))
        if found.outcome in DEAD:
            break
    if seen and job.device not in seen.peers:
        known = ", ".join(seen.peers) or "none"
        raise InvalidCall(f"there is no device {job.device!r}\nknown devices: {known}")
    return GroupRun("A", tuple(results), seen)


def _wanted(results: Sequence[Result], cases: Sequence[Case]) -> Iterator[Result]:
    ids = {case.id for case in cases}
    return (result for result in results if result.id in ids or not green([result]))


def shared(group: str, cases: Sequence[Case]) -> tuple[Case, ...]:
    """Those of a group's cases that run beside others."""
    lanes = {*BESIDE, *(other for others in BESIDE.values() for other in others)}
    return tuple(case for case in cases if group in lanes and not case.timed)


def _groups(job: Job, cases: Sequence[Case], expected: Expected) -> Iterator[GroupRun]:
    groups, ends = by_group(cases), threading.Event()
    together = {group: shared(group, mine) for group, mine in groups.items()}

    def results_of(group: str, mine: Sequence[Case]) -> tuple[Result, ...]:
        if not mine:
            return ()
        turns = replace(job, cases=tuple(case.id for case in mine), files=files_of(mine))
        found: list[Result] = []
        for result in run(turns, expected.environment_of(group, job.device)):
            if ends.is_set():
                break
            if isinstance(result, Result):
                found.append(_judged(result, expected))
        return tuple(found)

    early: dict[str, Future[tuple[Result, ...]]] = {}
    with ThreadPoolExecutor(1, "group beside") as beside:
        try:
            for group, mine in groups.items():
                for other in BESIDE.get(group, ()):
                    if other in groups:
                        early[other] = beside.submit(results_of, other, together[other])
                some = together[group]
                found = early[group].result() if group in early else results_of(group, some)
                if group in BESIDE:
                    wait(early.values())
                alone = tuple(case for case in mine if case not in some)
                yield GroupRun(group, found + results_of(group, alone))
        finally:
            ends.set()


def _hopeless(cases: Sequence[Case], seeds: Sequence[int]) -> Iterator[GroupRun]:
    why = "the first look at the device failed"
    for group, mine in by_group(cases).items():
        yield GroupRun(group, tuple(not_run(case, seed, why) for seed in seeds for case in mine))


def _judged(result: Result, expected: Expected) -> Result:
    return expected.judged(result, datetime.datetime.now(datetime.UTC).date())


def complete(results: Sequence[Result]) -> bool:
    """Whether every case of the suite has a result."""
    return {case.id for case in catalog()} <= {result.id for result in results}
