"""The long trials, shortly: a job among strangers, killed ranks, hosts that are cut off."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.machine import ROOT
from tests.draw import sample, stream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and other user ids need root"),
]


DRAWN = sample("soaks", ("strangers", "kills", "links"), 1)
"""Which of the three this run goes."""


def soak(name, *arguments):
    return run(f"soak.{name}", *arguments)


def run(name, *arguments):
    command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


LISTENERS = {"store", "group, local", "group, TCP", "serve, local", "serve, TCP"}


MESSAGES = 1600
"""By which a stranger comes to hold as many connections as it holds at most."""


@pytest.mark.skipif("strangers" not in DRAWN, reason="another run does this")
def test_strangers_end_no_job_and_no_served_session():
    seed = stream("strangers").randrange(1 << 16)
    found = json.loads(soak("strangers", "--messages", MESSAGES, "--seed", seed))
    assert (found["codes"], sum(found["sent"].values())) == ([0, 0], MESSAGES), found
    assert found["sent"].keys() == LISTENERS
    assert min(found[whose]["attacked"]["meetings"] for whose in ("ranks", "served")) > 0


@pytest.mark.skipif("kills" not in DRAWN, reason="another run does this")
def test_survivors_name_the_rank_that_was_killed_and_nothing_is_left():
    rows = [json.loads(line) for line in soak("kills", "--seed", 4, "--count", 1).splitlines()]
    assert rows[-1]["failed"] == 0
    assert [row["faults"] for row in rows[:-1]] == [[]]


@pytest.mark.skipif("links" not in DRAWN, reason="another run does this")
def test_of_two_ranks_the_one_that_is_cut_off_is_blamed():
    said = run("fault_hosts", 2, 3, "--kind", "link", "--ranks", 2, "--spares", 1)
    assert said.startswith("link: 2 recoveries"), said
