"""Runs a job in child processes: a crash or a hang is a row, and a new child goes on after it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hal.core.facts import dataclass
from hal_conformance.case import Case
from hal_conformance.job import Job
from hal_conformance.judge import Outcome, Result
from hal_conformance.process import END_S, Child, Late

START_S = 60.0
"""How long a child may take to start, before the plugin is imported."""

DEAD = frozenset({Outcome.CRASH, Outcome.HANG})
"""The outcomes after which a child is no more."""

MOST_DEATHS = 5
"""After so many crashes and hangs in one job, the rest of it is not run."""

NOT_RUN = "not run: "
"""What the detail of a case that had no chance begins with."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the first look at a device found: the plugin's devices, and the device's description."""

    peers: tuple[str, ...]
    info: dict[str, Any] | None


def run(job: Job, environment: Mapping[str, str]) -> Iterator[Result | Look]:
    """One result for every turn of the job, in order; then the look, if the job asks for it."""
    deaths = 0
    while job.turns() and deaths < MOST_DEATHS:
        for found in _child(job, environment):
            yield found
            if isinstance(found, Result):
                job = job.after(1)
                deaths += found.outcome in DEAD
    why = f"{MOST_DEATHS} cases before it crashed or hung"
    yield from (not_run(case, seed, why) for seed, case in job.turns())


def not_run(case: Case, seed: int, why: str) -> Result:
    """The result of a case that had no chance: it is not green."""
    return Result(case.id, str(case.level), Outcome.FAIL, 0.0, NOT_RUN + why, seed)


def _child(job: Job, environment: Mapping[str, str]) -> Iterator[Result | Look]:
    """What one child gives: it ends with the job, or with the first case that kills it."""
    with Child(job.text(), environment) as child:
        result = None
        for seed, case in job.turns():
            if result is not None:
                yield result
            result = _turn(child, seed, case)
            if result.outcome in DEAD:
                yield result
                return
        look = child.event(START_S) if job.look else None
        if result is not None:
            yield _with_its_end(result, child)
        if look is not None and look["look"] is not None:
            yield Look(tuple(look["look"]["peers"]), look["look"]["info"])


def _turn(child: Child, seed: int, case: Case) -> Result:
    begin = time.monotonic()
    dead = Result(case.id, str(case.level), Outcome.CRASH, 0.0, "", seed)
    try:
        event = child.event(START_S)
        begin = time.monotonic()
        if event is not None:
            event = child.event(case.timeout_s)
        if event is not None:
            return Result(**{**event["end"], "outcome": Outcome(event["end"]["outcome"])})
        detail = child.ended()
    except Late as late:
        dead = replace(dead, outcome=Outcome.HANG)
        detail = f"it took more than {case.timeout_s:g} s{late}"
    return replace(dead, seconds=time.monotonic() - begin, detail=detail)


def _with_its_end(result: Result, child: Child) -> Result:
    """The last result of a child, red if the child then did not end well."""
    try:
        end = child.ended()
    except Late as late:
        detail = f"after the last case the process did not end in {END_S:g} s{late}"
        return replace(result, outcome=Outcome.HANG, detail=detail)
    if not end:
        return result
    return replace(result, outcome=Outcome.CRASH, detail=f"after the last case {end}")
