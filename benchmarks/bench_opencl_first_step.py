"""How long the first training step of the GPT takes in a new process on an OpenCL device."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import opencl
from benchmarks.row import Row
from benchmarks.worker import Worker

CACHES = ("empty", "warm")
PEER = "cpu:0"


def rows(quick: bool) -> Iterator[Row]:
    why = opencl.absent()
    with tempfile.TemporaryDirectory() as folder:
        for cache in CACHES:
            claim = f"first training step on {opencl.DEVICE}, {cache} cache"
            if why:
                yield _row(claim, (None, None), why)
                continue
            ours = _first(opencl.DEVICE, folder)
            peer = None if quick else _first(PEER, folder)
            yield _row(claim, [x and x[0] for x in (ours, peer)], opencl.load())
            computed = [x and x[1] for x in (ours, peer)]
            yield _row(claim, computed, f"by processor time, {opencl.load()}")


def _row(claim: str, seconds: Sequence[float | None], note: str) -> Row:
    ours, peer = seconds
    return Row(claim, "s", ours, peer, PEER, note=note)


def _first(device: str, folder: str) -> tuple[float, float]:
    """Seconds of the first step, and those that its threads compute, with all caches in a
    folder."""
    caches = {"HAL_CACHE_DIR": "hal", "POCL_CACHE_DIR": "pocl"}
    env = {variable: str(Path(folder) / place) for variable, place in caches.items()}
    Path(env["POCL_CACHE_DIR"]).mkdir(exist_ok=True)
    with Worker("our_gpt", "float32", device, env=env) as worker:
        return worker.first.seconds, worker.first.processor_seconds
