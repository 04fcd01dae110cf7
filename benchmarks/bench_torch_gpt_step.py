"""The GPT step in PyTorch on the device "hal", beside our own step and PyTorch on its CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from statistics import median

from benchmarks import gpt
from benchmarks.machine import versions
from benchmarks.row import Bar, BenchmarkError, Row
from benchmarks.worker import Step, Worker

OURS = ("our_gpt",)
EAGER, COMPILED = ("peer_gpt", "eager", "hal"), ("peer_gpt", "compile", "hal")
PEERS = (("peer_gpt", "eager"), ("peer_gpt", "compile"))
WARM = 4
"""Steps before the first that counts: the corrections of Adam become data in the third."""
MEMORY = 1 / 1.25
"""Our own peak over the device's, at least."""


def rows(quick: bool) -> Iterator[Row]:
    if versions()["torch"] == "absent":
        raise BenchmarkError("torch is not installed")
    for dtype in ("float32", "bfloat16"):
        steps = _steps(dtype, (OURS, EAGER, COMPILED, *PEERS), 3 if quick else 12)
        rates = [gpt.TOKENS / median([s.seconds for s in made]) for made in steps]
        costs = [median([s.processor_seconds for s in made]) for made in steps]
        ours, eager, compiled, *peers = rates
        best = max(peers)
        for name, mine, cost, bars in (
            ("eager", eager, costs[1], (0.95, 1.0)),
            ("torch.compile", compiled, costs[2], (0.97, None)),
        ):
            claim = f"GPT step of PyTorch's own program on hal, {name}, {dtype}"
            for peer, rate, taken, bar in (
                ("our captured step", ours, costs[0], bars[0]),
                ("better of PyTorch's", best, costs[3 + peers.index(best)], bars[1]),
            ):
                note = f"{taken / cost:.2f} by processor time"
                wanted = Bar(ratio=bar) if bar else None
                yield Row(
                    claim, "tokens/s", mine, rate, peer, wanted, more_is_better=True, note=note
                )
        peaks = [made[-1].counts["peak_nbytes"] / 2**20 for made in steps[:3]]
        for name, peak in (("eager", peaks[1]), ("torch.compile", peaks[2])):
            claim = f"peak device memory of these steps with the first ones, {name}, {dtype}"
            yield Row(claim, "MiB", peak, peaks[0], "our captured step", Bar(ratio=MEMORY))


def _steps(dtype: str, which: Sequence[Sequence[str]], count: int) -> list[list[Step]]:
    """The steps of workers that take turns."""
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(name, dtype, *args)) for name, *args in which]
        for _ in range(WARM):
            for worker in workers:
                worker.step()
        turns = [[worker.step() for worker in workers] for _ in range(count)]
    return [list(made) for made in zip(*turns, strict=True)]
