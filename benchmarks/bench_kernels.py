"""Kernels that layout, order or the call limit, against PyTorch by processor time."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.kernel_case import OTHERS
from benchmarks.kernel_turns import best, measured
from benchmarks.row import Bar, Row


def rows(quick: bool) -> Iterator[Row]:
    for name, case in OTHERS.items():
        found = measured(name, ["ours", "torch"], quick)
        peer, peer_name = best(case, found)
        more = case.unit != "us"
        yield Row(name, case.unit, found["ours"], peer, peer_name, Bar(ratio=1), more, "one thread")
