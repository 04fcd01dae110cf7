"""Kernels that memory, layout or the call limit, against PyTorch by processor time; those that
memory limits also against torch.compile, and beside a copy past the caches in the same minutes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.kernel_case import CASES, MEMORY_BOUND, Case
from benchmarks.machine import versions
from benchmarks.row import Bar, Row
from benchmarks.worker import ABSENT, Worker

BAR = Bar(ratio=1)
PEERS = {"torch": "PyTorch eager", "compiled": "torch.compile"}
ONE_THREAD = {"HAL_CPU_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def rows(quick: bool) -> Iterator[Row]:
    """The least processor time of the steps of each contender, which take turns: on a machine that
    does other work, too, it is what the kernel itself takes."""
    for name, case in CASES.items():
        libraries = ["ours"]
        if versions()["torch"] != ABSENT:
            libraries += ["torch"] + ["compiled"] * (name in MEMORY_BOUND)
        if name in MEMORY_BOUND:
            libraries.append("memory")
        found = _seconds(name, libraries, 3 if quick else 12)
        values = {
            library: _value(case, seconds / case.calls)
            for library, seconds in zip(libraries, found, strict=True)
        }
        more, ours, limit = case.unit != "us", values.pop("ours"), values.pop("memory", None)
        best = (max if more else min)(values, key=values.__getitem__, default=None)
        note = "one thread" + (f", a copy takes {limit:.1f} GB/s" if limit else "")
        peer = None if best is None else values[best]
        yield Row(name, case.unit, ours, peer, PEERS.get(best or "", ""), BAR, more, note)


def _seconds(name: str, libraries: list[str], rounds: int) -> list[float]:
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker("kernel_case", library, name, env=ONE_THREAD))
            for library in libraries
        ]
        turns = [[w.step().processor_seconds for w in workers] for _ in range(rounds)]
    return [min(times) for times in zip(*turns, strict=True)]


def _value(case: Case, seconds: float) -> float:
    return (case.flops or case.nbytes) / seconds / 1e9 if case.unit != "us" else seconds * 1e6
