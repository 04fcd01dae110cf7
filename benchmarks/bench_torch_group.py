"""A step of PyTorch's own parallel training code over backend hal, against gloo in the same run."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.machine import ROOT
from benchmarks.row import Bar, BenchmarkError, Row

DEADLINE_S = 900.0
NAMES = {
    "averaged": "DDP",
    "sharded": "FSDP2",
    "split": "DTensor tensor parallelism",
    "staged": "1F1B pipeline",
}


def rows(quick: bool) -> Iterator[Row]:
    for way, (ours, peer) in _times_s(5 if quick else 40).items():
        yield Row(
            f"PyTorch's {NAMES[way]} step, two ranks of a host", "ms",
            1e3 * median(ours), 1e3 * median(peer), "gloo", Bar(ratio=1.0),
        )  # fmt: skip


def _times_s(rounds: int) -> dict[str, list[list[float]]]:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "store"))
        module = [sys.executable, "-W", "ignore", "-m", "benchmarks.torch_ranks"]
        commands = [[*module, str(rank), path, str(rounds)] for rank in range(2)]
        ranks = [subprocess.Popen(c, stdout=subprocess.PIPE, cwd=ROOT) for c in commands]
        try:
            said = [rank.communicate(timeout=DEADLINE_S)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    if any(rank.returncode for rank in ranks):
        raise BenchmarkError("a rank of torch failed; its error is above")
    found: dict[str, list[list[float]]] = json.loads(said[0])
    return found
