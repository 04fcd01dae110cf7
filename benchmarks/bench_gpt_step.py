"""A training step of the 10.9M-parameter GPT against PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from statistics import median
from time import perf_counter

from benchmarks import gpt
from benchmarks.machine import versions
from benchmarks.row import Bar, Row
from benchmarks.worker import ABSENT, Worker

BARS = {"float32": 0.7, "bfloat16": 0.4}
BUDGET_S = 60.0
"""Where a peer takes very long for a step, the turns that fit are enough, and at least one."""
PEERS = {"PyTorch eager": "eager", "torch.compile": "compile"}


def rows(quick: bool) -> Iterator[Row]:
    for dtype, bar in BARS.items():
        peers = {} if versions()["torch"] == ABSENT else PEERS
        rates = _rates(dtype, list(peers.values()), 2 if quick else 12)
        ours = rates.pop(0)
        for (name, mode), rate in zip(peers.items(), rates, strict=True):
            yield _row(dtype, ours, rate, name, Bar(ratio=bar) if mode == "eager" else None)
        if not peers:
            yield _row(dtype, ours, None, "PyTorch eager", Bar(ratio=bar), "torch is not installed")


def _row(
    dtype: str, ours: float, peer: float | None, name: str, bar: Bar | None, note: str = ""
) -> Row:
    claim = f"GPT training step, {dtype}"
    return Row(claim, "tokens/s", ours, peer, name, bar, more_is_better=True, note=note)


def _rates(dtype: str, modes: Sequence[str], count: int) -> list[float]:
    """Tokens a second of ours and of each peer, which take turns step by step."""
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker("our_gpt", dtype))]
        workers += [stack.enter_context(Worker("peer_gpt", dtype, mode)) for mode in modes]
        for worker in workers:
            worker.step()
        began, turns = perf_counter(), []
        while len(turns) < count and (not turns or perf_counter() - began < BUDGET_S):
            turns.append([worker.step().seconds for worker in workers])
    return [gpt.TOKENS / median(times) for times in zip(*turns, strict=True)]
