"""A step of a small transformer under strategies, against PyTorch's own parallel code over gloo in
the same run; and one of the GPT on two ranks, against one rank with the same whole batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import gpt
from benchmarks.machine import ROOT
from benchmarks.row import Bar, BenchmarkError, Row

DEADLINE_S = 1800.0
HAL = (sys.executable, "-c", "from hal_tools.cli import main; main(prog_name='hal')")
PEERS = {"data": ("DDP", 1.0), "zero3": ("FSDP2", 1.3), "tensor": ("DTensor", 1.3)}
PEERS |= {"1f1b": ("Schedule1F1B", 1.3)}
ONE_THREAD = {"HAL_CPU_THREADS": "1", "OMP_NUM_THREADS": "1"}


def rows(quick: bool) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        found = _ran("parallel_ranks", f"{folder}/store", 3 if quick else 30)
    for way, times in found.items():
        peer, bar = PEERS[way]
        (wall, computed), (peer_wall, peer_computed) = (
            [1e3 * median(part) for part in zip(*steps, strict=True)] for steps in times
        )
        yield Row(
            f"a step of {way}, two ranks of a host, one thread each", "ms", wall, peer_wall, peer,
            Bar(ratio=bar), note=f"load {os.getloadavg()[0]:.1f} in the last minute",
        )  # fmt: skip
        yield Row(
            "processor time of a rank in it", "ms", computed, peer_computed, peer,
            note="what the machine's other work cannot change; waiting does not count",
        )  # fmt: skip

    for way, steps in _ran("parallel_gpt_ranks", 3 if quick else 15).items():
        one, two = (median(times) for times in zip(*steps, strict=True))
        yield Row(
            f"GPT of {gpt.MODEL} in all: two ranks under {way}, one processor each", "tokens/s",
            gpt.TOKENS / two, gpt.TOKENS / one, "one rank", Bar(ratio=1.5), more_is_better=True,
            note=f"load {os.getloadavg()[0]:.1f} in the last minute",
        )  # fmt: skip


def _ran(ranks: str, *given: object) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        job = ("run", "-n", "2", "--devices", "cpu:0", "--log-dir", folder, "-m")
        command = [*HAL, *job, f"benchmarks.{ranks}", *map(str, given)]
        environment = os.environ | ONE_THREAD
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False, timeout=DEADLINE_S)
        said = Path(folder, "rank-0.stdout").read_text()
    if done.returncode:
        raise BenchmarkError("a rank failed; its error is above")
    return dict(json.loads(line) for line in said.splitlines() if line.startswith("["))
