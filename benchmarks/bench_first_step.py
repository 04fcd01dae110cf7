"""How long the first training step of the GPT takes in a new process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machine import versions
from benchmarks.row import Bar, Row
from benchmarks.worker import ABSENT, Worker

LIMITS_S = {"empty": 15.0, "warm": 3.0}


def rows(quick: bool) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        for cache, limit in LIMITS_S.items():
            seconds, process = _first("our_gpt", "float32", folder=folder)
            peer = None if quick else _peer(folder)
            yield Row(
                f"first training step, {cache} cache",
                "s",
                seconds,
                peer,
                "" if quick else "torch.compile",
                Bar(limit=limit),
                note=f"{process:.1f} s from the start of the process",
            )


def _peer(folder: str) -> float | None:
    if versions()["torch"] == ABSENT:
        return None
    return _first("peer_gpt", "float32", "compile", folder=folder)[0]


def _first(name: str, *args: str, folder: str) -> tuple[float, float]:
    """Seconds of the first step and of the process until its end, with all caches in a folder."""
    caches = {"HAL_CACHE_DIR": "hal", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    env = {variable: str(Path(folder) / place) for variable, place in caches.items()}
    with Worker(name, *args, env=env) as worker:
        return worker.first.seconds, worker.process_seconds
