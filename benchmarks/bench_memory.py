"""Device memory of the GPT's training steps against what its plan needs at once."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.row import Bar, Row
from benchmarks.worker import Worker


def rows(quick: bool) -> Iterator[Row]:
    with Worker("our_gpt", "float32") as worker:
        second = worker.step().counts
        for _ in range(2 if quick else 20):
            last = worker.step().counts
    # The ratio must be at least 1 / 1.3: the peak at most 1.3 times the live set.
    peak, live = last["peak_nbytes"] / 2**20, last["live_nbytes"] / 2**20
    claim = "peak device memory against the live set of the plan"
    yield Row(claim, "MiB", peak, live, "live set", Bar(ratio=round(1 / 1.3, 3)))
    raw = last["allocations"] - second["allocations"]
    yield Row("raw device allocations after the second step", "count", raw, bar=Bar(limit=0))
    grown = (last["in_use_nbytes"] - second["in_use_nbytes"]) / 2**20
    yield Row("growth of memory in use after the second step", "MiB", grown, bar=Bar(limit=0))
    fallbacks = last["fallbacks"]
    yield Row("operations done the slow way", "count", fallbacks, bar=Bar(limit=0))
