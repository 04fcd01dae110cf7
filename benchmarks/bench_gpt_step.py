"""A training step of the 10.9M-parameter GPT against PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import gpt
from benchmarks.machine import versions
from benchmarks.row import Bar, Row
from benchmarks.worker import ABSENT, in_turns

BARS = {"float32": 0.7, "bfloat16": 0.4}
BUDGET_S = 60.0
"""A peer may take very long for a step."""
PEERS = {"PyTorch eager": "eager", "torch.compile": "compile"}


def rows(quick: bool) -> Iterator[Row]:
    for dtype, bar in BARS.items():
        peers = {} if versions()["torch"] == ABSENT else PEERS
        workers = [("our_gpt", dtype), *(("peer_gpt", dtype, mode) for mode in peers.values())]
        found = in_turns(workers, 2 if quick else 12, BUDGET_S)
        ours, *rates = (gpt.TOKENS / seconds for seconds in found)
        for (name, mode), rate in zip(peers.items(), rates, strict=True):
            yield _row(dtype, ours, rate, name, Bar(ratio=bar) if mode == "eager" else None)
        if not peers:
            yield _row(dtype, ours, None, "PyTorch eager", Bar(ratio=bar), "torch is not installed")


def _row(
    dtype: str, ours: float, peer: float | None, name: str, bar: Bar | None, note: str = ""
) -> Row:
    claim = f"GPT training step, {dtype}"
    return Row(claim, "tokens/s", ours, peer, name, bar, more_is_better=True, note=note)
