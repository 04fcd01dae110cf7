"""Tuning the kernels of graphs: from requests to records on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from time import monotonic

from hal.cache import Cache
from hal.core.description import DeviceInfo
from hal.core.errors import HalError
from stack.compiler.program import GraphRequest
from stack.compiler.targets import choose
from stack.compiler.templates.blocking import MatmulShape
from stack.compiler.templates.emit import TileCall
from stack.compiler.templates.schedule import Problem, Schedule
from stack.compiler.tune import Candidate, Tunable, candidates, cost_of, tunables
from stack.runtime.tuned import Record, TunedCandidate, read_record, records_of, write_record
from stack.tune.orders import Extent, Trial
from stack.tune.process import MeasureError
from stack.tune.rig import Rig
from stack.tune.search import Clock, SearchResult, search

LEAST_S = 2.0
"""A budget with less than this for a problem tells nothing."""

Told = Callable[[Tunable, Record | None, str], None]
"""Called after each problem: its record, or None and why there is none; "cached" says that the
record was measured before."""


class KeepError(HalError):
    """The cache directory cannot be written."""

    next_step = "set HAL_CACHE_DIR to a folder that can be written"


def problems_of(requests: Iterable[GraphRequest], info: DeviceInfo) -> tuple[Tunable, ...]:
    """The different problems of graphs, those that the model finds dearest in all first."""
    found: dict[Problem, Tunable] = {}
    for request in requests:
        for tunable in tunables(request, info):
            before = found.get(tunable.problem)
            count = tunable.count + (before.count if before else 0)
            found[tunable.problem] = replace(before or tunable, count=count)
    return tuple(sorted(found.values(), key=lambda t: -_weight(t, info)))


def tune(
    problems: Sequence[Tunable],
    info: DeviceInfo,
    rig: Rig,
    cache_dir: str,
    budget_s: float,
    again: bool,
    told: Told,
    clock: Clock = monotonic,
) -> None:
    """Measure problems and keep their records in the cache directory, one by one.

    Each gets its part of the budget by its share of the predicted time, and at least LEAST_S, so
    that the last ones may get nothing. Those with a record are not measured, but `again`. Raises
    KeepError when a record cannot be written.
    """
    records, ends = records_of(cache_dir, info), clock() + budget_s
    left = sum(_weight(t, info) for t in problems)
    for tunable in problems:
        weight = _weight(tunable, info)
        share = max(LEAST_S, (ends - clock()) * weight / left)
        left -= weight
        found = None if again else read_record(records, tunable.problem)
        if found is not None:
            told(tunable, found, "cached")
        elif clock() + LEAST_S > ends:
            told(tunable, None, "the budget is spent")
        else:
            _tune_one(tunable, info, rig, records, share, told, clock)


def _tune_one(
    tunable: Tunable,
    info: DeviceInfo,
    rig: Rig,
    records: Cache,
    budget_s: float,
    told: Told,
    clock: Clock,
) -> None:
    listed = candidates(tunable.problem, info)
    try:
        found = measured(tunable, listed, info, rig, budget_s, clock)
    except MeasureError as error:
        told(tunable, None, str(error))
        return
    if 0 in found.refused:
        told(tunable, None, f"the rules' own kernel was refused: {found.refused[0]}")
    elif len(listed) > 1 and not found.compared:
        told(tunable, None, "the budget is spent before a second candidate was timed")
    else:
        record = recorded(tunable.problem, listed, found)
        try:
            write_record(records, record)
        except OSError as error:
            what = f"what was measured cannot be kept in {records.path}: {error}"
            raise KeepError(what) from error
        told(tunable, record, "")


def measured(
    tunable: Tunable,
    listed: Sequence[Candidate],
    info: DeviceInfo,
    rig: Rig,
    budget_s: float,
    clock: Clock = monotonic,
) -> SearchResult:
    """Search among the candidates of a problem. Raises MeasureError."""
    default = tunable.kernel(listed[0].schedule)
    numbers = {part: i for i, part in enumerate(dict.fromkeys(default.buffers))}
    rig.begin(tuple(extents_of(tunable.problem, default)))
    write = choose(info).writer(info)

    def render(schedule: Schedule) -> Callable[[], Trial]:
        def trial() -> Trial:
            call = tunable.kernel(schedule)
            args = tuple(numbers[part] for part in call.buffers)
            return Trial(write(call.kernel, info), call.grid, args)

        return trial

    return search([render(c.schedule) for c in listed], rig, budget_s, clock)


def recorded(problem: Problem, listed: Sequence[Candidate], found: SearchResult) -> Record:
    """What was found as a record: the candidates that were tried, the rules' own first."""
    tried = [i for i in range(len(listed)) if i in found.ratios or i in found.refused]
    results = tuple(
        TunedCandidate(
            listed[i].schedule,
            listed[i].predicted,
            median(found.ratios[i]) if found.ratios.get(i) else None,
            len(found.ratios.get(i, ())),
            str(found.refused[i]) if i in found.refused else "",
        )
        for i in tried
    )
    return Record(problem, found.seconds, results, tried.index(found.chosen))


def extents_of(problem: Problem, call: TileCall) -> Iterator[Extent]:
    """The different buffers of a call, in the order of its parameters. Integers may be indices
    unless they are what a product multiplies."""
    factor = problem.dtype if isinstance(problem, MatmulShape) else None
    for part in dict.fromkeys(call.buffers):
        params = [p for p, b in zip(call.kernel.params, call.buffers, strict=True) if b == part]
        dtype, written = params[0].dtype, any(p.writes for p in params)
        yield Extent(part.nbytes, dtype, written, index=dtype.is_int and dtype is not factor)


def _weight(tunable: Tunable, info: DeviceInfo) -> float:
    return tunable.count * cost_of(tunable.problem, info)
