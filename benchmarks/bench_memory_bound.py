"""Kernels that memory limits, beside a copy past the caches in the same minutes and against PyTorch
and torch.compile, by processor time."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import geometric_mean

from benchmarks.kernel_case import MEMORY_BOUND
from benchmarks.kernel_turns import best, measured
from benchmarks.row import Bar, Row

OF_A_COPY = Bar(ratio=0.85)


def rows(quick: bool) -> Iterator[Row]:
    ratios = []
    for name, case in MEMORY_BOUND.items():
        found = measured(name, ["ours", "torch", "compiled", "copy"], quick)
        ours, copy, note = found["ours"], found["copy"], "one thread"
        peer, peer_name = best(case, found)
        yield Row(name, "GB/s", ours, peer, peer_name, Bar(ratio=1), True, note)
        yield Row(f"{name}: of a copy", "GB/s", ours, copy, "a copy", OF_A_COPY, True, note)
        ratios += [ours / peer] if peer else []
    if ratios:
        mean, note = geometric_mean(ratios), "geometric mean of all of these"
        yield Row("memory-bound kernels", "", mean, 1.0, "the best peer", Bar(ratio=2), True, note)
