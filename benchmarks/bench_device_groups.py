"""Sums of device memory between two processes: by the engine, and by the plugin's own group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.machine import ROOT
from benchmarks.row import BenchmarkError, Row

DEADLINE_S = 600.0
HAL = (sys.executable, "-c", "from hal.cli import main; main(prog_name='hal')")
OWN = "plugin's own group"
WHAT = "all-reduce of 64 MiB f32 between two cpu:0"


def rows(quick: bool) -> Iterator[Row]:
    found = _measured(3 if quick else 31)
    seconds = {way: median(wall for wall, _ in pairs) for way, pairs in found.items()}
    computed = {way: median(own for _, own in pairs) for way, pairs in found.items()}
    load = f"load {os.getloadavg()[0]:.1f} in the last minute"
    for way, memory in (("shared", "memory that both map"), ("private", "memory of their own")):
        times = seconds[way], seconds["own"]
        yield Row(f"{WHAT}, by the engine in {memory}", "s", *times, OWN, note=load)
        times = computed[way], computed["own"]
        yield Row(f"processor time of a rank in it, in {memory}", "s", *times, OWN)


def _measured(rounds: int) -> dict[str, list[list[float]]]:
    with tempfile.TemporaryDirectory() as folder:
        job = ("run", "-n", "2", "--devices", "cpu:0", "--log-dir", folder, "-m")
        command = [*HAL, *job, "benchmarks.device_group_ranks", str(rounds)]
        done = subprocess.run(command, cwd=ROOT, check=False, timeout=DEADLINE_S)
        said = Path(folder, "rank-0.stdout").read_text()
    if done.returncode:
        raise BenchmarkError("a rank failed; its error is above")
    found: dict[str, list[list[float]]] = json.loads(said.splitlines()[-1])
    return found
