"""Training steps in a process of their own, made one at a time when asked.

A worker process runs the first step, writes what it took as a line of JSON, and then runs one more
step for each line that it reads (`serving`). So several workers take turns and never compute at
once.
"""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from types import TracebackType
from typing import Self

from benchmarks.machine import ROOT
from benchmarks.row import BenchmarkError

ABSENT = "absent"
ANSWER_S = 600
"""A step that takes longer does not end at all."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its wall time, its loss, what else the worker counts after it, and what all threads
    of its process computed."""

    seconds: float
    loss: float
    counts: Mapping[str, int] = field(default_factory=dict)
    processor_seconds: float = 0.0


class Worker:
    """The driver's side of the worker module `benchmarks.NAME`; `first` is its first step.

    Raises BenchmarkError with the last line that the process wrote when it ends early.
    """

    def __init__(self, name: str, *args: str, env: Mapping[str, str] | None = None) -> None:
        self.name = " ".join((name, *args))
        start = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{name}", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | dict(env or {}),
        )
        self.first = self._answer()
        self.process_seconds = time.perf_counter() - start

    def step(self) -> Step:
        """One more step."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The end of its input ends the worker; nothing of it is wanted after an error.
        self._process.communicate(timeout=ANSWER_S)

    def _answer(self) -> Step:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], ANSWER_S)[0]:
            self._process.kill()
            raise BenchmarkError(f"the worker {self.name!r} says nothing for {ANSWER_S} s")
        line = self._process.stdout.readline()
        if not line:
            self._process.communicate(timeout=ANSWER_S)
            code = self._process.returncode
            raise BenchmarkError(f"the worker {self.name!r} ended with code {code}; see its errors")
        return Step(**json.loads(line))


def in_turns(
    workers: Sequence[tuple[str, ...]],
    count: int,
    budget_s: float = math.inf,
    env: Mapping[str, str] | None = None,
) -> list[float]:
    """The median seconds of a step of each worker (its module's name and arguments); they take
    turns. Where a step takes very long, the turns that fit are enough, and at least one."""
    with ExitStack() as stack:
        running = [stack.enter_context(Worker(*worker, env=env)) for worker in workers]
        for worker in running:
            worker.step()
        began, turns = time.perf_counter(), []
        while len(turns) < count and (not turns or time.perf_counter() - began < budget_s):
            turns.append([worker.step().seconds for worker in running])
    return [median(times) for times in zip(*turns, strict=True)]
