"""Timing of short functions, and of steps that ranks make together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

Clock = Callable[[], float]
Step = Callable[[], object]


def interleaved(
    functions: Sequence[Callable[[], object]],
    rounds: int,
    repeats: int,
    clock: Clock = time.perf_counter,
) -> list[float]:
    """The median seconds of a call of each function; in turns, `repeats` calls at a time.

    `time.process_time` as the clock counts what all threads of the process compute, whatever else
    the machine does.
    """
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, found in zip(functions, times, strict=True):
            found.append(_seconds(function, repeats, clock))
    return [median(found) for found in times]


def _seconds(function: Callable[[], object], repeats: int, clock: Clock) -> float:
    start = clock()
    for _ in range(repeats):
        function()
    return (clock() - start) / repeats


def timed(step: Step, meet: Callable[[], object]) -> tuple[float, float]:
    """The seconds from the ranks' meeting to the next one, and those that this process computed."""
    meet()
    start, computed = time.perf_counter(), time.process_time()
    step()
    computed = time.process_time() - computed
    meet()
    return time.perf_counter() - start, computed
