"""Tokens that a GPT writes, one at a time with a cache of keys, against the same program in
PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.decoding import MODELS, WRITTEN
from benchmarks.machine import versions
from benchmarks.row import Bar, BenchmarkError, Row
from benchmarks.worker import ABSENT, in_turns

HOW = {"written": "", "captured": ", captured"}
BUDGET_S = 60.0
"""A peer may take very long."""


def rows(quick: bool) -> Iterator[Row]:
    if versions()["torch"] == ABSENT:
        raise BenchmarkError("torch is not installed")
    for name in MODELS:
        for how, said in HOW.items():
            workers = [("decoding", library, name, how) for library in ("ours", "torch")]
            found = in_turns(workers, 2 if quick else 9, BUDGET_S)
            ours, peer = (WRITTEN / seconds for seconds in found)
            claim, bar = f"writing of a {name}, float32, with a cache{said}", Bar(ratio=1.2)
            against = "torch.compile" if how == "captured" else "PyTorch"
            yield Row(claim, "tokens/s", ours, peer, against, bar, more_is_better=True)
