"""Candidates that fail in every way end neither the tuning nor the process that tunes."""

import os
import signal
import time
from math import inf
from select import select

import pytest

import hal
from stack.tune import process
from stack.tune.bench import Bench
from stack.tune.orders import BeginProblem, Prepare, Repeat, Stage
from stack.tune.process import LostError, MeasureError, Process
from stack.tune.rig import Rig
from stack.tune.search import search
from tests.tune.planted import (
    AS_RIGHT,
    BROKEN,
    CRASHES,
    ENDLESS,
    EXTENTS,
    MISSING,
    RIGHT,
    WRONG,
    trial,
)

LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def no_candidate_is_hopeless(monkeypatch):
    """Whatever else the machine does while it has its first run."""
    monkeypatch.setattr("stack.tune.search.HOPELESS", inf)


def gone(pid):
    """Whether a process is no more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
def test_what_fails_is_refused_with_the_cause_and_the_rest_is_timed():
    trials = [RIGHT, BROKEN, WRONG, CRASHES, MISSING, ENDLESS, AS_RIGHT]
    with Rig(lambda: Process("cpu:0"), LIMIT_S) as rig:
        rig.begin(EXTENTS)
        found = search([lambda t=t: t for t in trials], rig, 600)
        assert rig.processes == 3, "one for all, one after the crash, one after the hang"
    stages = {number: refusal.stage for number, refusal in found.refused.items()}
    assert stages == {
        1: Stage.BUILD,
        2: Stage.RESULT,
        3: Stage.CRASH,
        4: Stage.RESULT,
        5: Stage.LAUNCH,
    }
    assert set(found.ratios) == {0, 6}
    assert len(found.ratios[6]) >= 10
    assert found.chosen in (0, 6)
    assert "up to" in found.refused[2].reason
    assert "SIG" in found.refused[3].reason
    assert "infinities or NaN" in found.refused[4].reason
    assert "hang" in found.refused[5].reason


@pytest.mark.slow
def test_an_injected_fault_is_the_candidates_own():
    faulty = ["faults:launch-fault at launch every 1 program faulty"]
    trials = [RIGHT, trial("faulty"), AS_RIGHT]
    with Rig(lambda: Process("cpu:0", faulty), LIMIT_S) as rig:
        rig.begin(EXTENTS)
        found = search([lambda t=t: t for t in trials], rig, 600)
    assert {n: r.stage for n, r in found.refused.items()} == {1: Stage.LAUNCH}
    assert "launch-fault" in found.refused[1].reason
    assert len(found.ratios[2]) >= 10


@pytest.mark.slow
def test_a_process_that_answers_no_more_is_killed(monkeypatch):
    measuring = Process("cpu:0")
    assert measuring.ask(BeginProblem(EXTENTS), LIMIT_S) == 0
    os.kill(measuring.pid, signal.SIGSTOP)
    monkeypatch.setattr(process, "GRACE_S", 0.1)
    with pytest.raises(LostError, match="no answer") as lost:
        measuring.ask(Prepare(0, RIGHT), 0.1)
    assert lost.value.refusal.stage is Stage.HANG
    assert gone(measuring.pid)


@pytest.mark.slow
def test_a_process_that_was_killed_is_replaced():
    started = []

    def start():
        started.append(Process("cpu:0"))
        return started[-1]

    with Rig(start, LIMIT_S) as rig:
        rig.begin(EXTENTS)
        assert rig.prepare(0, RIGHT) > 0
        assert rig.prepare(1, AS_RIGHT) > 0
        with open(os.pidfd_open(started[0].pid)) as alive:
            os.kill(started[0].pid, signal.SIGKILL)
            assert select([alive], [], [], LIMIT_S)[0]  # so that the order finds nobody
        lost = rig.time(1, 1)
        assert (lost.stage, lost.reason) == (Stage.CRASH, "killed by SIGKILL")
        assert rig.time(0, 5) > 0
        assert rig.time(1, 5) > 0
    assert len(started) == 2
    assert gone(started[1].pid)


@pytest.mark.slow
def test_a_device_that_cannot_be_opened_is_an_error_with_its_cause():
    with Rig(lambda: Process("nochip:0"), LIMIT_S) as rig:
        rig.begin(EXTENTS)
        with pytest.raises(MeasureError, match="measured on: no plugin 'nochip'"):
            rig.prepare(0, RIGHT)


@pytest.mark.slow
def test_a_run_that_is_late_is_refused():
    with hal.open("cpu:0", ["faults:hang at launch"]) as device:
        bench = Bench(device)
        assert bench.answer(BeginProblem(EXTENTS), LIMIT_S) == 0
        late = bench.answer(Prepare(0, RIGHT), 0.2)
    # The device finds the hang by itself, should it have had the time.
    assert late.stage in (Stage.HANG, Stage.LAUNCH)
    assert late.lasting


@pytest.mark.slow
def test_timed_runs_start_from_the_same_contents():
    with hal.open("cpu:0") as device:
        bench = Bench(device)
        bench.answer(BeginProblem(EXTENTS), LIMIT_S)
        assert bench.answer(Prepare(0, RIGHT), LIMIT_S) > 0
        assert bench.answer(Prepare(1, AS_RIGHT), LIMIT_S) > 0
        start = time.monotonic()
        each = bench.answer(Repeat(1, 50), LIMIT_S)
        assert 0 < 3 * 50 * each <= time.monotonic() - start
        assert bench.answer(Prepare(2, WRONG), LIMIT_S).stage is Stage.RESULT
        assert bench.answer(BeginProblem(EXTENTS[:1]), LIMIT_S) == 0
        assert device.stats("").live_buffers == 1
