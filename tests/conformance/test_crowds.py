"""A busy machine makes no declared figure wrong, and excuses none that is wrong on a quiet one."""

import itertools
import time
from types import SimpleNamespace

import pytest
from hal_plugin_cpu import groups, plugin

from hal_conformance import busy
from hal_conformance.cases import declared_figures as figures
from hal_conformance.cases.failure_real import Spin
from hal_conformance.catalog import catalog
from hal_conformance.conform import BESIDE, shared
from hal_conformance.crowd import crowd
from hal_conformance.plan import by_group
from hal_conformance.rig import Rig, Setting, waited

DECLARED = 1e9


def rig(declared=DECLARED):
    return SimpleNamespace(
        figures={},
        setting=SimpleNamespace(floors={}),
        info=SimpleNamespace(declared={"host_to_device": declared}),
    )


def wrong(measured, crowd, made):
    bench = SimpleNamespace(rig=rig(), declared=DECLARED)
    return figures._wrong(bench, "host_to_device", measured, crowd, made)


@pytest.mark.parametrize("times", [3, 14])
def test_a_figure_made_on_a_busy_machine_may_be_as_many_times_better_later(times):
    assert not wrong(times * DECLARED, 1.0, 31.0)
    assert "times as good" in wrong(times * DECLARED, 31.0, 1.0)


@pytest.mark.parametrize("times", [3, 14])
def test_a_figure_measured_on_a_busy_machine_may_be_as_many_times_worse(times):
    assert not wrong(DECLARED / times, 31.0, 1.0)
    assert "times as good" in wrong(DECLARED / times, 1.0, 31.0)


def test_figures_keep_the_crowd_in_which_they_were_first_seen(monkeypatch):
    monkeypatch.setattr(figures, "_crowds", {})
    for now, seen in ((20.0, 20.0), (1.0, 20.0)):
        monkeypatch.setattr(busy, "factor_now", lambda now=now: now)
        assert figures._crowd_when_made(rig()) == seen
    assert figures._crowd_when_made(rig(2 * DECLARED)) == 1.0


@pytest.mark.slow
def test_a_figure_that_a_plugin_measured_amid_a_crowd_may_be_declared_anew(monkeypatch):
    """In this process the device declares what it measured when each `load` took a minute."""
    monkeypatch.setattr(figures, "AGAIN_S", 0.0)
    monkeypatch.setattr(plugin, "_measured", lambda *_: {"load_s": 60.0})
    monkeypatch.setattr(figures, "_crowds", {frozenset({("load_s", 60.0)}): 1.0})
    monkeypatch.setenv("HAL_CPU_CALIBRATE", "1")
    case = next(case for case in catalog() if case.id == "K.figure-load_s")
    rig = Rig(case, Setting("cpu:0", ("cpu:0",)))
    try:
        assert rig.device.info.declared == {"load_s": 60.0}
        case.body(rig)
        assert rig.figures["declared load_s"] < 1
    finally:
        rig.close()


class Late:
    """A device whose points are reached in the second wait, or that gives up waiting at once."""

    def __init__(self, takes_s):
        self.waits, self.takes_s = [], takes_s

    def wait(self, points, timeout_s, every):
        self.waits.append(timeout_s)
        time.sleep(self.takes_s)
        return len(self.waits) > 1


def test_work_that_must_finish_has_longer_where_the_machine_is_busy(monkeypatch):
    monkeypatch.setattr(busy, "factor_now", lambda: 31.0)
    late = Late(0.01)
    assert waited(late, None, 0.01)
    assert late.waits == [0.01, pytest.approx(0.09)]


def test_members_of_a_short_deadline_whom_a_busy_machine_let_miss_each_other_meet_anew(monkeypatch):
    """The second one of a group comes too late, twice."""
    monkeypatch.setenv("HAL_CPU_DEVICES", "2")
    meet, late = groups.meet, [0.1, 0.1]

    def meet_late(session, spec):
        time.sleep(late.pop(0) if spec.rank and late else 0.0)
        return meet(session, spec)

    monkeypatch.setattr(groups, "meet", meet_late)
    rig = Rig(catalog()[0], Setting("cpu:0", ("cpu:0", "cpu:1")))
    try:
        assert [member.group.rank for member in crowd(rig, 2, timeout_s=0.05)] == [0, 1]
        assert not late
    finally:
        rig.close()


def test_a_wait_that_gives_up_early_is_not_made_up_for(monkeypatch):
    monkeypatch.setattr(busy, "factor_now", lambda: 31.0)
    assert not waited(Late(0.0), None, 10.0)


def test_no_case_that_time_decides_runs_beside_others():
    groups = {*BESIDE, *itertools.chain.from_iterable(BESIDE.values())}
    for group, cases in by_group(catalog()).items():
        beside = shared(group, cases)
        assert not [case.id for case in beside if case.timed]
        assert bool(beside) == (group in groups)


def test_a_hang_that_a_busy_machine_made_too_short_runs_for_longer():
    tested = Rig(catalog()[0], Setting("cpu:0", ("cpu:0",), {"progress_s": "0.1"}))
    try:
        count = Spin.of(tested).count
        Spin(tested, count // 100).hangs(tested.timeline())
    finally:
        tested.close()
