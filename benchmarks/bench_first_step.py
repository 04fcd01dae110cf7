"""How long the first training step of the GPT takes in a new process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machine import versions
from benchmarks.row import Bar, Row
from benchmarks.worker import ABSENT, Worker

LIMITS_S = {"empty": 5.0, "warm": 1.2}
"""Of the first step with an empty cache, and of a whole process with a warm one."""


def rows(quick: bool) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        for cache, limit in LIMITS_S.items():
            step, process = _first("our_gpt", "float32", folder=folder)
            peer = None if quick else _peer(folder)
            for claim, mine, theirs, judged in (
                ("first training step", step, peer and peer[0], cache == "empty"),
                (
                    "process until its first training step",
                    process,
                    peer and peer[1],
                    cache == "warm",
                ),
            ):
                bar = Bar(limit=limit) if judged else None
                name = "torch.compile" if peer else ""
                yield Row(f"{claim}, {cache} cache", "s", mine, theirs, name, bar)


def _peer(folder: str) -> tuple[float, float] | None:
    if versions()["torch"] == ABSENT:
        return None
    return _first("peer_gpt", "float32", "compile", folder=folder)


def _first(name: str, *args: str, folder: str) -> tuple[float, float]:
    """Seconds of the first step and of the process until its end, with all caches in a folder."""
    caches = {"HAL_CACHE_DIR": "hal", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    env = {variable: str(Path(folder) / place) for variable, place in caches.items()}
    env["PYTHONDONTWRITEBYTECODE"] = ""  # so that the second process finds it, as users' do
    with Worker(name, *args, env=env) as worker:
        return worker.first.seconds, worker.process_seconds
