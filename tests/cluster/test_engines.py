"""One job on every engine that is here (local, Slurm, Ray): its losses are equal to the bit, also
when a host is lost on the way, or a job of a higher priority comes."""

import functools
import importlib.util
import os

import pytest

from stack.cluster import slurm
from stack.cluster.cluster import LiveCluster
from stack.cluster.files import JobFile, told
from tests.cluster import own_ray, training
from tests.cluster.own_slurm import await_, lose, said, states
from tests.cluster.test_cluster import config, go_on, state

LONG = pytest.mark.skipif(
    "ENGINES" not in os.environ, reason="it takes a minute of processor time: make engines"
)
STEPS = 6
OWN = {"environment": {"HAL_CPU_DEVICES": "4"}}
HELD = 3
"""The step at which a run waits for what is to happen to it."""


def job(out, *held, ranks, **more):
    """A training whose results are in a folder."""
    out.mkdir(exist_ok=True)
    arguments = [str(out), str(STEPS), *map(str, held)]
    given = {"script": training.__file__, "arguments": arguments, "folder": str(out), **OWN}
    return told({**given, "ranks": ranks, **more}, JobFile, "the test")


def losses(out):
    """The steps of a training in the order in which they were taken, with their losses' bits."""
    place = out / "losses"
    return (
        [tuple(line.split()) for line in place.read_text().splitlines()] if place.exists() else []
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The losses of a run on this machine to which nothing happens, by its ranks."""

    @functools.cache
    def run(ranks):
        folder = tmp_path_factory.mktemp("undisturbed")
        cluster = LiveCluster(folder / "state", config())
        number = cluster.submit(job(folder / "out", ranks=ranks))
        go_on(cluster, lambda: state(cluster, number) == "ended")
        assert cluster.why(number) == "done"
        cluster.close()
        found = losses(folder / "out")
        assert [int(step) for step, _ in found] == list(range(1, STEPS + 1))
        return found

    return run


@pytest.mark.slow
@pytest.mark.turns
def test_a_job_saves_for_a_higher_one_and_goes_on_to_equal_losses(undisturbed, tmp_path):
    cluster = LiveCluster(tmp_path / "state", config(rules={"preempt": True}))
    out = tmp_path / "low"
    low = cluster.submit(job(out, HELD, ranks=2))
    go_on(cluster, lambda: len(losses(out)) >= HELD)
    (tmp_path / "short.py").touch()
    short = {"script": "short.py", "folder": str(tmp_path), "ranks": 4, "priority": 5}
    high = cluster.submit(told(short, JobFile, "the test"))
    go_on(cluster, lambda: state(cluster, high) == "ended")
    (out / "go").touch()
    go_on(cluster, lambda: state(cluster, low) == "ended")
    assert (cluster.why(high), cluster.why(low)) == ("done", "done")
    assert cluster.log(low).name == "log-2"
    assert losses(out) == undisturbed(2)  # and no step was taken twice, since it had saved
    cluster.close()


@pytest.mark.slow
@LONG
def test_slurm_gives_the_same_losses_on_four_hosts_and_loses_none(
    undisturbed, slurm_hosts, tmp_path, monkeypatch
):
    """To a job of another partition it gives way, and saves; then it loses a host, which stays
    lost."""
    monkeypatch.setenv("SLURM_CONF", slurm_hosts["SLURM_CONF"])

    def submit(file):
        return slurm.submit(file, address="127.0.0.1")

    out = tmp_path / "out"
    number = submit(job(out, ranks=4, per_host=1))
    await_(lambda: states(slurm_hosts).get(number) in ("COMPLETED", "FAILED"))
    assert losses(out) == undisturbed(4)

    out = tmp_path / "low"
    number = submit(job(out, HELD, ranks=4, per_host=1))
    await_(lambda: len(losses(out)) >= HELD)
    (tmp_path / "short.py").touch()
    short = {"script": "short.py", "folder": str(tmp_path), "ranks": 4, "per_host": 1}
    high = submit(told({**short, "queue": "urgent"}, JobFile, "the test"))
    await_(lambda: states(slurm_hosts).get(high) == "COMPLETED")
    assert losses(out) == undisturbed(4)[:HELD]
    await_(lambda: states(slurm_hosts).get(number) == "PENDING")
    (out / "go").touch()  # Slurm lets a job wait two minutes that starts again
    said(slurm_hosts, "scontrol", "update", f"jobid={number}", "starttime=now")
    await_(lambda: states(slurm_hosts).get(number) in ("COMPLETED", "FAILED"))
    assert losses(out) == undisturbed(4)

    out = tmp_path / "lost"
    number = submit(job(out, HELD, ranks=4, per_host=2))
    await_(lambda: len(losses(out)) >= HELD)
    nodes = said(slurm_hosts, "squeue", "-h", "-j", number, "-o", "%N").strip()
    lose(said(slurm_hosts, "scontrol", "show", "hostnames", nodes).split()[-1])
    await_(lambda: "Restarts=1" in said(slurm_hosts, "scontrol", "show", "job", number))
    await_(lambda: states(slurm_hosts)[number] == "PENDING")
    (out / "go").touch()
    said(slurm_hosts, "scontrol", "update", f"jobid={number}", "starttime=now")
    await_(lambda: states(slurm_hosts)[number] == "COMPLETED")
    agree(losses(out), undisturbed(4))


def agree(found, expected):
    """Each step was taken, and however often, with the same loss: what was not saved is taken
    again."""
    assert set(found) == set(expected)


@pytest.mark.slow
@LONG
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.skipif(os.getuid() != 0, reason="a network of its own needs root")
def test_ray_gives_the_same_losses_on_two_nodes_and_goes_on_without_one(undisturbed, tmp_path):
    found = own_ray.run(TRIAL, tmp_path, training.__file__, str(STEPS), str(HELD))
    assert found == {"whole": 0, "lost": 0}
    assert losses(tmp_path / "whole") == undisturbed(4)
    agree(losses(tmp_path / "lost"), undisturbed(4))


TRIAL = """
import json, os, subprocess, sys, time
from pathlib import Path
from ray.cluster_utils import Cluster
place, script, steps, held = Path(sys.argv[1]), *sys.argv[2:]
node = {"num_cpus": 2, "object_store_memory": 100 << 20}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
second = cluster.add_node(**node)
os.environ.update(RAY_ADDRESS=cluster.address, HAL_CPU_DEVICES="2")
def submit(name, *more):
    out = place / name
    out.mkdir()
    said = [f"script = {script!r}", f"arguments = {[str(out), steps, *more]}"]
    said += [f"folder = {str(out)!r}", "ranks = 4", "per_host = 2", "restarts = 2"]
    (out / "job.toml").write_text("\\n".join(said))
    command = [sys.executable, "-m", "hal", "submit", "--to", "ray", str(out / "job.toml")]
    return subprocess.Popen(command, stdout=sys.stderr)
found = {"whole": submit("whole").wait(200)}
job = submit("lost", held)
losses, until_s = place / "lost" / "losses", time.monotonic() + 200
while not losses.exists() or losses.read_text().count("\\n") < int(held):
    assert time.monotonic() < until_s
    time.sleep(0.1)
cluster.remove_node(second, allow_graceful=False)
cluster.add_node(**node)
(place / "lost" / "go").touch()
found["lost"] = job.wait(200)
cluster.shutdown()
print(json.dumps(found))
"""
