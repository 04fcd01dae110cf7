"""Kill ranks of a small training again and again, and say how long it took until a step was done.

    python -m benchmarks.fault_kills KILLS [SEED] [--ranks 4] [--spares 1] [--torchrun KILLS]

Each kill is one of a random rank at a random moment; the process that was killed is started again
and comes back as a spare or a rank. A recovery is the time from the end of a process, as the
launcher hears of it, to the first step after it that all ranks of the new epoch have done.

With --torchrun so many kills of ranks under `torchrun --max-restarts` stand between the two halves
of these: from the kill to the first step that all its new ranks have done.
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

SCRIPT = Path(__file__).parent.parent / "tests" / "fault" / "train.py"
LONGEST_S = 1800.0
GIVEN_UP_S = 120.0
"""Ranks under torchrun that do no step for so long have not come back."""


def events(file: Path) -> list[dict[str, Any]]:
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


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


TORCH = """
import os, sys, time
import torch.distributed as dist, torch
dist.init_process_group("gloo")
rank = dist.get_rank()
with open(f"{sys.argv[1]}/{rank}", "a", buffering=1) as file:
    file.write(f"start {os.getpid()} {time.monotonic()}\\n")
    while True:
        dist.all_reduce(torch.zeros(1))
        file.write(f"step {os.getpid()} {time.monotonic()}\\n")
        time.sleep(0.01)
"""


def ours(kills: int, rng: random.Random, ranks: int, spares: int) -> list[float]:
    """Seconds of the recoveries from so many kills under `hal run`."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "events"
        options = f"-n {ranks} --least 1 --spares {spares} --restarts {kills}"
        command = [sys.executable, "-c", "from hal_tools.cli import main; main()", "run"]
        command += [*options.split(), "--devices", "cpu:0", "--events", str(file), str(SCRIPT)]
        environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parent.parent.parent)}
        quiet = subprocess.DEVNULL
        with subprocess.Popen([*command, name, "1000000"], env=environment, stderr=quiet) as job:
            until_s, killed = time.monotonic() + LONGEST_S, 0
            while killed < kills and time.monotonic() < until_s and job.poll() is None:
                time.sleep(0.2 + rng.random())
                formed = [e["epoch"]["members"] for e in events(file) if e["event"] == "form"]
                if not formed or len(formed[-1]) < ranks:
                    continue
                found = process_of(rng.choice(formed[-1]), job.pid)
                if found is not None:
                    os.kill(found, signal.SIGKILL)
                    killed += 1
            time.sleep(2.0)
            job.terminate()
        return recoveries(events(file))


def torchrun(kills: int, rng: random.Random, ranks: int) -> list[float]:
    """The same under torchrun, which starts all ranks anew."""
    found: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "steps.py"
        script.write_text(TORCH)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(ranks), "--max-restarts", str(kills + 1), str(script)]
        quiet = subprocess.DEVNULL
        with subprocess.Popen([*command, name], stdout=quiet, stderr=quiet) as job:
            until_s, since_s = time.monotonic() + GIVEN_UP_S, 0.0
            while len(found) <= kills and time.monotonic() < until_s and job.poll() is None:
                time.sleep(0.05)
                rows = [_rows(Path(name) / str(rank)) for rank in range(ranks)]
                firsts = [_first(own, since_s) for own in rows]
                if None in firsts:
                    continue
                # The first one is the start of all, and nothing that was killed
                found.append(max(s for s in firsts if s is not None) - since_s)
                time.sleep(0.2 + rng.random())
                victim = _rows(Path(name) / str(rng.randrange(ranks)))[-1][1]
                since_s = time.monotonic()
                until_s = since_s + GIVEN_UP_S
                if len(found) <= kills:
                    os.kill(int(victim), signal.SIGKILL)
            job.terminate()
    if len(found) <= kills:
        print(f"torchrun: no step within {GIVEN_UP_S:g} s of kill {len(found)}", flush=True)
    return found[1:]


def _rows(file: Path) -> list[list[str]]:
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [line.split() for line in lines if line.endswith("\n")]


def _first(rows: list[list[str]], since_s: float) -> float | None:
    """When the first step was done by a process that started after this moment."""
    new = {row[1] for row in rows if row[0] == "start" and float(row[2]) > since_s}
    done = (float(row[2]) for row in rows if row[0] == "step" and row[1] in new)
    return next(done, None)


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
    parser.add_argument("--torchrun", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    first = (given.kills + 1) // 2 if given.torchrun else given.kills
    times = ours(first, rng, given.ranks, given.spares)
    if given.torchrun:
        print(said("torchrun", torchrun(given.torchrun, rng, given.ranks)), flush=True)
        times += ours(given.kills - first, rng, given.ranks, given.spares)
    print(said(f"{given.kills} kills (seed {given.seed})", times))


if __name__ == "__main__":
    main()
