"""Training steps of a ResNet-18 and of a small vision transformer, against PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import vision
from benchmarks.bench_gpt_step import PEERS
from benchmarks.machine import versions
from benchmarks.row import Bar, Row
from benchmarks.worker import ABSENT, in_turns


def rows(quick: bool) -> Iterator[Row]:
    peers = {} if versions()["torch"] == ABSENT else PEERS
    for name in vision.NAMES:
        workers = [("vision", name, mode) for mode in ("ours", *peers.values())]
        ours, *others = (vision.IMAGES / s for s in in_turns(workers, 2 if quick else 9))
        claim = f"{name} training step, float32"
        for (peer, mode), rate in zip(peers.items(), others, strict=True):
            bar = Bar(ratio=1) if mode == "compile" else None
            yield Row(claim, "images/s", ours, rate, peer, bar, more_is_better=True)
        if not peers:
            yield Row(claim, "images/s", ours, more_is_better=True, note="torch is not installed")
