"""Contenders that take turns at a kernel, by processor time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

from benchmarks.kernel_case import CASES, Case
from benchmarks.machine import versions
from benchmarks.worker import ABSENT, Step, Worker

PEERS = {"torch": "PyTorch eager", "compiled": "torch.compile", "numpy": "numpy"}
ONE_THREAD = dict.fromkeys(
    ("HAL_CPU_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
)
REGISTERS = "registers"
ROUNDS, QUICK = 12, 3
BUDGET_S = 15.0
"""Of the turns at one kernel: a peer may take very long."""


def measured(name: str, libraries: Sequence[str], quick: bool) -> dict[str, float]:
    """What each library reaches in the unit of the case, with one thread: by the least processor
    time of its steps, which on a machine that does other work, too, is what the kernel itself
    takes. REGISTERS among the libraries is what the processor multiplies in registers meanwhile.
    Peers that are not installed are left out."""
    case = CASES[name]
    if versions()["torch"] == ABSENT:
        libraries = [x for x in libraries if x not in ("torch", "compiled")]
    with ExitStack() as stack:
        workers = {
            x: stack.enter_context(Worker(*_worker(x, name), env=ONE_THREAD)) for x in libraries
        }
        least = dict.fromkeys(libraries, float("inf"))
        began = time.perf_counter()
        for number in range(QUICK if quick else ROUNDS):
            if number and time.perf_counter() - began > BUDGET_S:
                break
            for x, worker in workers.items():
                least[x] = min(least[x], _seconds(case, worker.step()))
    return {x: _value(case, seconds) for x, seconds in least.items()}


def _seconds(case: Case, step: Step) -> float:
    """Processor time of a call, or the least that the limit allows."""
    rate = step.counts.get("operations_per_s")
    return case.flops / rate if rate else step.processor_seconds / case.calls


def _worker(library: str, name: str) -> tuple[str, ...]:
    if library == REGISTERS:
        return "limit_case", CASES[name].dtype, "1"
    return "kernel_case", library, name


def best(case: Case, found: dict[str, float]) -> tuple[float | None, str]:
    """The best of the peers, and its name."""
    peers = {x: found[x] for x in PEERS if x in found}
    if not peers:
        return None, ""
    least_is_best = case.unit == "us"
    name = (min if least_is_best else max)(peers, key=peers.__getitem__)
    return peers[name], PEERS[name]


def _value(case: Case, seconds: float) -> float:
    return (case.nbytes or case.flops) / seconds / 1e9 if case.unit != "us" else seconds * 1e6
