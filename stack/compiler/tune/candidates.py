"""The schedules that exist for a problem, the rules' own first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hal.core.description import DeviceInfo
from stack.compiler.blocking import MatmulShape, choose_blocks
from stack.compiler.group_matmul import choose_block
from stack.compiler.lanes import in_groups
from stack.compiler.schedule import Problem, Schedule, default_sizes
from stack.compiler.tune import group_products, loops, products

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
    costs = _costs(problem, info)
    default, *others = costs
    unit = costs[default]
    ranked = sorted(others, key=costs.__getitem__)
    return tuple(Candidate(s, costs[s] / unit) for s in [default, *ranked[: MOST - 1]])


def cost_of(problem: Problem, info: DeviceInfo) -> float:
    """What the model says that the rules' schedule costs, to compare problems of any family."""
    if isinstance(problem, MatmulShape) and in_groups(info):
        return group_products.cost(problem, info, choose_block(problem, info))
    if isinstance(problem, MatmulShape):
        return products.cost(problem, info, choose_blocks(problem, info))
    return loops.cost(problem, info, default_sizes(info))


def _costs(problem: Problem, info: DeviceInfo) -> Mapping[Schedule, float]:
    if isinstance(problem, MatmulShape):
        grouped = in_groups(info)
        return group_products.costs(problem, info) if grouped else products.costs(problem, info)
    return loops.costs(problem, info)
