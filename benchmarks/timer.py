"""Timing of short functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median


def interleaved(
    functions: Sequence[Callable[[], object]], rounds: int, repeats: int
) -> list[float]:
    """The median seconds of a call of each function; in turns, `repeats` calls at a time."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, found in zip(functions, times, strict=True):
            found.append(_seconds(function, repeats))
    return [median(found) for found in times]


def _seconds(function: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - start) / repeats
