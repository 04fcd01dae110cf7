"""The schedules that exist for a problem, the rules' own first."""

from __future__ import annotations

from typing import Any

from hal.core.description import DeviceInfo
from hal.core.facts import dataclass
from stack.compiler.targets import choose
from stack.compiler.templates import loop_costs
from stack.compiler.templates.family import Search
from stack.compiler.templates.schedule import LoopProblem, Problem, Schedule

MOST = 48
"""Candidates of a problem; a budget is spent long before more were measured."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule and the model's prediction for it: its time over that of the rules' schedule."""

    schedule: Schedule
    predicted: float


def candidates(problem: Problem, info: DeviceInfo) -> tuple[Candidate, ...]:
    """At most MOST schedules: first the one that the rules choose, whose prediction is 1, then
    others, the most promising first."""
    if isinstance(problem, LoopProblem):
        costs = loop_costs.costs(problem, info, choose(info).templates.loops.sizes)
    else:
        costs = _search(info).costs(problem, info)
    default, *others = costs
    unit = costs[default]
    ranked = sorted(others, key=costs.__getitem__)
    return tuple(Candidate(s, costs[s] / unit) for s in [default, *ranked[: MOST - 1]])


def cost_of(problem: Problem, info: DeviceInfo) -> float:
    """What the model says that the rules' schedule costs, to compare problems of any family."""
    if isinstance(problem, LoopProblem):
        return loop_costs.cost(problem, info, choose(info).templates.loops.sizes)
    return _search(info).cost(problem, info)


def _search(info: DeviceInfo) -> Search[Any]:
    search = choose(info).templates.product.search
    assert search is not None, "a product poses a problem only where there is a choice"
    return search
