"""Kill ranks of a small training again and again, and say how long it took until a step was done.

    python -m benchmarks.fault_kills KILLS [SEED] [--ranks 4] [--spares 1] [--torchrun KILLS]
                                     [--torchft KILLS] [--least 1]

Each kill is one of a random rank at a random moment; the process that was killed is started again
and comes back as a spare or a rank. A recovery is the time from the end of a process, as the
launcher hears of it, to the first step after it that all ranks of the new epoch have done.

With `--least 4 --spares 0` each waits for the process that is started anew; beside it is said how
long the start of the job took, from its first process to the first step of all. What processes
compile after their first steps is counted: nothing, whatever the number of ranks.

With --torchrun so many kills of ranks under `torchrun --max-restarts` stand between the two halves
of these: from the kill to the first step that all its new ranks have done; with --torchft so many
under that, from the kill to the first step of those that are left (`benchmarks.fault_peers`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.fault_peers import torchft, torchrun

SCRIPT = Path(__file__).parent.parent / "tests" / "fault" / "train.py"
LONGEST_S = 1800.0


class Events:
    """The events of a job, whose file grows: each is read once."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._at = 0
        self._seen: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """All until now."""
        if self._file.exists():
            with self._file.open("rb") as stream:
                stream.seek(self._at)
                whole = stream.read().rpartition(b"\n")[0]
            self._at += len(whole) + 1 if whole else 0
            self._seen += map(json.loads, whole.splitlines())
        return self._seen


def process_of(member: str, job: int) -> int | None:
    """The process of a member among the descendants of the launcher."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            given = (folder / "environ").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
            grand = int(Path(f"/proc/{parent}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if f"HAL_WORLD_MEMBER={member}".encode() in given and job in (parent, grand):
            return int(folder.name)
    return None


def recoveries(seen: list[dict[str, Any]]) -> list[float]:
    """Seconds from each end of a member to the first step that all ranks then have done."""
    found: list[float] = []
    ended_s: float | None = None
    epoch: list[str] = []
    waiting: set[int] = set()
    entered: set[int] = set()
    for event in seen:
        match event["event"]:
            case "exited" if event["status"] == -signal.SIGKILL and ended_s is None:
                if any(m.startswith(f"{event['rank']}.") for m in epoch):
                    ended_s = event["at_s"]
            case "form":
                epoch = event["epoch"]["members"]
                waiting = {int(m.split(".")[0]) for m in epoch}
                entered = set()
            case "entered":
                entered.add(event["seat"])
            case "step" if event["seat"] in entered and ended_s is not None:
                waiting.discard(event["seat"])
                if not waiting:
                    found.append(event["at_s"] - ended_s)
                    ended_s = None
    return found


def started_s(seen: list[dict[str, Any]]) -> float:
    """Seconds from the start of the first process to the first step that all ranks have done."""
    begin_s = next(event["at_s"] for event in seen if event["event"] == "begin")
    size = next(len(e["epoch"]["members"]) for e in seen if e["event"] == "form")
    firsts: dict[int, float] = {}
    for event in seen:
        if event["event"] == "step" and event["step"] == 1:
            firsts.setdefault(event["seat"], event["at_s"])
    return float(sorted(firsts.values())[size - 1] - begin_s)


def ours(kills: int, rng: random.Random, ranks: int, spares: int, least: int) -> list[float]:
    """Seconds of the recoveries from so many kills under `hal run`."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "events"
        options = f"-n {ranks} --least {least} --spares {spares} --restarts {kills}"
        command = [sys.executable, "-c", "from hal_tools.cli import main; main()", "run"]
        command += [*options.split(), "--devices", "cpu:0", "--events", str(file), str(SCRIPT)]
        environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parent.parent.parent)}
        quiet = subprocess.DEVNULL
        with subprocess.Popen([*command, name, "1000000"], env=environment, stderr=quiet) as job:
            until_s, killed, log = time.monotonic() + LONGEST_S, 0, Events(file)
            while time.monotonic() < until_s and job.poll() is None:
                time.sleep(0.2 + rng.random())
                seen = log.read()
                formed = [e["epoch"]["members"] for e in seen if e["event"] == "form"]
                done = any(e["event"] == "step" and e["step"] > 1 for e in seen)
                if not done or len(recoveries(seen)) < killed:
                    continue
                if killed == kills:
                    break
                if len(formed[-1]) == ranks:
                    found = process_of(rng.choice(formed[-1]), job.pid)
                    if found is not None:
                        os.kill(found, signal.SIGKILL)
                        killed += 1
            job.terminate()
        print(f"start to the first step of all: {started_s(seen):.3f} s", flush=True)
        print(compiled(Path(name)), flush=True)
        return recoveries(seen)


def compiled(folder: Path) -> str:
    """What processes have compiled after their first steps, in epochs of which sizes."""
    later, sizes, count = 0, set(), 0
    for file in folder.glob("*.txt"):
        rows = [line.split() for line in file.read_text().splitlines(keepends=True) if "\n" in line]
        sizes |= {int(size) for _, size, *_ in rows}
        later += max(int(compiled) - int(rows[0][-1]) for *_, compiled in rows)
        count += 1
    where = f"after the first steps of {count} processes, in epochs of {sorted(sizes)} ranks"
    return f"{later} graphs compiled {where}"


def said(what: str, times: list[float]) -> str:
    if not times:
        return f"{what}: no recovery"
    times = sorted(times)
    p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
    text = f"{what}: {len(times)} recoveries, p50 {statistics.median(times):.3f} s, "
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    return f"{text}p99 {p99:.3f} s, most {times[-1]:.3f} s; {load}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("kills", type=int)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--least", type=int, default=1)
    parser.add_argument("--torchrun", type=int, default=0)
    parser.add_argument("--torchft", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    peers = [(peer, count) for peer in (torchrun, torchft) if (count := vars(given)[peer.__name__])]
    first = (given.kills + 1) // 2 if peers else given.kills
    times = ours(first, rng, given.ranks, given.spares, given.least)
    for peer, count in peers:
        print(said(peer.__name__, peer(count, rng, given.ranks)), flush=True)
    if peers:
        times += ours(given.kills - first, rng, given.ranks, given.spares, given.least)
    print(said(f"{given.kills} kills (seed {given.seed})", times))


if __name__ == "__main__":
    main()
