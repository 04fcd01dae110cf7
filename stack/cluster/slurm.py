"""A job as a batch script of Slurm.

Slurm gives whole hosts, and the script is `hal run` on them, which reaches each by a step of the
allocation. Slurm keeps the queue, starts a job again whose host is lost or that was preempted, and
sends SIGTERM `grace_s` before it ends one."""

from __future__ import annotations

import math
import shlex
import subprocess
import sys

from hal.core.errors import InvalidCall, PluginError
from stack.cluster.files import JobFile

WAIT_S = 60.0
SHELL = "srun -N1 -n1 --overlap -w {host} sh -c"


def script(job: JobFile, address: str = "") -> str:
    """The batch script of a job. `address` is where other hosts reach the first one, "" for its
    name.

    Raises InvalidCall for what a batch script cannot say."""
    if job.least not in (0, job.ranks):
        raise InvalidCall("Slurm gives a job all its hosts or none; leave out `least`")
    if job.mixed or job.within:
        raise InvalidCall("leave `mixed` and `within` to Slurm's own options and topology")
    per_host = job.per_host or job.ranks
    hosts = math.ceil(job.ranks / per_host)
    devices = ",".join(f"{job.kinds[0]}:{index}" for index in range(per_host))
    options = [
        f"--job-name={job.name or job.script}",
        f"--nodes={hosts}",
        "--ntasks-per-node=1",
        f"--chdir={job.folder}",
        "--requeue",
        f"--signal=B:TERM@{math.ceil(job.grace_s)}",
        *([] if job.limit_s is None else [f"--time={math.ceil(job.limit_s / 60)}"]),
        *([] if job.queue == "main" else [f"--partition={job.queue}"]),
        *([] if not job.priority else [f"--priority={job.priority}"]),
    ]
    run = [sys.executable, "-m", "hal", "run", "-n", str(job.ranks)]
    run += ["--shell", SHELL, "--restarts", str(job.restarts)]
    run += ["--address", address] if address else []
    lines = [
        "#!/bin/sh",
        *(f"#SBATCH {shlex.quote(option)}" for option in options),
        *(f"export {name}={shlex.quote(value)}" for name, value in job.environment.items()),
        "hosts=$(mktemp) || exit 1; trap 'rm -f \"$hosts\"' EXIT",
        'for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do',
        f'    echo "$host slots={per_host} devices={devices}"',
        'done > "$hosts"',
        f'{shlex.join(run)} --hosts "$hosts"{" -m" if job.module else ""} '
        + shlex.join([job.script, *job.arguments])
        + " &",
        "trap 'kill -TERM $!' TERM  # the shell hears Slurm's signal, and passes it on",
        "wait $!; status=$?",
        "[ $status -gt 128 ] && { wait $!; status=$?; }",
        "exit $status",
    ]
    return "\n".join(lines) + "\n"


def submit(job: JobFile, address: str = "") -> str:
    """Hand a job in; gives Slurm's number of it. Raises InvalidCall with what Slurm refuses, and
    PluginError where there is no Slurm."""
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"],
            input=script(job, address),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise PluginError("there is no sbatch here: Slurm's commands are not installed") from None
    except subprocess.TimeoutExpired:
        raise PluginError(f"sbatch did not answer within {WAIT_S:g} s") from None
    if done.returncode:
        raise InvalidCall(f"Slurm refuses the job: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip().partition(";")[0]
