"""A cluster's daemon that is killed at random moments: `python -m benchmarks.soak.daemons`.

Jobs are handed in all the while, and a new daemon takes over each time. At the end every job that
was promised has run, none has begun twice, and no process is left.
"""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from hal.core.errors import HalError
from stack.cluster.client import ask

KIND, DEVICES = "cpu", 4
END_S = 300.0
JOB = """
import time
with open("begun", "a") as out:
    out.write("begun\\n")
time.sleep({seconds})
with open("done", "a") as out:
    out.write("done\\n")
"""


def start(state: Path) -> subprocess.Popen[bytes]:
    """A daemon that answers."""
    file = state.parent / "cluster.toml"
    daemon = subprocess.Popen(
        [sys.executable, "-m", "stack.cluster.serve", str(state), "--config", str(file)],
        stdout=subprocess.PIPE,
    )
    assert daemon.stdout is not None, "it was asked for"
    said = select.select([daemon.stdout], [], [], END_S)[0]
    if not said or b"is up" not in os.read(daemon.stdout.fileno(), 1 << 16):
        raise RuntimeError(f"the daemon ended with {daemon.wait(END_S)}")
    return daemon


def hand_in(state: Path, number: int, seconds: float) -> bool:
    """Whether the daemon has promised to run a job."""
    folder = state.parent / f"job-{number}"
    folder.mkdir()
    (folder / "train.py").write_text(JOB.format(seconds=seconds))
    try:
        ask(state, "POST", "/jobs", {"script": "train.py", "folder": str(folder), "kinds": [KIND]})
    except HalError:
        return False
    return True


def faults(state: Path, promised: dict[int, bool]) -> list[str]:
    """What went wrong, in words."""
    found = []
    for number, sure in promised.items():
        folder = state.parent / f"job-{number}"
        begun, done = (
            len(path.read_text().split()) if (path := folder / name).exists() else 0
            for name in ("begun", "done")
        )
        if begun != done or begun > 1 or (sure and not begun):
            found.append(f"job {number} (promised: {sure}) began {begun} times, ended {done}")
    for row in ask(state, "GET", "/jobs"):
        if row["why"] != "done":
            found.append(f"job {row['job']}: {row['state']}, {row['why']}")
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(state / "jobs").encode() in place.read_bytes():
                found.append(f"process {place.parent.name} is left")
        except OSError:
            continue
    return found


@click.command()
@click.option("--count", default=200, type=click.IntRange(1), help="How many kills.")
@click.option("--seed", default=0)
def main(count: int, seed: int) -> None:
    """Daemons that are killed at random."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="hal-daemons-") as folder:
        state = Path(folder, "state")
        chips = f'[{{kind = "{KIND}", devices = {DEVICES}}}]'
        name = Path("/proc/sys/kernel/hostname").read_text().strip()
        state.with_name("cluster.toml").write_text(f'[[hosts]]\nname = "{name}"\nchips = {chips}\n')
        promised: dict[int, bool] = {}
        for kill in range(count):
            daemon = start(state)
            end_s = time.monotonic() + draw.choice([0.0, 0.02, 0.1, 0.5, 1.0])
            for number in range(len(promised), len(promised) + draw.randint(0, 2)):
                promised[number] = hand_in(state, number, draw.choice([0.0, 0.1, 0.5]))
            time.sleep(max(end_s - time.monotonic(), 0.0))
            daemon.kill()
            daemon.wait(END_S)
            click.echo(json.dumps({"kill": kill, "jobs": len(promised)}))
        daemon = start(state)
        until_s = time.monotonic() + END_S
        while time.monotonic() < until_s:
            if all(row["state"] == "ended" for row in ask(state, "GET", "/jobs")):
                break
            time.sleep(0.2)
        time.sleep(1.0)
        found = faults(state, promised)
        daemon.terminate()
        daemon.wait(END_S)
    click.echo(json.dumps({"kills": count, "jobs": len(promised), "faults": found}))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
