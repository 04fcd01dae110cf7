"""`hal bench comm`: what is measured, how it is shown, and that later groups choose by it."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from hal.core.errors import InvalidCall
from hal.core.values import CollectiveKind as Kind
from hal_tools.cli import main
from stack.bench.comm.rank import RanksReport, Sweep, found_in
from stack.bench.comm.sizes import size_text, sizes_in
from stack.bench.comm.times import SHARES, CollectiveTime, HostMemory, rows_between_hosts, times
from stack.comm.choose.choices import keep
from stack.comm.choose.measured import Measurement
from stack.comm.choose.network import network_of_hosts
from tests.comm.engine.crew import crews


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HAL_CACHE_DIR", str(tmp_path))


def test_sizes():
    assert sizes_in("8:100") == (8, 32, 100)
    assert sizes_in("8:128") == (8, 32, 128)
    assert sizes_in("1K, 3M") == (1 << 10, 3 << 20)
    assert [size_text(n) for n in (8, 1536, 1 << 20, 1 << 30)] == ["8", "1536", "1M", "1G"]
    for wrong in ("", "2", "8:", "1T", "-8"):
        with pytest.raises(InvalidCall, match="--sizes is FIRST:LAST or a list"):
            sizes_in(wrong)


@pytest.mark.slow
@pytest.mark.turns
def test_every_kind_is_timed_alike_on_all_ranks():
    with crews(2) as [crew]:
        for kind in SHARES:
            first, second = crew.do(lambda g, k=kind: times(g, HostMemory(g, False), k, [4 << 10]))
            assert first == second
            (row,) = first
            assert row.seconds * row.algorithm_bandwidth == pytest.approx(4 << 10)
            assert row.bus_bandwidth == pytest.approx(
                row.algorithm_bandwidth
                * (1 if kind.value in ("all-reduce", "reduce", "broadcast") else 0.5)
            )
            assert row.way == "posted"


@pytest.mark.slow
@pytest.mark.turns
def test_the_way_tells_where_the_memory_lies():
    with crews(2) as [crew]:
        ways = [
            crew.do(lambda g, s=shared: times(g, HostMemory(g, s), Kind.ALL_REDUCE, [1 << 16]))[0][
                0
            ].way
            for shared in (False, True)
        ]
    assert ways == ["sliced", "mapped"]


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("kind", [Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.ALL_TO_ALL, Kind.SCATTER])
def test_programs_between_hosts_are_timed_for_the_table(kind):
    with crews((0, 1)) as [crew]:
        first, second = crew.do(lambda g: rows_between_hosts(g, kind, [64, 4096]))
    assert first == second
    assert {(row.kind, row.nbytes) for row in first} == {(kind, 64), (kind, 4096)}


def test_a_group_of_one_host_follows_no_programs():
    with crews(2) as [crew]:
        assert crew.do(lambda g: rows_between_hosts(g, Kind.ALL_REDUCE, [64])) == [(), ()]


def test_a_group_chooses_by_the_table():
    def way(group):
        group.all_reduce(np.ones(16, np.float32))
        return group.way

    rows = [
        Measurement(Kind.ALL_REDUCE, name, 64, 1e-6 if name == "rank-order" else 1e-3)
        for name in ("rank-order", "recursive-doubling", "ring", "direct")
    ]
    with crews((0, 1)) as [crew]:
        assert crew.do(way) != ["rank-order", "rank-order"]
    keep(network_of_hosts((0, 1)), rows)
    with crews((0, 1)) as [crew]:
        assert crew.do(way) == ["rank-order", "rank-order"]


def test_the_users_word_comes_before_the_table(monkeypatch):
    def way(group):
        group.all_reduce(np.ones(16, np.float32))
        return group.way

    monkeypatch.setenv("HAL_COMM_PLANS", "all_reduce=rank_order")
    with crews((0, 1)) as [crew]:
        assert crew.do(way) == ["rank-order", "rank-order"]


def test_what_a_rank_found_is_read_again():
    found = RanksReport(
        2, 1, (CollectiveTime("all-reduce", 8, "shared", "posted", 1e-6, 8e6, 8e6),), ""
    )
    assert found_in(found.text()) == found
    assert json.loads(Sweep("reduce", (8,), True, False).text())["sizes"] == [8]


def asked(*arguments):
    return CliRunner().invoke(main, ["bench", "comm", *arguments])


@pytest.mark.slow
@pytest.mark.turns
def test_the_command_starts_ranks():
    done = asked("-n", "2", "--sizes", "8,64K", "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [(row["nbytes"], row["way"]) for row in rows] == [(8, "posted"), (65536, "sliced")]


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("kind", ["all-reduce", "scatter"])
def test_the_command_measures_devices(kind):
    done = asked("-n", "2", "--devices", "cpu:0", "--kind", kind, "--sizes", "4K", "--json")
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    assert (row["memory"], row["nbytes"]) == ("cpu:0", 4096)
    assert row["way"]


def test_the_command_explains_without_ranks():
    lines = asked("--explain", "2x2", "--sizes", "8,1M").stdout.splitlines()
    assert lines[0].split()[:2] == ["bytes", "runs"]
    assert "hierarchical" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["8", "1048576"]


def test_what_cannot_be_measured_is_refused():
    assert "--kind is one of all_reduce, reduce," in asked("--kind", "sum").stderr
    assert "--explain is HOSTSxRANKS such as 4x2" in asked("--explain", "4").stderr
    assert "--sizes is FIRST:LAST" in asked("--sizes", "x").stderr
