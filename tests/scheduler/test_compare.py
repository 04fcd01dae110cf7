"""Policies on one load: what each is for shows in its numbers."""

import json

import pytest

from hal.core.errors import InvalidCall
from stack.scheduler.command import run
from stack.scheduler.compare import POLICIES, simulate
from stack.scheduler.simulate import Costs
from stack.scheduler.traces import gang_mix

LOAD = gang_mix(3, jobs=120, devices=256)


def test_filling_holes_and_elastic_jobs_wait_less_than_the_queue_that_locks():
    rows = {name: simulate(name, LOAD, Costs())[0] for name in POLICIES}
    assert all(row.jobs == len(LOAD[0]) and not row.refused for row in rows.values())
    means = {name: row.mean_wait_s for name, row in rows.items()}
    assert means["elastic"] < means["easy"] < means["fifo"]
    assert means["fill"] < means["fifo"]
    assert means["wide"] < means["fifo"]
    assert rows["wide"].longest_wait_s < min(rows[n].longest_wait_s for n in ("fifo", "easy"))
    assert rows["elastic"].resizes > 0 == rows["easy"].resizes
    work_s = sum(task.work_s * task.spec.ranks for task in LOAD[0])
    for row in rows.values():  # nothing is lost or done twice without costs, so all work is done
        assert row.use * row.makespan_s * 256 == pytest.approx(work_s)


def test_the_command_prints_rows_and_refuses_what_is_none(capsys, tmp_path):
    trace = tmp_path / "helios.csv"
    trace.write_text(
        "user,vc,gpu_num,submit_time,duration\nann,a,8,2020-04-01 00:00:00,600\n"
        "bob,a,8,2020-04-01 00:00:10,60\n"
    )
    common = {"load": "gangs", "seed": 0, "hosts": 1, "chips": 8, "costs": Costs(), "picture": None}
    rest = {"shape": "helios", "as_json": True, **common}
    assert run(trace=trace, policies=["fifo"], **rest) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["jobs"], row["longest_wait_s"], row["makespan_s"]) == (2, 590, 660)
    trace.write_text("user,vc\na,b\n")
    with pytest.raises(InvalidCall, match="lacks gpu_num, submit_time, duration"):
        run(trace=trace, policies=["fifo"], **rest)
    with pytest.raises(InvalidCall, match="there is no policy 'best'"):
        run(trace=trace, policies=["best"], **rest)
