"""A Slurm of a test's own: its daemons for four hosts on this machine."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

WAIT_S = 120.0
HOSTS = 4
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
MISSING = [name for name in NEEDED if shutil.which(name, path="/usr/sbin:/usr/bin") is None]


@contextlib.contextmanager
def started(place):
    """A Slurm without a service, with its files in a folder; gives its environment."""
    if MISSING or os.geteuid() != 0:
        pytest.skip(f"a Slurm of its own needs root and {', '.join(MISSING or NEEDED)}")
    # munge wants a folder that its group cannot write
    run = Path("/run") / f"hal-slurm-{os.getpid()}"
    run.mkdir(mode=0o755)
    (place / "key").write_bytes(os.urandom(128))
    (place / "key").chmod(0o600)
    ports = [free_port() for _ in range(HOSTS + 1)]
    nodes = "\n".join(
        f"NodeName=n{i} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={ports[i]} "
        "CPUs=4 RealMemory=1000"
        for i in range(HOSTS)
    )
    (place / "state").mkdir()
    config = place / "slurm.conf"
    config.write_text(f"""ClusterName=hal
SlurmctldHost={socket.gethostname()}(127.0.0.1)
SlurmctldPort={ports[HOSTS]}
AuthType=auth/munge
AuthInfo=socket={run}/socket
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=2
ReturnToService=2
SchedulerParameters=bf_interval=1,sched_interval=2
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/ctld.pid
SlurmdPidFile={place}/d-%n.pid
SlurmctldLogFile={place}/ctld.log
SlurmdLogFile={place}/d-%n.log
MpiDefault=none
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
PartitionName=main Nodes=n[0-{HOSTS - 1}] Default=YES State=UP MaxTime=INFINITE GraceTime=20
PartitionName=urgent Nodes=n[0-{HOSTS - 1}] State=UP MaxTime=INFINITE PriorityTier=2
""")
    environment = {**os.environ, "SLURM_CONF": str(config)}
    environment["PATH"] += ":/usr/sbin"
    munge = ["munged", "--foreground", "--force", f"--key-file={place}/key"]
    munge += [f"--socket={run}/socket", f"--pid-file={run}/pid", f"--log-file={place}/munge.log"]
    munge += [f"--seed-file={place}/seed"]
    commands = [munge, ["slurmctld", "-D", "-i", "-c"]]
    commands += [["slurmd", "-D", "-N", f"n{i}", "-c"] for i in range(HOSTS)]
    daemons = []
    try:
        for command in commands:
            daemons.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            if command is munge:
                await_(lambda: (run / "socket").exists())
        await_(lambda: said(environment, "sinfo", "-h", "-o", "%T %D").strip() == f"idle {HOSTS}")
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(WAIT_S)
        shutil.rmtree(run)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def said(environment, *command):
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    return done.stdout


def await_(holds):
    end_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.1)


def states(environment):
    lines = said(environment, "squeue", "-h", "-t", "all", "-o", "%i %T").split("\n")
    return dict(line.split() for line in lines if line)


def commands_of_all():
    for place in Path("/proc").glob("[0-9]*"):
        try:
            yield (place / "cmdline").read_bytes()
        except OSError:
            continue


def lose(node):
    """End all that runs on a host, Slurm's own too, at once."""
    here = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (place / "cmdline").read_bytes().split(b"\0")
            if line[:1] == [b"slurmd"] and node.encode() in line:
                here[int(place.name)] = None
            elif f"SLURMD_NODENAME={node}".encode() in (place / "environ").read_bytes().split(
                b"\0"
            ):
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                if b"slurmstepd" in Path(f"/proc/{parent}/cmdline").read_bytes():
                    here[parent] = None
                here[int(place.name)] = None
    for pid in here:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
