"""A training step of the 10.9M-parameter GPT on an OpenCL device against the CPU plugin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median

from benchmarks import gpt, opencl
from benchmarks.row import Bar, Row
from benchmarks.worker import Worker

PEER = "cpu:0"


def rows(quick: bool) -> Iterator[Row]:
    claim = f"GPT training step on {opencl.DEVICE}, float32"
    # At most twice the time.
    bar = Bar(ratio=0.5)
    if why := opencl.absent():
        yield Row(claim, "tokens/s", None, None, PEER, bar, more_is_better=True, note=why)
        return
    ours, peer = _rates(2 if quick else 12)
    yield Row(claim, "tokens/s", ours, peer, PEER, bar, more_is_better=True, note=opencl.load())


def _rates(count: int) -> list[float]:
    """Tokens a second of both devices, which take turns step by step."""
    with ExitStack() as stack:
        devices = (opencl.DEVICE, PEER)
        workers = [stack.enter_context(Worker("our_gpt", "float32", name)) for name in devices]
        for worker in workers:
            worker.step()
        turns = [[worker.step().seconds for worker in workers] for _ in range(count)]
    return [gpt.TOKENS / median(times) for times in zip(*turns, strict=True)]
