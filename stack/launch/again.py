"""Starts of a job, one after the other, until one ends well."""

from __future__ import annotations

import select
import signal
import sys
from dataclasses import replace

from stack.launch.launcher import Launcher, RunRequest
from stack.launch.loop import signals_heard

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Before a job is started again; each pause is twice as long as the one before."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_until_well(plan: RunRequest, restarts: int) -> int:
    """Run the job; when it fails while ranks run, run it anew, `restarts` times at most, after a
    pause. Gives the exit status of the last start.

    Every start has new ranks and a new store, and is told its number; a script goes on from what it
    has kept. A failure that comes back the same, with nothing kept in between, would come again:
    the job is given up. With a log folder each later start has a folder of its own in it,
    "restart-1".
    """
    first = before = None
    for number in range(restarts + 1):
        request = plan
        if number:
            folder = plan.log_folder and plan.log_folder / f"restart-{number}"
            request = replace(plan, restart=number, log_folder=folder)
        launcher = Launcher(request)
        status = launcher.run()
        failure = launcher.failure
        if failure is None:
            return status
        first = first or failure
        if failure.comes_back(before):
            _say(f"does not start the job again: it failed twice in the same way, {failure}")
            return status
        before = failure
        if number < restarts:
            pause_s = pause_after(number)
            said = f"starts the job again in {pause_s:g} s, {number + 1} of {restarts}"
            with signals_heard(_ENDING) as signals:
                _say(said)
                if select.select([signals], [], [], pause_s)[0]:
                    return 128 + signals.recv(1)[0]
    if restarts:
        _say(f"gives up after {restarts + 1} starts; the first cause: {first}")
    return status


def pause_after(starts: int) -> float:
    """Seconds before a job that has failed, and was started again so often before, starts again."""
    return min(FIRST_PAUSE_S * 2.0 ** min(starts, 32), LONGEST_PAUSE_S)


def _say(text: str) -> None:
    sys.stderr.write(f"hal run: {text}\n")
    sys.stderr.flush()
