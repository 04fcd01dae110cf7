"""How long the first training step of the GPT takes in a new process on an OpenCL device."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import opencl
from benchmarks.row import Bar, Row
from benchmarks.worker import Worker

LIMITS_S = {"empty": 12.0, "warm": 2.5}
"""Of the first step with an empty cache, and of a whole process with a warm one."""
PEER = "cpu:0"


def rows(quick: bool) -> Iterator[Row]:
    why = opencl.absent()
    with tempfile.TemporaryDirectory() as folder:
        for cache, limit in LIMITS_S.items():
            claim = f"first training step on {opencl.DEVICE}, {cache} cache"
            if why:
                yield _row(claim, (None, None), why)
                continue
            ours = _first(opencl.DEVICE, folder)
            peer = None if quick else _first(PEER, folder)
            for number, (name, judged) in enumerate(
                (
                    (claim, cache == "empty"),
                    (f"{claim}: the process until then", cache == "warm"),
                    (f"{claim}: processor time", False),
                )
            ):
                seconds = [x and x[number] for x in (ours, peer)]
                yield _row(name, seconds, opencl.load(), Bar(limit=limit) if judged else None)


def _row(claim: str, seconds: Sequence[float | None], note: str, bar: Bar | None = None) -> Row:
    ours, peer = seconds
    return Row(claim, "s", ours, peer, PEER, bar, note=note)


def _first(device: str, folder: str) -> tuple[float, float, float]:
    """Seconds of the first step, of the process until its end, and those that its threads compute
    in it, with all caches in a folder."""
    caches = {"HAL_CACHE_DIR": "hal", "POCL_CACHE_DIR": "pocl"}
    env = {variable: str(Path(folder) / place) for variable, place in caches.items()}
    Path(env["POCL_CACHE_DIR"]).mkdir(exist_ok=True)
    with Worker("our_gpt", "float32", device, env=env) as worker:
        return worker.first.seconds, worker.process_seconds, worker.first.processor_seconds
