"""Ranks that are killed or stopped at random: `python -m benchmarks.soak.kills --count 200`.

Each trial starts 2 or 3 ranks with a launcher that ends nobody, and sends one of them SIGKILL or
SIGSTOP while it joins, meets, trains or saves. Every survivor has to end by an error of HAL that
names that rank, and nothing may be left: no process, no socket, no temporary file, no checkpoint
that cannot be read. Trial i depends on the seed and on i alone: `--first 50 --count 10` goes on.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import click

from benchmarks.soak.apart import go_apart
from benchmarks.soak.rank import be_a_rank, save_again
from stack.comm.store import StoreServer
from stack.comm.world import World

PHASES = {"joining": 0.02, "meeting": 0.06, "training": 0.3, "saving": 0.08}
"""What a rank does when it is hit, and within how many seconds of its begin."""
DEADLINE_S = 10.0
END_S = 90.0
TOKEN = "of-a-soak"


@dataclass(frozen=True)
class Trial:
    """Rank `victim` of `size` gets the signal so many seconds after it has begun the phase."""

    number: int
    size: int
    victim: int
    phase: str
    signal: str
    after_s: float


def trial_of(seed: int, number: int) -> Trial:
    choose = random.Random(f"{seed}/{number}")
    phase = choose.choice(list(PHASES))
    size = choose.choice([2, 3])
    victim = 0 if phase == "saving" else choose.randrange(size)
    how = choose.choice(["SIGKILL", "SIGKILL", "SIGSTOP"])
    return Trial(number, size, victim, phase, how, choose.random() * PHASES[phase])


class Ranks:
    """The processes of a trial."""

    def __init__(self, trial: Trial, address: str, folder: Path) -> None:
        self.trial = trial
        start = get_context("forkserver")
        self.pipes: list[Connection] = []
        self.processes: list[ForkServerProcess] = []
        self.said: list[list[Any]] = [[] for _ in range(trial.size)]
        for rank in range(trial.size):
            place = (rank, trial.size, rank, trial.size, "here", "cpu:0", address, TOKEN)
            world = World(*place, f"job-{trial.number}", DEADLINE_S)
            ours, theirs = start.Pipe()
            process = start.Process(target=be_a_rank, args=(theirs, world, str(folder)))
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def hear(self, rank: int, timeout_s: float) -> bool:
        """Take what a rank says next; False where it says nothing, or has ended."""
        with suppress(EOFError, ConnectionResetError):
            if self.pipes[rank].poll(timeout_s):
                self.said[rank].append(self.pipes[rank].recv())
                return True
        return False

    def await_phase(self) -> None:
        """Until the victim begins its phase."""
        until_s = time.monotonic() + END_S
        victim, phase = self.trial.victim, self.trial.phase
        while phase not in self.said[victim]:
            assert time.monotonic() < until_s, f"{victim} never came to {phase}: {self.said}"
            for rank in range(self.trial.size):
                self.hear(rank, 0.0 if rank != victim else 0.05)
            last = self.said[victim][-1:]
            assert not last or isinstance(last[0], str), f"rank {victim} ended itself: {last}"

    def end(self, rank: int, until_s: float) -> tuple[str, int | None, str]:
        """How a rank has ended, in its own words."""
        while time.monotonic() < until_s and self.hear(rank, max(0.0, until_s - time.monotonic())):
            if isinstance(self.said[rank][-1], tuple):
                break
        self.processes[rank].join(max(0.1, until_s - time.monotonic()))
        last = self.said[rank][-1] if self.said[rank] else "nothing"
        if self.processes[rank].exitcode is None:
            return "hangs", None, str(last)
        return last if isinstance(last, tuple) else ("silent", None, str(last))

    def close(self) -> None:
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            with suppress(ProcessLookupError):
                if process.is_alive() and process.pid:
                    os.kill(process.pid, signal.SIGKILL)
            process.join(10)
            pipe.close()


def run_trial(trial: Trial) -> list[str]:
    """What went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="hal-soak-"))
    (folder / "tmp").mkdir()
    faults = []
    try:
        with StoreServer(TOKEN) as server:
            ranks = Ranks(trial, f"127.0.0.1:{server.port}", folder)
            try:
                faults = _hit(trial, ranks)
            finally:
                ranks.close()
        faults += _left(ranks, folder)
    finally:
        shutil.rmtree(folder)
    return faults


def _hit(trial: Trial, ranks: Ranks) -> list[str]:
    ranks.await_phase()
    time.sleep(trial.after_s)
    process = ranks.processes[trial.victim]
    assert process.pid is not None
    os.kill(process.pid, signal.Signals[trial.signal])
    until_s = time.monotonic() + END_S
    faults = []
    for rank in set(range(trial.size)) - {trial.victim}:
        kind, named, text = ranks.end(rank, until_s)
        words = (f"rank {trial.victim} ", f"ranks [{trial.victim}] ")
        right = named == trial.victim or (named is None and any(word in text for word in words))
        if kind.startswith(("raw", "hangs", "silent")) or not right:
            faults.append(f"rank {rank} ends by {kind} (rank {named}): {text}")
    if trial.signal == "SIGSTOP":
        os.kill(process.pid, signal.SIGCONT)
        kind, _, text = ranks.end(trial.victim, time.monotonic() + END_S)
        if kind.startswith(("raw", "hangs", "silent")):
            faults.append(f"rank {trial.victim}, which goes on, ends by {kind}: {text}")
    return faults


def _left(ranks: Ranks, folder: Path) -> list[str]:
    """What is still there of a trial."""
    faults = [f"process {p.pid} is left" for p in ranks.processes if p.is_alive()]
    names = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()]
    faults += [f"socket {name} is left" for name in names if name.startswith("@hal-")]
    faults += [f"/dev/shm has {name}" for name in os.listdir("/dev/shm") if "hal" in name]
    check = get_context("forkserver").Process(target=save_again, args=(str(folder),))
    check.start()
    check.join(END_S)
    if check.exitcode:
        faults.append(f"the checkpoint's folder is not in order: {sorted(os.listdir(folder))}")
    return faults


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--first", type=click.IntRange(0), default=0, help="The number of the first trial.")
@click.option("--count", type=click.IntRange(1), default=200, help="How many trials.")
@click.option("--seed", type=int, default=1)
def main(first: int, count: int, seed: int) -> None:
    go_apart(__spec__.name)
    get_context("forkserver").set_forkserver_preload([be_a_rank.__module__])
    seen, failed = Counter[str](), 0
    for number in range(first, first + count):
        trial = trial_of(seed, number)
        began_s = time.monotonic()
        try:
            faults = run_trial(trial)
        except AssertionError as error:
            faults = [f"the trial itself: {error}"]
        seen[f"{trial.phase}, {trial.signal}"] += 1
        failed += bool(faults)
        row = {**asdict(trial), "seconds": round(time.monotonic() - began_s, 1), "faults": faults}
        print(json.dumps(row), flush=True)
    load = os.getloadavg()[0]
    print(json.dumps({"trials": count, "failed": failed, "load": load, **seen}))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
