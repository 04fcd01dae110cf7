"""The child process of a run: takes a job on stdin, runs its cases and tells of each on stdout.

A line of JSON says that a case begins, and one how it ended. What the plugin itself prints goes to
stderr. The child ends with its parent, whose end of stdin it watches.

python -m hal_conformance.worker DEVICE [TEXT-IN-ID ...] is the quick way while a case is written:
everything in one process.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any

import click

from hal_conformance import look
from hal_conformance.catalog import catalog
from hal_conformance.job import Job
from hal_conformance.judge import Outcome, judge
from hal_conformance.rig import Setting

SHOW_STACKS = signal.SIGUSR1
"""Makes a child write the stacks of all its threads to stderr."""


def work(job: Job) -> Iterator[dict[str, Any]]:
    """Run the job's turns; gives what the parent is told."""
    if not job.peers:
        mixed = (job.device, *job.others)
        job = replace(job, peers=mixed if job.others else look.peers(job.device))
    with _rendezvous(job) as place:
        for seed, case in job.turns():
            yield {"begin": case.id}
            result = judge(case, job.setting(seed, case, place))
            yield {"end": {**asdict(result), "outcome": result.outcome.value}}
    if job.look:
        yield {"look": look.facts(job.device)}


def _rendezvous(job: Job) -> AbstractContextManager[Any]:
    """Where mixed groups meet. What makes them is loaded for these alone: children start often."""
    if not job.others:
        return nullcontext()
    place: AbstractContextManager[Any] = import_module("hal_conformance.mixed").rendezvous()
    return place


def serve() -> None:
    """Run the job that stands on the first line of stdin."""
    line = sys.stdin.buffer.readline()
    with _tell_only_here() as tell:
        faulthandler.enable()
        faulthandler.register(SHOW_STACKS)
        threading.Thread(target=_end_with_parent, name="end with parent", daemon=True).start()
        for event in work(Job.parse(line)):
            tell.write(json.dumps(event) + "\n")
            tell.flush()
    # After many seeds a million objects are left, and the interpreter would go through them all.
    gc.freeze()


def _tell_only_here() -> Any:
    """The parent's pipe as a file; stdout itself becomes stderr, for whatever a plugin prints."""
    pipe = os.dup(1)
    os.dup2(2, 1)
    return open(pipe, "w", encoding="utf-8")


def _end_with_parent() -> None:
    # Not sys.stdin: its lock would be held by this thread when the interpreter ends.
    while os.read(0, 1):
        pass
    os._exit(1)


def here(name: str, *texts: str) -> None:
    """Run the cases whose id has one of the texts; print those that are not green, and a count."""
    with tempfile.TemporaryDirectory() as cache:
        setting = Setting(name, look.peers(name), cache_dir=cache)
        results = [
            judge(c, setting) for c in catalog() if not texts or any(t in c.id for t in texts)
        ]
    for result in results:
        if result.outcome not in (Outcome.PASS, Outcome.UNSUPPORTED) or result.seconds > 1:
            click.echo(f"{result.outcome.value} {result.id} {result.seconds:.2f} s {result.detail}")
    counts = {o.value: sum(r.outcome is o for r in results) for o in Outcome}
    click.echo(f"{counts} in {sum(r.seconds for r in results):.1f} s")


if __name__ == "__main__":
    here(*sys.argv[1:]) if sys.argv[1:] else serve()
