"""Random clusters full of conflicts keep every promise, and the same state decides the same."""

import json
import math
import random
from dataclasses import replace

import pytest

from stack.scheduler.simulate import Simulation
from stack.scheduler.snapshot import restored, snapshot
from stack.scheduler.spec import Backfill, Discipline, JobSpec, Rules
from stack.scheduler.traces import gang_mix
from tests import draw
from tests.scheduler.laws import Laws
from tests.scheduler.worlds import LEVELS, calm, world

WORLDS = range(10_000)


@pytest.mark.parametrize("seed", draw.sample("worlds", WORLDS, 30))
def test_random_worlds_keep_the_promises(seed):
    keeps_the_promises(seed)


@pytest.mark.parametrize("seed", draw.sample("cuts", WORLDS, 10))
def test_a_restored_scheduler_decides_the_same(seed):
    decides_the_same(seed, cuts=0.2)


@pytest.mark.parametrize("seed", draw.sample("calm worlds", WORLDS, 12))
def test_nobody_waits_beyond_its_bound(seed):
    is_in_time(seed)


def keeps_the_promises(seed: int) -> None:
    here = world(seed)
    simulation = here.simulation()
    laws = Laws(here.queues, LEVELS)
    for event, decisions in simulation.steps():
        laws.see(event, decisions)
    laws.at_the_end()
    left = [
        course.task.job
        for course in simulation.outcome.courses.values()
        if not course.refused and math.isinf(course.ended)
    ]
    assert not left, f"world {seed}: jobs {left} never ended"


def decides_the_same(seed: int, cuts: float) -> None:
    """As before, also where the state was written and read after this part of the events."""
    here = world(seed)
    log = list(here.simulation().steps())
    again = []
    simulation = here.simulation()
    choice = random.Random(seed)
    for step in simulation.steps():
        again.append(step)
        if choice.random() < cuts:
            text = json.dumps(snapshot(simulation.scheduler))
            simulation.scheduler = restored(here.queues, LEVELS, here.rules, json.loads(text))
            assert json.dumps(snapshot(simulation.scheduler)) == text
    assert log == again


def is_in_time(seed: int) -> None:
    """With a patience and limits, a job starts at the latest when, after its patience, all that are
    before it have run one after the other, and the longest that ran then has ended."""
    here = calm(seed)
    outcome = here.simulation().run()
    lasts = {
        task.job: task.spec.limit_s * _slowest(task.spec)
        + task.spec.grace_s
        + sum((here.costs.save_s, here.costs.restore_s, here.costs.resize_s, here.costs.stop_s))
        for task in here.tasks
    }
    for course in outcome.courses.values():
        if not course.refused:
            before = sum(lasts[job] for job in lasts if job < course.task.job)
            bound = here.rules.patience_s + before + max(lasts.values())
            assert course.waited_s <= bound, (seed, course.task.job)


def _slowest(spec: JobSpec) -> float:
    """How many times as long a job may take at the least speed that it can have."""
    if spec.options:
        return max(spec.fastest / option.speed for option in spec.options)
    return spec.ranks / spec.fewest


def test_a_job_whose_turn_went_to_another_keeps_nothing_from_it():
    """Shares change while jobs wait: who reserved and is first no more held up who is."""
    keeps_the_promises(1717)


def test_a_job_out_of_patience_is_not_passed_by_newer_ones_out_of_theirs():
    """Smaller ones of them, by a rule that lets these go first, let it wait for all that came."""
    is_in_time(7680)


def test_a_job_out_of_patience_is_not_stopped_to_go_over():
    """It would start by the option with the fewest devices again, and so on for ever."""
    is_in_time(3209)


def test_a_job_does_not_go_to_and_fro_between_options_in_one_moment():
    """It left devices to others, whose turn it was only while it had them: and so on for ever."""
    is_in_time(763)


def test_a_queue_without_quotas_is_tried_when_its_cohort_has_none_left():
    """What its cohort lends does not bound it."""
    decides_the_same(646, cuts=0.1)


def test_a_patience_is_over_when_its_alarm_rings():
    """By rounding it could last on behind the alarm, and nobody looked again until something else
    happened: what was decided then hung on whether the state had been read anew."""
    decides_the_same(641, cuts=0.1)


@pytest.mark.parametrize("backfill", list(Backfill))
def test_with_fair_starts_nobody_starts_later_than_under_plain_fifo(backfill):
    """Whatever the order and the limits that users gave; without fair starts many do. Where the
    devices are few enough, jobs start sooner."""
    gained_s = 0.0
    for seed in draw.sample("fair starts", range(1000), 4):
        random_ = random.Random(seed)
        tasks, hosts, queues = gang_mix(seed, jobs=60, devices=128, load=random_.uniform(0.5, 3))
        tasks = [task for task in tasks if task.spec.ranks <= 128]
        order = random_.choice(("submitted", "smallest", "shortest"))
        locked = [replace(queue, discipline=Discipline.LOCK) for queue in queues]
        plain = Rules(("submitted",), Backfill.NONE)
        fifo = Simulation(tasks, hosts, locked, rules=plain).run()
        fair = Rules((order, "submitted"), backfill, fair_start=1.0)
        ours = Simulation(tasks, hosts, queues, rules=fair).run()
        late = {
            job: (course.started, fifo.courses[job].started)
            for job, course in ours.courses.items()
            if course.started > fifo.courses[job].started + 1e-6
        }
        assert not late, seed
        gained_s += sum(fifo.waits()) - sum(ours.waits())
    assert gained_s > 0.0
