"""Random clusters full of conflicts keep every promise, and the same state decides the same."""

import json
import math
import random

import pytest

from stack.scheduler.snapshot import restored, snapshot
from tests.scheduler.laws import Laws
from tests.scheduler.worlds import LEVELS, calm, world


@pytest.mark.parametrize("part", range(4))
def test_random_worlds_keep_the_promises(part):
    for seed in range(part * 25, part * 25 + 25):
        keeps_the_promises(seed)


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


def test_a_restored_scheduler_decides_the_same():
    for seed in range(20):
        here = world(seed)
        log = list(here.simulation().steps())
        again = []
        simulation = here.simulation()
        draw = random.Random(seed)
        for step in simulation.steps():
            again.append(step)
            if draw.random() < 0.2:
                text = json.dumps(snapshot(simulation.scheduler))
                simulation.scheduler = restored(here.queues, LEVELS, here.rules, json.loads(text))
                assert json.dumps(snapshot(simulation.scheduler)) == text
        assert log == again


def test_nobody_waits_beyond_its_bound():
    """With a patience and limits, a job starts at the latest when, after its patience, all that are
    before it have run one after the other, and the longest that ran then has ended."""
    for seed in range(40):
        here = calm(seed)
        outcome = here.simulation().run()
        lasts = {
            task.job: task.spec.limit_s * task.spec.ranks / task.spec.fewest
            + task.spec.grace_s
            + sum((here.costs.save_s, here.costs.restore_s, here.costs.resize_s, here.costs.stop_s))
            for task in here.tasks
        }
        for course in outcome.courses.values():
            if not course.refused:
                before = sum(lasts[job] for job in lasts if job < course.task.job)
                bound = here.rules.patience_s + before + max(lasts.values())
                assert course.waited_s <= bound, (seed, course.task.job)


def test_a_job_whose_turn_went_to_another_keeps_nothing_from_it():
    """Shares change while jobs wait: who reserved and is first no more held up who is."""
    keeps_the_promises(1717)
