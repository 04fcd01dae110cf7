"""`hal run --restarts` with the training script: it goes on from what it has kept, to the bit."""

import json
import random
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.journeys.conftest import TEXT, TINY

pytestmark = pytest.mark.slow
HAL = Path(sys.executable).with_name("hal")
STEPS = 14

KILLED = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(TINY).parent)!r})
import tiny, train_gpt
from stack.comm.world import World

world, advance = World.from_environment(), train_gpt.Training.advance

def killed_once(training):
    if f"{{world.restart}}:{{world.rank}}:{{training.step}}" in os.environ["KILL"].split():
        os.kill(os.getpid(), signal.SIGKILL)
    return advance(training)

train_gpt.Training.advance = killed_once
sys.exit(train_gpt.main())
"""


def lines(path):
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in found if "loss" in line]


@pytest.mark.turns
def test_ranks_that_are_killed_at_random_steps_change_no_bit_of_the_losses(commands, tmp_path):
    """Once before anything is kept, and once after."""
    choose = random.Random(20261122)
    rank, step, every = choose.randrange(2), choose.randrange(5, STEPS), choose.randrange(2, 5)
    (tmp_path / "killed.py").write_text(KILLED)
    run = (HAL, "run", "-n", 2, "--devices", "cpu:0", "--restarts", 3, "killed.py", "--text", TEXT)
    told = ("--steps", STEPS, "--save-every", every)
    whole = ("--out", "out", "--json", "whole.json")
    assert commands.ended(commands.start(*run, *told, *whole, env={"KILL": ""})).code == 0
    kill = {"KILL": f"0:{1 - rank}:1 1:{rank}:{step}"}
    shutil.rmtree(tmp_path / "out" / "checkpoints")
    killed = (*run, *told, "--out", "out", "--json", "out.json")
    ended = commands.ended(commands.start(*killed, env=kill))
    assert ended.code == 0, ended.err
    assert f"hal run: rank {1 - rank} failed: killed by SIGKILL" in ended.err
    assert "hal run: starts the job again in 1 s, 1 of 3" in ended.err
    assert f"hal run: rank {rank} failed: killed by SIGKILL" in ended.err
    assert "hal run: starts the job again in 2 s, 2 of 3" in ended.err
    went_on = [int(n) for n in re.findall(r"\[0\] goes on after step (\d+)", ended.out)]
    last = step // every * every  # it may still have been under way
    assert went_on in ([last], [last - every] if last > every else [])
    ours, theirs = lines(tmp_path / "out.json"), lines(tmp_path / "whole.json")
    assert [found for found, _ in theirs] == list(range(1, STEPS + 1))
    assert set(ours) == set(theirs)
    assert len(ours) == STEPS + step - sum(went_on)  # those after it were computed twice
