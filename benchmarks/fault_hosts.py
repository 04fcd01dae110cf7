"""Take hosts from a small training again and again: each is a network namespace with one process.

    python -m benchmarks.fault_hosts TIMES [SEED] [--ranks 4] [--spares 2] [--slots 1]
                                     [--kind host,stop,...]

It needs root and the command `ip`. A job has a host for each rank and spare, or for so many as
`slots` says: with `--ranks 1 --spares 2`, or `--slots 4`, all ranks may be on the host that is
lost, and a copy counts. Once one host is left, a new job begins. Of each kind the time is said
from the fault to the first step that all ranks of the next epoch have done. Whoever is blamed has
to be the one that was struck. Kinds:

    rank    the process of a rank is killed
    host    the link of a host is cut and all its processes are killed, its agent, too
    stop    a rank is stopped by SIGSTOP
    link    the link of a host is cut; the launcher still hears its agent
    silent  the link of a host is cut, and all its processes are stopped: nobody hears of it
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.fault_kills import SCRIPT, Events, said
from benchmarks.row import BenchmarkError
from tests.comm.engine.hosts import Hosts, hosts, why_not

LONGEST_S = 60.0
"""Until a job has its ranks, and until it has recovered."""
OF_HOSTS = ("host", "link", "silent")
KINDS = ("rank", "stop", *OF_HOSTS)


class Watched:
    """A job whose file of events is read as it grows."""

    def __init__(self, file: Path, process: subprocess.Popen[bytes]) -> None:
        self.events = Events(file)
        self._process = process
        self._late_s = float("inf")

    def until(self, found: Callable[[list[dict[str, Any]]], Any]) -> Any:
        """What is found in the events, once there is something. Raises TimeoutError."""
        until_s = time.monotonic() + LONGEST_S
        while time.monotonic() < until_s:
            seen = self.events.read()
            if seen:  # the clock of the job begins at the least of what they are late
                self._late_s = min(self._late_s, time.monotonic() - seen[-1]["at_s"])
            if (got := found(seen)) is not None:
                return got
            if self._process.poll() is not None:
                raise TimeoutError(f"the job has ended: {seen[-3:]}")
            time.sleep(0.01)
        raise TimeoutError(f"nothing in {LONGEST_S:g} s: {seen[-3:]}")

    def now_s(self) -> float:
        """On the clock of the job's events."""
        return time.monotonic() - self._late_s


def formed(seen: list[dict[str, Any]]) -> list[str]:
    """The members of the newest epoch."""
    every = [e["epoch"]["members"] for e in seen if e["event"] == "form"]
    return every[-1] if every else []


def all_do_steps(
    seen: list[dict[str, Any]], without: Collection[str] = (), since_s: float = 0.0
) -> float | None:
    """When all ranks of the newest epoch had done a step, where some members are not in it; None
    while they have not."""
    last = max((i for i, e in enumerate(seen) if e["event"] == "form"), default=None)
    if last is None or set(without) & set(members := seen[last]["epoch"]["members"]):
        return None
    waiting, entered = {int(m.split(".")[0]) for m in members}, set()
    for event in seen[last:]:
        if event["event"] == "entered":
            entered.add(event["seat"])
        elif event["event"] == "step" and event["seat"] in entered and event["at_s"] >= since_s:
            waiting.discard(event["seat"])
            if not waiting:
                return float(event["at_s"])
    return None


def processes(namespace: str) -> list[int]:
    done = subprocess.run(
        ["ip", "netns", "pids", namespace], capture_output=True, check=True, timeout=20
    )
    return [int(word) for word in done.stdout.split()]


def process_in(namespace: str, member: str) -> int:
    """The process of a member in a namespace."""
    for process in processes(namespace):
        with suppress(OSError):
            given = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            if f"HAL_WORLD_MEMBER={member}".encode() in given:
                return process
    raise TimeoutError(f"{member} does not run in {namespace}")


def harm(made: Hosts, host: int, member: str, kind: str, job: Watched) -> float:
    """Gives when, on the clock of the job."""
    name = made.namespace(host)
    struck = processes(name) if kind in OF_HOSTS else [process_in(name, member)]
    at_s = job.now_s()
    if kind in OF_HOSTS:
        made.cut(host)
    if kind != "link":
        for process in struck:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL if kind in ("rank", "host") else signal.SIGSTOP)
    return at_s


def one_job(
    kind: str, times: int, rng: random.Random, ranks: int, spares: int, slots: int
) -> list[float]:
    """Up to so many recoveries."""
    found: list[float] = []
    with hosts(-(-(ranks + spares) // slots)) as made, tempfile.TemporaryDirectory() as name:
        names = [made.namespace(host) for host in range(made.count)]
        (Path(name) / "hosts").write_text("".join(f"{own} slots={slots}\n" for own in names))
        file = Path(name) / "events"
        command = [sys.executable, "-m", "hal", "run", "-n", str(ranks), "--least", "1"]
        command += ["--spares", str(spares), "--devices", "cpu:0", "--events", str(file)]
        command += ["--restarts", str(times), "--hosts", str(Path(name) / "hosts")]
        command += ["--shell", "ip netns exec {host} sh -c", "--address", made.address]
        environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parent.parent.parent)}
        with (
            (Path(name) / "output").open("wb") as output,
            subprocess.Popen(
                [*command, str(SCRIPT), name, "1000000"],
                env=environment,
                stdout=output,
                stderr=output,
            ) as process,
        ):
            job = Watched(file, process)
            gone: set[int] = set()
            blamable: set[str] = set()
            try:
                for _ in range(times):
                    if len(gone) + 1 == made.count:
                        break
                    job.until(all_do_steps)
                    time.sleep(0.5 + rng.random())
                    job.until(all_do_steps)
                    members = {m: int(m.split(".")[0]) // slots for m in formed(job.events.read())}
                    member = rng.choice([m for m, host in members.items() if host not in gone])
                    host = members[member]
                    struck = [m for m in members if members[m] == host]
                    struck = struck if kind in OF_HOSTS else [member]
                    at_s = harm(made, host, member, kind, job)
                    goes_on = partial(all_do_steps, without=struck, since_s=at_s)
                    found.append(job.until(goes_on) - at_s)
                    blamable |= set(struck)
                    seen = job.events.read()
                    blamed = {e["member"] for e in seen if e["event"] == "faulty"} - blamable
                    if blamed:
                        raise BenchmarkError(f"{kind}: {sorted(blamed)} were well")
                    if kind in OF_HOSTS:
                        gone.add(host)
            except TimeoutError as error:
                print(f"{kind}: {error}\n{(Path(name) / 'output').read_text()[-2000:]}", flush=True)
            finally:
                for host in gone:
                    made.mend(host)
                    for one in processes(made.namespace(host)):
                        with suppress(ProcessLookupError):
                            os.kill(one, signal.SIGCONT)
                process.terminate()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("times", type=int)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--spares", type=int, default=2)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--kind", default=",".join(KINDS))
    given = parser.parse_args()
    if why := why_not():
        sys.exit(why)
    rng = random.Random(given.seed)
    for kind in given.kind.split(","):
        times: list[float] = []
        while len(times) < given.times:
            left = given.times - len(times)
            got = one_job(kind, left, rng, given.ranks, given.spares, given.slots)
            if not got:
                break
            times += got
        print(said(kind, times), flush=True)


if __name__ == "__main__":
    main()
