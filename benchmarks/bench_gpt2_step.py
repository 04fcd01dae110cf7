"""A training step of GPT-2 124M: our own, and that of `transformers` on "hal" and on PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from statistics import median

from benchmarks import gpt2
from benchmarks.row import Bar, BenchmarkError, Row
from benchmarks.worker import Step, Worker

OURS = ("our_gpt2",)
EAGER, COMPILED = ("peer_gpt2", "eager", "hal"), ("peer_gpt2", "compile", "hal")
PEERS = {"PyTorch eager": ("peer_gpt2", "eager"), "torch.compile": ("peer_gpt2", "compile")}
CASES = {
    "our captured step": (OURS, 1.05, 1 / 0.9),
    "its own program on hal, eager": (EAGER, 1.0, 1.0),
    "its own program on hal, torch.compile": (COMPILED, 1.0, 1.0),
}
"""What takes the step; the speed that it is to have, and the memory that a peer has at least,
beside its own."""
OF_OURS = {EAGER: 0.95, COMPILED: 0.97}
WARM = 4
"""Steps before the first that counts: the corrections of Adam become data in the third."""


def rows(quick: bool) -> Iterator[Row]:
    if not (find_spec("torch") and find_spec("transformers")):
        raise BenchmarkError("torch and transformers have to be installed")
    count = 2 if quick else 5
    for dtype in ("float32", "bfloat16"):
        # One process after the other: five of them would not have the memory beside each other.
        workers = {name: worker for name, (worker, *_) in CASES.items()} | PEERS
        made = {name: _steps(worker, dtype, count) for name, worker in workers.items()}
        rates = {name: gpt2.TOKENS / median([s.seconds for s in m]) for name, m in made.items()}
        peaks = {name: m[-1].counts["resident_nbytes"] / 2**20 for name, m in made.items()}
        best = max(PEERS, key=rates.__getitem__)
        least = min(PEERS, key=peaks.__getitem__)
        for name, (worker, speed, memory) in CASES.items():
            claim = f"GPT-2 124M training step, {dtype}: {name}"
            bar = Bar(ratio=speed)
            yield Row(claim, "tokens/s", rates[name], rates[best], best, bar, more_is_better=True)
            if worker in OF_OURS:
                bar = Bar(ratio=OF_OURS[worker])
                ours = rates["our captured step"]
                peer = "our captured step"
                yield Row(claim, "tokens/s", rates[name], ours, peer, bar, more_is_better=True)
            claim = f"most memory of the process of these steps, {dtype}: {name}"
            yield Row(claim, "MiB", peaks[name], peaks[least], least, Bar(ratio=memory))


def _steps(worker: Sequence[str], dtype: str, count: int) -> list[Step]:
    """Those of a process by itself."""
    name, *args = worker
    with Worker(name, dtype, *args) as running:
        for _ in range(WARM):
            running.step()
        return [running.step() for _ in range(count)]
