"""The same job's file on a real Ray of two nodes, where it is installed."""

import importlib.util
import os

import pytest

from tests.cluster import own_ray

TRAIN = """
import os, sys, time
from pathlib import Path
import numpy as np
from stack.comm.group import Group
from stack.comm.world import World
with Group.of(World.from_environment()) as group:
    total = group.all_reduce(np.ones(1))[0]
    node, own = os.environ["RAY_RAYLET_PID"], os.environ.get("OWN")
    Path(f"rank-{group.rank}").write_text(f"{node} {total} {own}")
    if sys.argv[1] == "wait":
        time.sleep(600)
sys.exit(int(sys.argv[1]))
"""
TRIAL = """
import json, logging, os, subprocess, sys, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from hal.core.errors import InvalidCall
from stack.cluster import ray as jobs
from stack.cluster.files import JobFile, told
node = {"num_cpus": 2, "object_store_memory": 100 << 20}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
cluster.add_node(**node)
os.environ["RAY_ADDRESS"] = cluster.address
given = {"script": "train.py", "folder": sys.argv[1], "per_host": 2, "environment": {"OWN": "a b"}}
found = {}
def job(**more):
    return told({**given, **more}, JobFile, "the test")
found["done"] = jobs.submit(job(ranks=4, arguments=["0"]), print)
place = Path(sys.argv[1])
for old in place.glob("rank-*"):
    old.rename(place / f"first-{old.name}")
found["failed"] = jobs.submit(job(ranks=1, arguments=["7"]), print)
for name, more in (("wide", {"ranks": 6}), ("strange", {"ranks": 1, "kinds": ["tpu"]})):
    try:
        jobs.submit(job(arguments=["0"], **more), print)
    except InvalidCall as error:
        found[name] = str(error)
(place / "rank-0").unlink()
mark = f"mark-{os.getpid()}"
command = ["submit", "--to", "ray", "--per-host", "1", "-n", "2", "--kind", "cpu", "train.py"]
long = subprocess.Popen([sys.executable, "-m", "hal", *command, "wait", mark], cwd=place)
until_s = time.monotonic() + 200
while len(list(place.glob("rank-*"))) < 2 and time.monotonic() < until_s:
    time.sleep(0.1)
long.terminate()
found["cancelled"] = long.wait(60)
def marked():
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in line.read_bytes():
                yield line.parent.name
        except OSError:
            continue
while list(marked()) and time.monotonic() < until_s:
    time.sleep(0.1)
found["running"] = list(marked())
ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
groups = ray.util.placement_group_table().values()
found["left"] = [group["name"] for group in groups if group["state"] != "REMOVED"]
ray.shutdown()
cluster.shutdown()
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.skipif(os.getuid() != 0, reason="a network of its own needs root")
def test_a_job_runs_on_the_nodes_of_its_placement_group(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    found = own_ray.run(TRIAL, tmp_path)
    assert (found["done"], found["failed"]) == (0, 7)
    said = [(tmp_path / f"first-rank-{rank}").read_text().split(maxsplit=2) for rank in range(4)]
    assert [(total, own) for _, total, own in said] == [("4.0", "a b")] * 4
    first, second = said[0][0], said[2][0]
    assert [node for node, _, _ in said] == [first, first, second, second]
    assert first != second
    assert found["wide"] == (
        "the job needs 3 nodes with 2 of 'CPU'; the nodes of this Ray cluster have: 2, 2"
    )
    assert "1 of 'tpu'; the nodes of this Ray cluster have: 0, 0" in found["strange"]
    assert found["cancelled"] == 143
    assert found["running"] == found["left"] == []
