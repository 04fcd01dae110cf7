"""Measures what there is for a call, for the table that corrects the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median

from stack.comm.choose.chooser import AlgorithmChooser, Demand
from stack.comm.choose.measured import Measurement
from stack.comm.plan.program import Program

Run = Callable[[Program, Demand], float]
"""Runs a program once and gives its seconds, the same number on all ranks (such as the longest)."""


def measure(
    chooser: AlgorithmChooser,
    calls: Iterable[Demand],
    run: Run,
    tries: int = 9,
    candidates: int = 4,
) -> tuple[Measurement, ...]:
    """The median times of the algorithms that the model holds for the fastest in each call.

    All ranks call it with equal choosers, and run the same programs in the same order. Tries of the
    programs of a call take turns, so that a disturbance meets all of them, after one that does not
    count.
    """
    rows: list[Measurement] = []
    for call in calls:
        names = [estimate.algorithm for estimate in chooser.estimates(call)[:candidates]]
        programs = {name: chooser.program(name, call) for name in names}
        turns = [{name: run(programs[name], call) for name in names} for _ in range(tries + 1)]
        for name in names:
            seconds = median(turn[name] for turn in turns[1:])
            rows.append(Measurement(call.kind, name, call.nbytes, seconds))
    return tuple(rows)
