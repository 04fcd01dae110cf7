"""Training steps of two ranks with one processor each, against one rank with one processor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks import gpt
from benchmarks.machine import ROOT
from benchmarks.row import Bar, BenchmarkError, Row

DEADLINE_S = 1800.0
HAL = (sys.executable, "-c", "from hal_tools.cli import main; main(prog_name='hal')")


def rows(quick: bool) -> Iterator[Row]:
    found = _measured(3 if quick else 15)
    seconds = {way: median(wall for wall, _ in pairs) for way, pairs in found.items()}
    computed = {way: median(own for _, own in pairs) for way, pairs in found.items()}
    tokens = {way: (1 if way == "one" else 2) * gpt.TOKENS / s for way, s in seconds.items()}
    yield Row(
        f"GPT of {gpt.MODEL} a rank: two ranks in data parallel, one processor each", "tokens/s",
        tokens["parallel"], tokens["one"], "one rank", Bar(ratio=1.7), more_is_better=True,
        note=f"load {os.getloadavg()[0]:.1f} in the last minute",
    )  # fmt: skip
    yield Row(
        "the same against two ranks that do not know of each other", "tokens/s",
        tokens["parallel"], tokens["both"], "two apart", more_is_better=True,
    )  # fmt: skip
    yield Row(
        "processor time of a rank's step in data parallel", "s",
        computed["parallel"], computed["one"], "one rank", Bar(ratio=1.7 / 2),
        note="what the machine's other work cannot change; waiting does not count",
    )  # fmt: skip


def _measured(rounds: int) -> dict[str, list[list[float]]]:
    with tempfile.TemporaryDirectory() as folder:
        job = ("run", "-n", "2", "--devices", "cpu:0", "--log-dir", folder, "-m")
        command = [*HAL, *job, "benchmarks.data_parallel_ranks", str(rounds)]
        done = subprocess.run(command, cwd=ROOT, check=False, timeout=DEADLINE_S)
        said = Path(folder, "rank-0.stdout").read_text()
    if done.returncode:
        raise BenchmarkError("a rank failed; its error is above")
    found: dict[str, list[list[float]]] = json.loads(said.splitlines()[-1])
    return found
