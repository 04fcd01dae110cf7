"""The same job's file on a real Slurm of four hosts, where its packages are installed."""

import contextlib
import os
import select
import subprocess
import sys

import pytest

from hal.core.errors import InvalidCall
from stack.cluster import slurm
from stack.cluster.client import ask
from stack.cluster.files import ClusterFile, Devices, HostFile, JobFile, this_machine, told
from tests.cluster.own_slurm import WAIT_S, await_, commands_of_all, lose, said, states

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
        "#SBATCH --exclusive",
        "#SBATCH --time=2",
        "#SBATCH --signal=B:TERM@20",
        'echo "$host slots=3 devices=cpu:0,cpu:1,cpu:2"',
    ):
        assert line in text
    assert "train.py --out 'a b'" in text
    assert subprocess.run(["sh", "-n"], input=text, text=True, timeout=10, check=True)


@pytest.mark.slow
def test_ranks_of_a_job_meet_on_the_hosts_that_slurm_gives(slurm_hosts, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", slurm_hosts["SLURM_CONF"])
    (tmp_path / "train.py").write_text(SCRIPT)
    number = slurm.submit(job(tmp_path, ranks=4, per_host=2), address="127.0.0.1")
    await_(lambda: states(slurm_hosts).get(number) in ("COMPLETED", "FAILED"))
    written = [(tmp_path / f"rank-{rank}").read_text().split() for rank in range(4)]
    assert [total for _, total in written] == ["4.0"] * 4
    first, second = written[0][0], written[2][0]
    assert [host for host, _ in written] == [first, first, second, second]
    assert first != second
    with pytest.raises(InvalidCall, match="Slurm refuses the job"):
        slurm.submit(job(tmp_path, queue="night"))


@pytest.mark.slow
def test_a_job_that_is_cancelled_leaves_nothing(slurm_hosts, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", slurm_hosts["SLURM_CONF"])
    mark = f"mark-{os.getpid()}"
    (tmp_path / "train.py").write_text(
        "import pathlib, time\npathlib.Path('here').touch()\ntime.sleep(600)"
    )
    long = job(tmp_path, ranks=2, per_host=1, arguments=[mark])
    number = slurm.submit(long, address="127.0.0.1")
    await_((tmp_path / "here").exists)
    said(slurm_hosts, "scancel", number)
    await_(lambda: states(slurm_hosts).get(number) == "CANCELLED")
    await_(lambda: not [p for p in commands_of_all() if mark.encode() in p])


STEPS = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from stack.comm.group import Group
from stack.comm.world import World
place = Path(sys.argv[1])
with Group.of(World.from_environment()) as group:
    def end(*_):
        (place / f"saved-{group.rank}").touch()
        os._exit(143)
    signal.signal(signal.SIGTERM, end)
    total = group.all_reduce(np.ones(1))[0]
    with (place / f"rank-{group.rank}").open("a") as out:
        out.write(f"{os.environ['SLURM_JOB_ID']} {os.environ['SLURMD_NODENAME']} {total}\\n")
    for _ in range(6000):
        if (place / "go").exists():
            break
        time.sleep(0.05)
"""


@pytest.fixture
def daemon(slurm_hosts, tmp_path):
    """Start daemons of one cluster, each in an allocation of its own."""
    config = tmp_path / "cluster.toml"
    config.write_text('address = "127.0.0.1"\n')
    command = [sys.executable, "-m", "stack.cluster.serve", str(tmp_path / "state")]
    started = []

    def start(hosts):
        made = subprocess.Popen(
            ["salloc", "--no-kill", "-N", str(hosts), *command, "--slurm", "--config", str(config)],
            env=slurm_hosts,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(made)
        assert select.select([made.stdout], [], [], WAIT_S)[0]
        assert b"is up" in os.read(made.stdout.fileno(), 1 << 16)
        return made

    yield start
    with contextlib.suppress(InvalidCall):
        ask(tmp_path / "state", "POST", "/end")
    for made in started:
        made.communicate(timeout=WAIT_S)


@pytest.mark.slow
def test_a_daemon_gives_the_hosts_of_its_allocation_to_jobs(slurm_hosts, daemon, tmp_path):
    """Two ranks on two hosts; the daemon ends, which they hear and save; in another allocation they
    start anew."""
    first = daemon(2)
    state = tmp_path / "state"
    hosts = ask(state, "GET", "/hosts")
    assert len(hosts) == 2
    here = this_machine()
    assert [sum(len(chip["jobs"]) for chip in host["chips"]) for host in hosts] == [
        sum(chip.devices for chip in here.chips)
    ] * 2
    (tmp_path / "train.py").write_text(STEPS)
    each = sum(chip.devices for chip in here.chips if chip.kind == "cpu")
    body = {"script": "train.py", "arguments": [str(tmp_path)], "folder": str(tmp_path)}
    number = ask(state, "POST", "/jobs", {**body, "ranks": 2 * each})["job"]
    last = tmp_path / f"rank-{2 * each - 1}"
    await_(lambda: all((tmp_path / f"rank-{rank}").exists() for rank in range(2 * each)))
    allocation, node, total = last.read_text().split()
    assert (node in {host["name"] for host in hosts}, total) == (True, f"{2.0 * each}")
    ask(state, "POST", "/end")
    first.wait(WAIT_S)
    assert len(list(tmp_path.glob("saved-*"))) == 2 * each
    daemon(2)
    await_(lambda: len(last.read_text().split("\n")) == 3)
    again = last.read_text().split("\n")[1].split()
    assert again[0] != allocation
    (tmp_path / "go").touch()
    await_(lambda: ask(state, "GET", f"/jobs/{number}/why") == {"why": "done"})


def test_hosts_of_an_allocation_need_one(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(InvalidCall, match="this is no allocation of Slurm"):
        slurm.allocated(ClusterFile())
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    with pytest.raises(InvalidCall, match="names hosts; leave them to Slurm"):
        slurm.allocated(ClusterFile(hosts=(HostFile("a", (Devices("cpu", 1),)),)))


@pytest.mark.slow
def test_slurm_says_which_hosts_are_gone(slurm_hosts, monkeypatch):
    """One that is down; and all when the allocation is over."""
    monkeypatch.setenv("SLURM_CONF", slurm_hosts["SLURM_CONF"])
    allocate = ["salloc", "--no-kill", "-N", "4", "cat"]
    held = subprocess.Popen(allocate, env=slurm_hosts, stdin=subprocess.PIPE)
    await_(lambda: "RUNNING" in states(slurm_hosts).values())
    (number,) = (job for job, state in states(slurm_hosts).items() if state == "RUNNING")
    monkeypatch.setenv("SLURM_JOB_ID", number)
    try:
        assert slurm.lost(["n0", "n1", "n3"]) == []
        said(slurm_hosts, "scontrol", "update", "nodename=n3", "state=down", "reason=test")
        await_(lambda: slurm.lost(["n0", "n1", "n3"]) == ["n3"])
        said(slurm_hosts, "scancel", number)
        await_(lambda: slurm.lost(["n0", "n1"]) == ["n0", "n1"])
    finally:
        said(slurm_hosts, "scontrol", "update", "nodename=n3", "state=resume")
        held.communicate(timeout=WAIT_S)


TOGETHER = """
import os, time
from pathlib import Path
import numpy as np
from stack.comm.group import Group
from stack.comm.world import World
with Group.of(World.from_environment()) as group:
    with Path(f"rank-{group.rank}").open("a") as out:
        out.write(f"{os.environ['SLURMD_NODENAME']}\\n")
    for _ in range(4000):
        if group.all_reduce(np.array([float(Path("go").exists())]))[0] == group.size:
            break
        time.sleep(0.05)
"""


@pytest.mark.slow
@pytest.mark.skipif("ENGINES" not in os.environ, reason="it waits half a minute: make engines")
def test_a_job_that_notices_a_lost_host_before_slurm_does_starts_again(
    slurm_hosts, tmp_path, monkeypatch
):
    """The last test: its host stays lost."""
    monkeypatch.setenv("SLURM_CONF", slurm_hosts["SLURM_CONF"])
    (tmp_path / "train.py").write_text(TOGETHER)
    file = job(tmp_path, ranks=2, per_host=1)
    number = slurm.submit(file, address="127.0.0.1")
    second = tmp_path / "rank-1"
    await_(second.exists)
    await_(lambda: second.read_text().endswith("\n"))
    lose(second.read_text().split()[0])
    await_(lambda: "Restarts=1" in said(slurm_hosts, "scontrol", "show", "job", number))
    # Slurm lets a job wait two minutes whose host was lost
    await_(lambda: states(slurm_hosts)[number] == "PENDING")
    said(slurm_hosts, "scontrol", "update", f"jobid={number}", "starttime=now")
    (tmp_path / "go").touch()
    await_(lambda: states(slurm_hosts)[number] == "COMPLETED")
    before, after = second.read_text().split()
    assert before != after
