"""A training step of the 10.9M-parameter GPT against PyTorch, beside what the processor multiplies
in registers, and with two threads against one."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from benchmarks import gpt
from benchmarks.machine import cores, versions
from benchmarks.row import Bar, Row
from benchmarks.worker import ABSENT, Worker, in_turns

BARS = {"float32": 1.15, "bfloat16": 1.3}
OF_THE_LIMIT = Bar(ratio=0.8)
OF_ONE_THREAD = Bar(ratio=1.9)
SIZES = ((gpt.BATCH, gpt.CONTEXT), (1, 256), (32, 256), (2, 1024))
"""Batches and lengths; of the first one, bfloat16, too, in which PyTorch takes very long where the
processor has no instructions for it."""
BUDGET_S = 60.0
"""A peer may take very long for a step."""
PEERS = {"PyTorch eager": "eager", "torch.compile": "compile"}


def rows(quick: bool) -> Iterator[Row]:
    yield from against_peers(quick)
    yield _of_the_limit(2 if quick else 12)
    yield _of_one_thread(2 if quick else 12)


def against_peers(quick: bool) -> Iterator[Row]:
    """Steps in both types and several sizes."""
    for dtype, ratio in BARS.items():
        peers = {} if versions()["torch"] == ABSENT else PEERS
        for batch, context in SIZES if dtype == "float32" else SIZES[:1]:
            workers = [("our_gpt", dtype), *(("peer_gpt", dtype, mode) for mode in peers.values())]
            env = {"HAL_BENCH_BATCH": str(batch), "HAL_BENCH_CONTEXT": str(context)}
            found = in_turns(workers, 2 if quick else 12, BUDGET_S, env)
            ours, *rates = (batch * context / seconds for seconds in found)
            claim, bar = f"GPT training step, {dtype}, {batch} of {context}", Bar(ratio=ratio)
            for name, rate in zip(peers, rates, strict=True):
                yield _row(claim, ours, rate, name, bar)
            if not peers:
                yield _row(claim, ours, None, "PyTorch eager", bar, "torch is not installed")


def _of_the_limit(turns: int) -> Row:
    with (
        Worker("our_gpt", "float32") as ours,
        Worker("limit_case", "float32", str(cores())) as most,
    ):
        ours.step()
        seconds, limits = [], []
        for _ in range(turns):
            seconds.append(ours.step().seconds)
            limits.append(most.step().counts["operations_per_s"])
    rate = gpt.operations(gpt.BATCH, gpt.CONTEXT) / median(seconds)
    claim, note = "GPT training step, float32: of the limit", f"{cores()} threads"
    return Row(
        *(claim, "GFLOP/s", rate / 1e9, median(limits) / 1e9, "in registers", OF_THE_LIMIT),
        more_is_better=True,
        note=note,
    )


def _of_one_thread(turns: int) -> Row:
    one, two = (
        Worker("our_gpt", "float32", env={"HAL_CPU_THREADS": str(threads)}) for threads in (1, 2)
    )
    with one, two:
        one.step(), two.step()
        seconds = [(one.step().seconds, two.step().seconds) for _ in range(turns)]
    by_one, by_two = (gpt.TOKENS / median(times) for times in zip(*seconds, strict=True))
    return _row(
        *("GPT training step, float32: two threads", by_two, by_one, "one thread", OF_ONE_THREAD)
    )


def _row(claim: str, ours: float, peer: float | None, name: str, bar: Bar, note: str = "") -> Row:
    return Row(claim, "tokens/s", ours, peer, name, bar, more_is_better=True, note=note)
