"""The sizes that a loop nest may have, and a model of what each costs.

The model counts elements of the core that is ready last: how evenly the instances fill the cores,
what starting them costs, and what short blocks cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from hal.core.description import DeviceInfo
from stack.compiler.templates.blocking import ceil_div
from stack.compiler.templates.schedule import LoopProblem, LoopSizes, Schedule

UNROLLS = (4, 2, 8, 1)
ROWS = (256, 64, 16, 1024, 4096)
CHUNKS = (1 << 13, 1 << 11, 1 << 15, 1 << 17)
START = 500
"""Elements in the time that starting an instance takes."""
LOOP = 0.5
"""Elements in the time that one more turn of the innermost loop takes, for each lane."""


def costs(problem: LoopProblem, info: DeviceInfo, default: LoopSizes) -> Mapping[Schedule, float]:
    """Every candidate with its cost; the rules' choice, `default`, comes first."""
    every = [LoopSizes(*sizes) for sizes in product(UNROLLS, ROWS, CHUNKS)]
    return {sizes: cost(problem, info, sizes) for sizes in (default, *every)}


def cost(problem: LoopProblem, info: DeviceInfo, sizes: LoopSizes) -> float:
    """The time of the whole grid in elements, when instances take turns on the cores."""
    many = problem.rows >= sizes.rows_on_grid
    most = sizes.chunk * 8 if many else sizes.chunk
    chunks = ceil_div(problem.columns, sizes.chunk) if problem.columns > most else 1
    programs = min(problem.rows, sizes.rows_on_grid) * chunks
    one = problem.elements / programs * (1 + LOOP / sizes.unroll) + START
    return one * (ceil_div(programs, max(1, info.limits.instances)) + 0.1)
