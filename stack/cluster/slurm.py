"""A job as a batch script of Slurm, and the hosts of an allocation for a daemon that runs in it.

Slurm gives whole hosts, and the script is `hal run` on them, which reaches each by a step of the
allocation. Slurm keeps the queue, starts a job again whose host is lost or that was preempted, and
sends SIGTERM `grace_s` before it ends one."""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from hal.core.errors import InvalidCall, PluginError
from stack.cluster.files import ClusterFile, HostFile, JobFile, this_machine, told

WAIT_S = 60.0
AGAIN = 3
"""How often a job asks to start again whose hosts do not answer, though Slurm misses none."""
SHELL = "srun -N1 -n1 --overlap -w {host} sh -c"
_IF_PREEMPTED = """
# Slurm starts a preempted job again whose grace has ended it. One that ended sooner, since it has
# saved, asks for that itself.
about=" $(scontrol show job "$SLURM_JOB_ID" | tr '\\n' ' ')"
preempted=$(echo "$about" | sed -n 's/.* PreemptTime=\\([0-9][^ ]*\\).*/\\1/p')
begun=$(echo "$about" | sed -n 's/.* StartTime=\\([0-9][^ ]*\\).*/\\1/p')
[ "$preempted" ] && expr "$preempted" '>=' "$begun" > /dev/null &&
    scontrol requeue "$SLURM_JOB_ID" && exit $status
""".strip()
_UNLESS_LOST = f"""
# Slurm starts a job again when it knows that a host is lost. The job knows sooner, and is not over
# then: it waits for Slurm, and asks for it where Slurm finds nothing.
timeout {WAIT_S:g} srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 true &&
    exit $status
echo "a host does not answer: the job waits to start again" >&2
known=$(scontrol show config | sed -n 's/^SlurmdTimeout *= *\\([0-9]*\\).*/\\1/p')
sleep $((${{known:-300}} + {WAIT_S:g})) &
wait $!
[ "$asked" ] || [ "${{SLURM_RESTART_COUNT:-0}}" -ge {AGAIN} ] || scontrol requeue "$SLURM_JOB_ID"
exit $status
""".strip()
"""The end of a batch script whose `hal run` has failed, while nobody asked it to end."""


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
        "--exclusive",  # its devices are those of whole hosts
        f"--chdir={job.folder}",
        "--requeue",
        f"--signal=B:TERM@{math.ceil(job.grace_s)}",
        *([] if job.limit_s is None else [f"--time={math.ceil(job.limit_s / 60)}"]),
        *([] if job.queue == "main" else [f"--partition={job.queue}"]),
        *([] if not job.priority else [f"--priority={job.priority}"]),
    ]
    run = [sys.executable, "-m", "hal", "run", "-n", str(job.ranks)]
    run += ["--shell", SHELL, "--restarts", str(job.restarts)]
    run += ["--grace", f"{job.grace_s:g}"]
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
        "asked=; trap 'asked=1; kill -TERM $!' TERM  # Slurm's signal, which the shell passes on",
        "wait $!; status=$?",
        "[ $status -gt 128 ] && { wait $!; status=$?; }",
        "[ $status -eq 0 ] && exit",
        _IF_PREEMPTED,
        '[ "$asked" ] && exit $status',
        _UNLESS_LOST,
    ]
    return "\n".join(lines) + "\n"


def submit(job: JobFile, address: str = "") -> str:
    """Hand a job in; gives Slurm's number of it. Raises InvalidCall with what Slurm refuses, and
    PluginError where there is no Slurm."""
    done = _say("sbatch", "--parsable", text=script(job, address))
    if done.returncode:
        raise InvalidCall(f"Slurm refuses the job: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip().partition(";")[0]


def allocated(config: ClusterFile) -> ClusterFile:
    """A cluster whose hosts are those of the allocation that this process runs in, each with the
    devices that the plugins give there, reached by steps. With levels, a host's domains are those
    of Slurm's topology.

    Raises InvalidCall outside of an allocation and for a cluster with hosts of its own, PluginError
    where Slurm or a host does not answer."""
    number, count = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_JOB_NUM_NODES")
    if not number or not count:
        raise InvalidCall("this is no allocation of Slurm: start the daemon by salloc or sbatch")
    if config.hosts:
        raise InvalidCall("the cluster's file names hosts; leave them to Slurm's allocation")
    step = [f"--nodes={count}", "--ntasks-per-node=1", "--overlap"]
    done = _say("srun", *step, sys.executable, "-m", "stack.cluster.slurm")
    if done.returncode:
        raise PluginError(f"a host of the allocation does not answer: {done.stderr.strip()}")
    hosts = []
    for line in sorted(done.stdout.split("\n")):
        if line:
            host = told(json.loads(line), HostFile, "a host of the allocation")
            kept = host.domains if config.levels else ()
            hosts.append(msgspec.structs.replace(host, domains=kept))
    return msgspec.structs.replace(config, hosts=tuple(hosts), shell=SHELL, allocation=number)


def lost(hosts: Sequence[str]) -> list[str]:
    """Those of the allocation's hosts that Slurm has given up; all once the allocation is over.
    Raises PluginError where Slurm does not answer."""
    if not hosts:
        return []
    asked = f"--job={os.environ['SLURM_JOB_ID']}"
    if _say("squeue", "--noheader", asked, "--format=%T").stdout.strip() != "RUNNING":
        return list(hosts)
    done = _say("sinfo", "--noheader", "--Node", f"--nodes={','.join(hosts)}", "--format=%N %t")
    if done.returncode:
        raise PluginError(f"sinfo says nothing of the hosts: {done.stderr.strip()}")
    states = dict(line.split() for line in done.stdout.split("\n") if line)
    gone = ("down", "fail", "boot", "unk")
    return [h for h in hosts if (state := states.get(h, "down")) and state.startswith(gone)]


def _say(command: str, *options: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """What a command of Slurm answers. Raises PluginError where there is none, or no answer."""
    try:
        return subprocess.run(
            [command, *options],
            input=text,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise PluginError(
            f"there is no {command} here: Slurm's commands are not installed"
        ) from None
    except subprocess.TimeoutExpired:
        raise PluginError(f"{command} did not answer within {WAIT_S:g} s") from None


if __name__ == "__main__":
    chips = this_machine().chips
    sys.stdout.write(
        json.dumps(
            {
                "name": os.environ["SLURMD_NODENAME"],
                "domains": os.environ.get("SLURM_TOPOLOGY_ADDR", "").split(".")[:-1],
                "chips": [{"kind": c.kind, "devices": c.devices, "chip": c.name} for c in chips],
            }
        )
        + "\n"
    )
