"""A cluster's daemon that is killed at each position of its journal: `python -m
benchmarks.soak.positions`.

A position is behind a write to the journal, on either side of a commit, or behind what was done for
a decision (ranks started, asked to end, killed). At each, in turn, a daemon of a cluster of its own
gets SIGKILL, while it does the same things: two jobs run, a third waits for them, one is cancelled.
Another daemon takes over, and is asked for what was not answered. At the end every job that was
promised has run, none has begun twice, the one whose end was promised has not gone on, and no
process is left. Once all positions were seen, they come again with other pauses between requests.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from hal.core.errors import InvalidCall, PluginError
from stack.cluster.client import ask
from stack.cluster.daemon import Daemon
from stack.cluster.engine import JobEngine
from stack.cluster.files import ClusterFile, told
from stack.cluster.journal import Journal

END_S = 240.0
DEVICES = 2
JOB = """
import sys, time
def say(text):
    with open("said", "a") as out:
        out.write(text + "\\n")
say("begun")
time.sleep(float(sys.argv[1]))
say("done")
"""
LONG_S = 600.0


def struck(call: Callable[..., Any], before: bool, left: list[int]) -> Callable[..., Any]:
    """A call that has a position behind it, and with `before` one before it; at the one that is
    `left` the process is killed."""

    def position() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def called(*arguments: Any) -> Any:
        if before:
            position()
        found = call(*arguments)
        position()
        return found

    return called


class Apart:
    """A daemon in a process of its own, which dies at a position (0: at none)."""

    def __init__(self, state: Path, position: int) -> None:
        self._state = state
        self._dead = False
        (state / "socket").unlink(missing_ok=True)  # of one that was killed
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _run(state, position)
            finally:
                os._exit(1)

    def is_dead(self, patience_s: float = 0.0) -> bool:
        """Whether it has ended, after so long at most."""
        until_s = time.monotonic() + patience_s
        while not self._dead:
            self._dead = os.waitpid(self._pid, os.WNOHANG) != (0, 0)
            if not self._dead and time.monotonic() >= until_s:
                return False
            time.sleep(0.005)
        return True

    def end(self) -> None:
        """Ask it to end, and wait for that."""
        if not self.is_dead():
            os.kill(self._pid, signal.SIGTERM)
            if not self.is_dead(END_S):
                raise RuntimeError(f"the daemon in {self._state} does not end")

    def asked(self, *request: Any) -> Any:
        """An answer, once it gives one; None where it dies meanwhile."""
        until_s = time.monotonic() + END_S
        while True:
            try:
                return ask(self._state, *request)
            except PluginError:
                return None
            except InvalidCall as error:
                if not str(error).startswith("no daemon answers"):
                    raise
            if self.is_dead():
                return None
            if time.monotonic() > until_s:
                raise RuntimeError(f"no daemon came up in {self._state}")


def _run(state: Path, position: int) -> None:
    left = [position]
    if position:
        for owner, name, before in (
            (Journal, "_write", False),
            (Journal, "commit", True),
            (JobEngine, "start", False),
            (JobEngine, "ask", False),
            (JobEngine, "kill", False),
        ):
            setattr(owner, name, struck(getattr(owner, name), before, left))
    name = os.uname().nodename
    hosts = [{"name": name, "chips": [{"kind": "cpu", "devices": DEVICES}]}]
    Daemon(state, told({"hosts": hosts}, ClusterFile, "the trial"), None).run()
    os._exit(0)


def requests(folder: Path) -> list[tuple[Any, ...]]:
    """What is asked for: three jobs, and the end of the second."""
    made = []
    for number, seconds in ((1, 0.1), (2, LONG_S), (3, 0.1)):
        place = folder / f"job-{number}"
        place.mkdir()
        (place / "train.py").write_text(JOB)
        body = {"script": "train.py", "folder": str(place), "arguments": [str(seconds)]}
        made.append(("POST", "/jobs", {**body, "name": str(number)}))
    return [*made, ("POST", "/jobs/2/cancel")]


def trial(folder: Path, position: int, draw: random.Random) -> tuple[bool, list[str]]:
    """Whether the position came, and what went wrong."""
    state = folder / "state"
    first = Apart(state, position)
    everything = requests(folder)
    sure: set[int] = set()
    for number, request in enumerate(everything, 1):
        if not first.is_dead() and first.asked(*request) is not None:
            sure.add(number)
        first.is_dead(draw.choice((0.0, 0.0, 0.3, 1.0)))
    reached = first.is_dead(10.0)
    first.end()
    second = Apart(state, 0)
    try:
        found = _faults(folder, second, everything, sure)
    finally:
        second.end()
    return reached, found + left_of(state)


def _faults(
    folder: Path, daemon: Apart, everything: list[tuple[Any, ...]], sure: set[int]
) -> list[str]:
    """What went wrong, once the daemon that has taken over was asked for what was not answered, and
    all is over."""
    there = {int(row["name"]): row for row in daemon.asked("GET", "/jobs")}
    found = [f"job {n} was promised, and is lost" for n in sure & {1, 2, 3} if n not in there]
    for number in {1, 2, 3} - there.keys():
        daemon.asked(*everything[number - 1])
    there = {int(row["name"]): row for row in daemon.asked("GET", "/jobs")}
    if 4 not in sure:
        with suppress(InvalidCall):  # it may have ended, though nobody heard it
            daemon.asked("POST", f"/jobs/{there[2]['job']}/cancel")
    elif there[2]["state"] not in ("ended", "stopping"):
        found.append(f"job 2 was cancelled, and is {there[2]['state']}")
    until_s = time.monotonic() + END_S
    rows = daemon.asked("GET", "/jobs")
    while any(row["state"] != "ended" for row in rows) and time.monotonic() < until_s:
        time.sleep(0.05)
        rows = daemon.asked("GET", "/jobs")
    for row in rows:
        said = folder / f"job-{row['name']}" / "said"
        words = said.read_text().split() if said.exists() else []
        well = words == ["begun", "done"] and row["why"] == "done"
        if row["name"] == "2":
            well = words in ([], ["begun"]) and "cancelled" in row["why"]
        if not well:
            found.append(f"job {row['name']}: {words}, {row['state']}, {row['why']}")
    if len(rows) != 3:
        found.append(f"there are {len(rows)} jobs")
    return found


def left_of(state: Path) -> list[str]:
    """Processes of a cluster's runs that are there after a moment."""
    until_s = time.monotonic() + 10.0
    while True:
        found = []
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(state / "jobs").encode() in place.read_bytes():
                    found.append(f"process {place.parent.name} is left")
            except OSError:
                continue
        if not found or time.monotonic() > until_s:
            return found
        time.sleep(0.05)


@click.command()
@click.option("--count", default=200, type=click.IntRange(1), help="How many kills.")
@click.option("--seed", default=0)
def main(count: int, seed: int) -> None:
    """Daemons that are killed at each position of their journals."""
    draw = random.Random(seed)
    kills, position, most, faults = 0, 1, 0, 0
    while kills < count:
        with tempfile.TemporaryDirectory(prefix="hal-position-") as folder:
            reached, found = trial(Path(folder), position, draw)
        faults += bool(found)
        if found:
            click.echo(json.dumps({"position": position, "faults": found}))
        if reached:
            kills, most, position = kills + 1, max(most, position), position + 1
        elif position == 1:
            raise RuntimeError("no position came")
        else:
            position = 1
        if kills % 10 == 0:
            click.echo(json.dumps({"kills": kills, "position": position, "faults": faults}))
    click.echo(json.dumps({"kills": kills, "positions": most, "seed": seed, "faults": faults}))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
