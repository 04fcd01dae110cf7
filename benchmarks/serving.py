"""The worker's side of `worker`. It imports little: what it takes to import is in the time that a
worker's process takes until its first step."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping

Counts = Callable[[], Mapping[str, int]]

LEAVES_S = 2e-3
"""After so long threads that found nothing more to do are asleep: ours wait for 30 us before."""


def serve(prepare: Callable[[], Callable[[], float]], counts: Counts = dict) -> None:
    """`prepare` gives the function of one step, which gives the loss; it runs once, and once for
    each line of the standard input."""
    step = prepare()
    _run(step, counts)
    for _ in sys.stdin:
        _run(step, counts)


def _run(step: Callable[[], float], counts: Counts) -> None:
    start, computed = time.perf_counter(), time.process_time()
    loss = step()
    seconds = time.perf_counter() - start
    # What a thread computes is counted when it leaves its processor.
    time.sleep(LEAVES_S)
    computed = time.process_time() - computed
    found = {"seconds": seconds, "loss": loss, "counts": counts(), "processor_seconds": computed}
    print(json.dumps(found), flush=True)
