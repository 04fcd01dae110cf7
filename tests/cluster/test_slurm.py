"""The same job's file on a real Slurm of four hosts, where its packages are installed."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from hal.core.errors import InvalidCall
from stack.cluster import slurm
from stack.cluster.files import JobFile, told

WAIT_S = 120.0
HOSTS = 4
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
MISSING = [name for name in NEEDED if shutil.which(name, path="/usr/sbin:/usr/bin") is None]
SCRIPT = """
import os
from pathlib import Path
import numpy as np
from stack.comm.group import Group
from stack.comm.world import World
with Group.of(World.from_environment()) as group:
    total = group.all_reduce(np.ones(1))[0]
    Path(f"rank-{group.rank}").write_text(f"{os.environ['SLURMD_NODENAME']} {total}")
"""


def job(folder, **more):
    given = {"script": "train.py", "folder": str(folder), "name": "a job", "kinds": ["cpu"], **more}
    return told(given, JobFile, "the test")


def test_what_a_batch_script_cannot_say_is_refused(tmp_path):
    with pytest.raises(InvalidCall, match="all its hosts or none"):
        slurm.script(job(tmp_path, ranks=4, least=2))
    with pytest.raises(InvalidCall, match="topology"):
        slurm.script(job(tmp_path, within="rack"))


def test_the_batch_script_says_what_the_job_needs(tmp_path):
    text = slurm.script(
        job(tmp_path, ranks=8, per_host=3, limit_s=90, grace_s=20, arguments=["--out", "a b"])
    )
    for line in (
        "#SBATCH '--job-name=a job'",
        "#SBATCH --nodes=3",
        "#SBATCH --time=2",
        "#SBATCH --signal=B:TERM@20",
        'echo "$host slots=3 devices=cpu:0,cpu:1,cpu:2"',
    ):
        assert line in text
    assert "train.py --out 'a b'" in text
    assert subprocess.run(["sh", "-n"], input=text, text=True, timeout=10, check=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A Slurm of its own, without a service: its environment."""
    if MISSING or os.geteuid() != 0:
        pytest.skip(f"a Slurm of its own needs root and {', '.join(MISSING or NEEDED)}")
    # munge wants a folder that its group cannot write
    place = Path(tmp_path_factory.mktemp("slurm"))
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
PartitionName=main Nodes=n[0-{HOSTS - 1}] Default=YES State=UP MaxTime=INFINITE
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


@pytest.mark.slow
def test_ranks_of_a_job_meet_on_the_hosts_that_slurm_gives(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", cluster["SLURM_CONF"])
    (tmp_path / "train.py").write_text(SCRIPT)
    number = slurm.submit(job(tmp_path, ranks=4, per_host=2), address="127.0.0.1")
    await_(lambda: states(cluster).get(number) in ("COMPLETED", "FAILED"))
    written = [(tmp_path / f"rank-{rank}").read_text().split() for rank in range(4)]
    assert [total for _, total in written] == ["4.0"] * 4
    first, second = written[0][0], written[2][0]
    assert [host for host, _ in written] == [first, first, second, second]
    assert first != second
    with pytest.raises(InvalidCall, match="Slurm refuses the job"):
        slurm.submit(job(tmp_path, queue="night"))


@pytest.mark.slow
def test_a_job_that_is_cancelled_leaves_nothing(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", cluster["SLURM_CONF"])
    mark = f"mark-{os.getpid()}"
    (tmp_path / "train.py").write_text(
        "import pathlib, time\npathlib.Path('here').touch()\ntime.sleep(600)"
    )
    long = job(tmp_path, ranks=2, per_host=1, arguments=[mark])
    number = slurm.submit(long, address="127.0.0.1")
    await_((tmp_path / "here").exists)
    said(cluster, "scancel", number)
    await_(lambda: states(cluster).get(number) == "CANCELLED")
    await_(lambda: not [p for p in commands_of_all() if mark.encode() in p])


def commands_of_all():
    for place in Path("/proc").glob("[0-9]*"):
        try:
            yield (place / "cmdline").read_bytes()
        except OSError:
            continue
