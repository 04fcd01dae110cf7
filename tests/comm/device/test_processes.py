"""Ranks in processes, each with the device that `hal run` gives it."""

from pathlib import Path

import pytest

from tests.launch.running import Folder

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


def test_random_calls_among_processes():
    arguments = "-n", 3, "--devices", "cpu:0,reference:0,cpu:0"
    done = Folder(ROOT).run(*arguments, "-m", "tests.comm.device.shadow", 40, 1)
    assert (done.code, done.err) == (0, [])
    assert [line.partition(" operations")[0] for line in done.out] == [
        f"[{rank}] right: 40" for rank in range(3)
    ]
