"""A training step of the 10.9M-parameter GPT on an OpenCL device against the CPU plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from statistics import median

from benchmarks import gpt, opencl
from benchmarks.row import Bar, Row
from benchmarks.worker import Step, Worker

PEER = "cpu:0"
BAR = Bar(ratio=0.5)
"""At most twice the time."""


def rows(quick: bool) -> Iterator[Row]:
    if why := opencl.absent():
        yield _row((None, None), why, BAR)
        return
    turns = _turns(2 if quick else 12)
    yield _row(_rates(turns, lambda step: step.seconds), opencl.load(), BAR)
    computed = _rates(turns, lambda step: step.processor_seconds)
    yield _row(computed, f"by processor time, {opencl.load()}", None)


def _row(rates: Sequence[float | None], note: str, bar: Bar | None) -> Row:
    claim = f"GPT training step on {opencl.DEVICE}, float32"
    ours, peer = rates
    return Row(claim, "tokens/s", ours, peer, PEER, bar, more_is_better=True, note=note)


def _turns(count: int) -> list[tuple[Step, ...]]:
    """Steps of both devices, which take turns."""
    with ExitStack() as stack:
        devices = (opencl.DEVICE, PEER)
        workers = [stack.enter_context(Worker("our_gpt", "float32", name)) for name in devices]
        for worker in workers:
            worker.step()
        return [tuple(worker.step() for worker in workers) for _ in range(count)]


def _rates(turns: Sequence[tuple[Step, ...]], seconds: Callable[[Step], float]) -> list[float]:
    return [gpt.TOKENS / median(map(seconds, steps)) for steps in zip(*turns, strict=True)]
