"""Random worlds in numbers: `python -m tests.scheduler.soak --count 10000`.

Each keeps every promise, decides the same when it is repeated and when its state was written and
read after any event (after every one in each tenth world), and lets nobody wait beyond his bound.
Prints what each world that does not broke, and at its end how many there were. One that takes
longer than `--deadline` seconds of processor time has broken a promise, too: that it ends.
"""

from __future__ import annotations

import json
import signal
import sys
import traceback
from types import FrameType

import click

from tests.scheduler.test_promises import decides_the_same, is_in_time, keeps_the_promises


def _never_ends(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError("it does not end")


@click.command()
@click.option("--first", default=0, help="The first world's seed.")
@click.option("--count", default=10_000, type=click.IntRange(1))
@click.option("--deadline", default=120.0, help="Seconds of processor time for each promise.")
def main(first: int, count: int, deadline: float) -> None:
    """Random worlds that keep the promises."""
    faults = 0
    signal.signal(signal.SIGPROF, _never_ends)
    for seed in range(first, first + count):
        for what, check in (
            ("promises", lambda seed=seed: keeps_the_promises(seed)),
            ("cuts", lambda seed=seed: decides_the_same(seed, 0.1 if seed % 10 else 1.0)),
            ("bound", lambda seed=seed: is_in_time(seed)),
        ):
            try:
                signal.setitimer(signal.ITIMER_PROF, deadline)
                check()
            except Exception:  # noqa: BLE001  whatever breaks is what is looked for
                faults += 1
                text = traceback.format_exc().splitlines()
                click.echo(json.dumps({"world": seed, "broke": what, "how": text[-6:]}))
    signal.setitimer(signal.ITIMER_PROF, 0)
    click.echo(json.dumps({"first": first, "worlds": count, "faults": faults}))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
