"""The training script under `hal run`: a run that goes on in another number of processes."""

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.journeys.conftest import TEXT, TINY, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turns]
HAL = Path(sys.executable).with_name("hal")
TWO = (HAL, "run", "-n", 2, "--devices", "cpu:0", TINY, "--out", "out", "--text", TEXT)


def losses(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def test_two_ranks_are_interrupted_once_and_one_goes_on_to_the_same_losses(commands, tmp_path):
    log = tmp_path / "log.json"
    process = commands.start(*TWO, "--steps", 10**6, "--json", log)
    wait_until(process, lambda: log.exists() and len(losses(log)) >= 3)
    process.send_signal(signal.SIGINT)
    ended = commands.ended(process)
    assert ended.code == 130
    assert "Traceback" not in ended.err
    (told,) = re.findall(r"\[0\] interrupted at step (\d+); saved out/checkpoint", ended.out)
    steps = int(told)
    assert "[1] " not in ended.out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checkpoints", "data"]
    assert list(losses(log)) == list(range(1, steps + 1))
    more = ("--json", log, "--steps", 10**6)
    resumed = commands.start_training("--resume", *more)
    wait_until(resumed, lambda: len(losses(log)) >= steps + 3)
    resumed.kill()
    alone = tmp_path / "alone.json"
    whole = commands.start_training("--out", "whole", "--json", alone, "--steps", 10**6)
    wait_until(whole, lambda: alone.exists() and len(losses(alone)) >= steps + 3)
    whole.kill()
    ours, theirs = losses(log), losses(alone)
    for step in range(1, steps + 4):
        assert ours[step] == pytest.approx(theirs[step], rel=1e-5), step
