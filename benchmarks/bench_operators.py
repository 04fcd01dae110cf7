"""Operators of each group beside PyTorch's: convolutions, pools, norms, indexing, order, sums."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import geometric_mean, median

from benchmarks.machine import versions
from benchmarks.operator_case import GROUPS
from benchmarks.row import Bar, BenchmarkError, Row
from benchmarks.worker import ABSENT, Worker

BARS = {
    **dict.fromkeys((name for name in GROUPS if "convolutions" in name), Bar(ratio=1.0)),
    **dict.fromkeys(("pools", "norms", "indexing", "sort", "scan", "scatter"), Bar(ratio=1.0)),
    "LSTM of 64 steps": Bar(ratio=1.0),
}
WARM = 2
"""Steps of the whole group before the first that counts."""
MOST_LONGER = 1.2
"""How much longer more steps may take to compile: not at all, but times vary."""


def rows(quick: bool) -> Iterator[Row]:
    """For each group the geometric mean of its operators' times, and each of them.

    Both run in processes of their own and take turns, all operators of a group at a time.
    """
    if versions()["torch"] == ABSENT:
        raise BenchmarkError("torch is not installed")
    for group in GROUPS:
        ours, theirs = _milliseconds(group, 2 if quick else 5)
        means = geometric_mean(ours.values()), geometric_mean(theirs.values())
        yield Row(group, "ms", *means, "PyTorch", BARS.get(group), note="geometric mean")
        for name, own in ours.items():
            yield Row(f"{group}: {name}", "ms", own, theirs[name], "PyTorch")
    first = {n: min(_first(f"LSTM of {n} steps") for _ in range(2)) for n in (16, 64)}
    claim = "LSTM of 64 steps: what its first call compiles, in times of that of 16 steps"
    note = f"{first[64]:.1f} s, empty cache, the less of two"
    yield Row(claim, "", first[64] / first[16], bar=Bar(limit=MOST_LONGER), note=note)


def _first(group: str) -> float:
    """Processor seconds that the first step takes more than the second one, which compiles nothing;
    caches are empty before."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Worker("operator_case", "ours", group, env={"HAL_CACHE_DIR": folder}) as worker,
    ):
        return worker.first.processor_seconds - worker.step().processor_seconds


def _milliseconds(group: str, rounds: int) -> list[dict[str, float]]:
    """The medians of each operator, ours and PyTorch's."""
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker("operator_case", library, group))
            for library in ("ours", "torch")
        ]
        turns = [[w.step().counts for w in workers] for _ in range(WARM + rounds)][WARM:]
    return [
        {name: median(counts[name] for counts in made) / 1e6 for name in made[0]}
        for made in zip(*turns, strict=True)
    ]
