"""Causal attention of heads of 64 columns, forward and with gradients, against PyTorch's
`scaled_dot_product_attention`, by processor time."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.kernel_case import ATTENTIONS
from benchmarks.kernel_turns import best, measured
from benchmarks.row import Bar, Row


def rows(quick: bool) -> Iterator[Row]:
    for name, case in ATTENTIONS.items():
        found = measured(name, ["ours", "torch"], quick)
        peer, peer_name = best(case, found)
        bar, note = Bar(ratio=1.1), "one thread"
        yield Row(name, case.unit, found["ours"], peer, peer_name, bar, True, note)
