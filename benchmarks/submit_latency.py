"""How long from `hal submit` to a job's processes at a running daemon of this machine:
`python -m benchmarks.submit_latency`.

Jobs are handed in one after the other, each by a `hal submit` of its own. Prints the medians over
them, in milliseconds of wall time since that command was started: when it has ended, when the job's
first process has begun (the keeper of `hal run`), and when the script's first line runs in the
rank; and the processor time that the command and the daemon took, which hangs less on what else the
machine does.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from benchmarks.soak.daemons import start

LONGEST_S = 60.0
HAL = (sys.executable, "-c", "from hal_tools.cli import main; main(prog_name='hal')")
SCRIPT = "import time; print(time.time_ns(), flush=True)"


def cpu_ns(pid: int) -> int:
    """Processor time of a process and its threads, in nanoseconds."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks)


def children_s() -> float:
    """Processor time of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def written(path: Path) -> str:
    """What a file says, once it is there and says something."""
    until_s = time.monotonic() + LONGEST_S
    while not (path.exists() and path.read_text().strip()):
        if time.monotonic() > until_s:
            raise RuntimeError(f"{path} did not come within {LONGEST_S:g} s")
        time.sleep(0.005)
    return path.read_text()


@click.command()
@click.option("--count", default=20, type=click.IntRange(1), help="How many jobs.")
def main(count: int) -> None:
    """From `hal submit` to a job's processes."""
    rows: dict[str, list[float]] = {
        name: [] for name in ("answered", "keeper", "rank", "client_cpu", "daemon_cpu")
    }
    with tempfile.TemporaryDirectory(prefix="hal-submit-") as folder:
        state = Path(folder, "state")
        name = Path("/proc/sys/kernel/hostname").read_text().strip()
        chips = '[{kind = "cpu", devices = 1}]'
        state.with_name("cluster.toml").write_text(f'[[hosts]]\nname = "{name}"\nchips = {chips}\n')
        Path(folder, "train.py").write_text(SCRIPT)
        daemon = start(state)
        try:
            for job in range(1, count + 1):
                used_ns, used_s, begun_ns = cpu_ns(daemon.pid), children_s(), time.time_ns()
                subprocess.run(
                    [*HAL, "submit", "--state", str(state), "train.py"],
                    cwd=folder,
                    stdout=subprocess.DEVNULL,
                    timeout=LONGEST_S,
                    check=True,
                )
                answered_ns = time.time_ns()
                rows["client_cpu"].append((children_s() - used_s) * 1e3)
                files = state / "jobs" / str(job)
                written(files / "run-1")
                rows["daemon_cpu"].append((cpu_ns(daemon.pid) - used_ns) / 1e6)
                keeper_ns = (files / "run-1").stat().st_mtime_ns
                rank_ns = int(written(files / "log-1").split()[-1])
                for what, at_ns in (
                    ("answered", answered_ns),
                    ("keeper", keeper_ns),
                    ("rank", rank_ns),
                ):
                    rows[what].append((at_ns - begun_ns) / 1e6)
                written(files / "exit-1")
        finally:
            daemon.terminate()
            daemon.wait(LONGEST_S)
    found = {f"{what}_ms": round(statistics.median(values), 1) for what, values in rows.items()}
    least = {f"least_{what}_ms": round(min(values), 1) for what, values in rows.items()}
    click.echo(json.dumps({"jobs": count, **found, **least, "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
