"""Ranks in processes, each with the device that `hal run` gives it."""

import os
from pathlib import Path

import pytest

from tests.draw import sample
from tests.hosted.joins import install
from tests.launch.running import Folder

pytestmark = [pytest.mark.slow, pytest.mark.turns]
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "devices", sample("devices of ranks", ["cpu:0,reference:0,cpu:0", "far:0,far:1,far:2"], 1)
)
def test_random_calls_among_processes(devices, tmp_path, monkeypatch):
    """The latter in groups of their plugin's, several at once."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    install(tmp_path, "far", mapped=False)
    done = Folder(ROOT).run("-n", 3, "--devices", devices, "-m", "tests.comm.device.shadow", 40, 1)
    assert (done.code, done.err) == (0, [])
    assert [line.partition(" operations")[0] for line in done.out] == [
        f"[{rank}] right: 40" for rank in range(3)
    ]


JOB = """
from dataclasses import replace
import click
import numpy as np
from hal.core.dtypes import DType
from hal.core.values import Collective, CollectiveKind
from stack.comm.world import World
from tests.comm.device.seats import seated_as

world, everybody = World.present(), (0, 1, 2)
call = Collective(CollectiveKind.ALL_REDUCE, DType.I32, 4)
with seated_as(world, [everybody]) as seat:
    buffer, there = seat.put(np.full(4, world.rank + 1, np.int32))
    part = seat.parts[everybody]
    for _ in range(2):
        there = part.start(call, buffer.region(), buffer.region(), [there])
    click.echo(f"{part.way} {seat.get(buffer, np.int32, there)[0]}")
    narrow = replace(call, dtype=DType.BF16, count=8)  # which no library adds as the contract says
    there = part.start(narrow, buffer.region(), buffer.region(), [there])
    seat.done(there)
    click.echo(f"engine {part.way != 'plugin'}")
"""


def test_ranks_of_a_plugin_that_joins_processes_have_its_groups(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    install(tmp_path, "joins", mapped=False)
    folder = Folder(tmp_path)
    done = folder.run("-n", 3, "--devices", "joins:0,joins:1,joins:2", folder.write(JOB))
    assert (done.code, done.err) == (0, [])
    said = ("engine True", "plugin 18")
    assert done.out == [f"[{rank}] {line}" for rank in range(3) for line in said]
