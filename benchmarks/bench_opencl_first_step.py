"""How long the first training step of the GPT takes in a new process on an OpenCL device."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
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
                yield Row(claim, "s", None, None, PEER, note=why)
                continue
            ours, process = _first(opencl.DEVICE, folder)
            peer = None if quick else _first(PEER, folder)[0]
            note = f"{process:.1f} s from the start of the process; {opencl.load()}"
            yield Row(claim, "s", ours, peer, PEER, note=note)


def _first(device: str, folder: str) -> tuple[float, float]:
    """Seconds of the first step and of the process until its end, with all caches in a folder."""
    caches = {"HAL_CACHE_DIR": "hal", "POCL_CACHE_DIR": "pocl"}
    env = {variable: str(Path(folder) / place) for variable, place in caches.items()}
    Path(env["POCL_CACHE_DIR"]).mkdir(exist_ok=True)
    with Worker("our_gpt", "float32", device, env=env) as worker:
        return worker.first.seconds, worker.process_seconds
