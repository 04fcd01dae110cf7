"""A machine that is busy makes no process late."""

import os
import select
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from hal_conformance import busy
from hal_conformance.busy import Crowd, Deadline

SPINS = "import os; os.sched_setaffinity(0, {%d}); print(flush=True)\nwhile True: pass"
SLEEPS = "import time; print(flush=True); time.sleep(60)"


@pytest.fixture
def begun():
    """Start processes that run so many lines, and give the first one's number once all of them
    have begun; they end with the test."""
    started = []

    def start(code, count):
        mine = [
            subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
            for _ in range(count)
        ]
        started.extend(mine)
        for one in mine:
            assert select.select([one.stdout], [], [], 20)[0], "a process does not begin"
            assert one.stdout.read(1)
        return mine[0].pid

    yield start
    for one in started:
        one.kill()
        one.communicate(timeout=10)


def test_a_process_without_a_processor_has_longer(begun):
    here = min(os.sched_getaffinity(0))
    deadline = Deadline(begun(SPINS % here, 4), 0.3)
    time.sleep(0.6)
    assert 0 < deadline.left_s() <= 10 * 0.3


@pytest.fixture
def clock(monkeypatch):
    """The time that deadlines see."""
    found = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(busy, "time", SimpleNamespace(monotonic=lambda: found.now_s))
    return found


def test_a_process_that_does_nothing_has_no_longer(begun, monkeypatch, clock):
    monkeypatch.setattr(busy, "factor_now", lambda: 1.0)
    deadline = Deadline(begun(SLEEPS, 1), 20.0)
    assert deadline.left_s() == 20.0
    clock.now_s += 40.0
    assert deadline.left_s() <= 0


def test_a_process_that_waits_for_others_has_longer_where_the_machine_is_busy(
    begun, monkeypatch, clock
):
    """What it waits for may be computed by a server, which is no child of it."""
    monkeypatch.setattr(busy, "factor_now", lambda: 4.0)
    deadline = Deadline(begun(SLEEPS, 1), 20.0)
    clock.now_s += 30.0
    assert 50.0 <= deadline.left_s() < 80.0


def test_a_process_is_waited_for_until_it_ends(monkeypatch):
    monkeypatch.setattr(busy, "factor_now", lambda: 1.0)
    sleeps = subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.DEVNULL)
    assert busy.end_of(sleeps, 0.1) is None
    sleeps.kill()
    assert busy.end_of(sleeps, 20) == -9


def test_a_process_of_others_without_a_processor_has_longer(monkeypatch):
    """A server of a remote device is no child: how long it waits is seen by the machine alone."""
    pressed_s = iter((10.0, 10.3))
    monkeypatch.setattr(busy, "_pressed_s", lambda: next(pressed_s))
    monkeypatch.setattr(busy, "_starved_s", lambda process, before_s: 0.1)
    crowd = Crowd()
    crowd.count()
    assert crowd.own_s(0.5, 0, elsewhere=True) == pytest.approx(0.2)
    assert crowd.own_s(0.5, 0, elsewhere=False) == pytest.approx(0.4)
