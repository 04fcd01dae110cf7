"""Tokens that a GPT writes, one at a time with a cache of keys, against the same program in
PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.decoding import MODELS, WRITTEN
from benchmarks.machine import versions
from benchmarks.row import Bar, BenchmarkError, Row
from benchmarks.worker import ABSENT, in_turns


def rows(quick: bool) -> Iterator[Row]:
    if versions()["torch"] == ABSENT:
        raise BenchmarkError("torch is not installed")
    for name in MODELS:
        workers = [("decoding", library, name) for library in ("ours", "torch")]
        ours, peer = (WRITTEN / seconds for seconds in in_turns(workers, 2 if quick else 9))
        claim, bar = f"writing of a {name}, float32, with a cache", Bar(ratio=1.2)
        yield Row(claim, "tokens/s", ours, peer, "PyTorch", bar, more_is_better=True)
