"""Starts of a job, one after the other, until one ends well."""

from __future__ import annotations

import sys
from dataclasses import replace

from stack.launch.launcher import Launcher, Plan


def run_until_well(plan: Plan, restarts: int) -> int:
    """Run the job; when it fails while ranks run, run it anew, `restarts` times at most. Gives the
    exit status of the last start.

    Every start has new ranks and a new store; a script goes on from what it has kept. With a log
    folder each later start has a folder of its own in it, "restart-1".
    """
    causes: list[str] = []
    for number in range(restarts + 1):
        launcher = Launcher(_numbered(plan, number))
        status = launcher.run()
        if not launcher.failed:
            return status
        causes.append(launcher.cause)
        if number < restarts:
            _say(f"starts the job again, {number + 1} of {restarts}")
    if restarts:
        _say(f"gives up after {restarts + 1} starts; the first cause: {causes[0]}")
    return status


def _numbered(plan: Plan, number: int) -> Plan:
    if not number or plan.log_folder is None:
        return plan
    return replace(plan, log_folder=plan.log_folder / f"restart-{number}")


def _say(text: str) -> None:
    sys.stderr.write(f"hal run: {text}\n")
    sys.stderr.flush()
