"""Kernels that memory, layout or the call limit, against PyTorch by processor time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.kernel_case import CASES, Case
from benchmarks.machine import versions
from benchmarks.row import Bar, Row
from benchmarks.worker import ABSENT, Worker

BAR = Bar(ratio=1)
ONE_THREAD = {"HAL_CPU_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def rows(quick: bool) -> Iterator[Row]:
    """The least processor time of the steps of each contender, which take turns: on a machine that
    does other work, too, it is what the kernel itself takes."""
    for name, case in CASES.items():
        libraries = ["ours"] + ["torch"] * (versions()["torch"] != ABSENT)
        found = _seconds(name, libraries, 3 if quick else 12)
        ours, *others = (_value(case, seconds / case.calls) for seconds in found)
        more = case.unit != "us"
        peer = others[0] if others else None
        yield Row(name, case.unit, ours, peer, "PyTorch eager", BAR, more, "one thread")


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
