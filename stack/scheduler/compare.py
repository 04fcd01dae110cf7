"""Policies compared on one load in simulated time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, replace

from hal.core.facts import dataclass
from stack.scheduler.simulate import Costs, Outcome, Simulation
from stack.scheduler.spec import Backfill, Discipline, Rules
from stack.scheduler.traces import Setting


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules for a whole cluster: `discipline` for every queue, `elastic` lets jobs start from a
    quarter of their ranks."""

    rules: Rules
    discipline: Discipline = Discipline.FILL
    elastic: bool = False


POLICIES = {
    "fifo": Policy(Rules(("submitted",), Backfill.NONE, elastic=False), Discipline.LOCK),
    "fill": Policy(Rules(("submitted",), Backfill.NONE, elastic=False)),
    "easy": Policy(Rules(("submitted",), Backfill.EASY, elastic=False)),
    "conservative": Policy(Rules(("submitted",), Backfill.CONSERVATIVE, elastic=False)),
    "graded": Policy(Rules(("priority", "submitted"), Backfill.EASY, preempt=True, elastic=False)),
    "wide": Policy(
        Rules(("wide", "submitted"), Backfill.CONSERVATIVE, elastic=False, head_start_s=12 * 3600)
    ),
    "fair_start": Policy(Rules(("submitted",), Backfill.EASY, elastic=False, fair_start=1.1)),
    "fair": Policy(Rules(("share", "user", "submitted"), Backfill.EASY, elastic=False)),
    "elastic": Policy(Rules(("submitted",), Backfill.EASY), elastic=True),
}
"""FIFO that locks, traversal that fills holes, backfill with reservations, three priorities with
preemption, conservative backfill where wide jobs have a head start of up to twelve hours, EASY
backfill whose jobs give way to those that they passed when plain FIFO would have started these,
fair shares of queues and users, and elastic jobs under EASY backfill."""


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """What a policy came to: seconds of waiting, the part of device time in which a rank held the
    device, starts beyond the first, sizes changed, and device hours of work done twice."""

    policy: str
    jobs: int
    refused: int
    mean_wait_s: float
    median_wait_s: float
    p99_wait_s: float
    longest_wait_s: float
    makespan_s: float
    use: float
    preemptions: int
    resizes: int
    lost_device_h: float


def simulate(name: str, setting: Setting, costs: Costs) -> tuple[PolicyRow, Outcome]:
    """A load under a policy of POLICIES. Raises KeyError for another name."""
    policy = POLICIES[name]
    tasks, hosts, queues = setting
    if not policy.elastic:
        given = list(tasks)
    else:
        given = [
            replace(task, spec=replace(task.spec, least=max(task.spec.ranks // 4, 1)))
            for task in tasks
        ]
    outcome = Simulation(
        given,
        hosts,
        [replace(queue, discipline=policy.discipline) for queue in queues],
        rules=policy.rules,
        costs=costs,
    ).run()
    courses, waits = outcome.courses.values(), outcome.waits()
    row = PolicyRow(
        name,
        len(courses),
        sum(bool(course.refused) for course in courses),
        sum(waits) / len(waits) if waits else 0.0,
        _quantile(waits, 0.5),
        _quantile(waits, 0.99),
        waits[-1] if waits else 0.0,
        outcome.ended_at,
        outcome.use,
        sum(max(course.starts - 1, 0) for course in courses),
        sum(course.resizes for course in courses),
        sum(course.lost_s for course in courses) / 3600,
    )
    return row, outcome


def data(rows: Iterable[PolicyRow]) -> list[dict[str, object]]:
    """The rows as plain data."""
    return [asdict(row) for row in rows]


def _quantile(ordered: list[float], part: float) -> float:
    return ordered[max(math.ceil(part * len(ordered)) - 1, 0)] if ordered else 0.0
