"""Failures that users of other schedulers reported, each as the smallest cluster that has it."""

from __future__ import annotations

import itertools
import math

import pytest

from stack.scheduler.core import Scheduler
from stack.scheduler.events import (
    Admit,
    Alarm,
    AskToStop,
    Cancelled,
    Ended,
    HostDrained,
    HostJoined,
    HostLost,
    Refuse,
    Resize,
    Resized,
    Saved,
    Stop,
    Submitted,
    Wanted,
)
from stack.scheduler.simulate import Simulation, Task
from stack.scheduler.spec import (
    Backfill,
    Chip,
    Discipline,
    HostSpec,
    JobSpec,
    QueueSpec,
    Rules,
    SpecError,
)

ONE = (QueueSpec("q"),)


def cluster(hosts=4, devices=8, queues=ONE, levels=(), rules=None, domains=None):
    scheduler = Scheduler(queues, levels, rules)
    for number in range(hosts):
        where = domains(number) if domains else ()
        scheduler.handle(HostJoined(0.0, HostSpec(f"h{number}", (Chip("a", devices),), where)))
    return scheduler


def job(ranks, queue="q", **more):
    return JobSpec(queue, ranks, ("a",), **more)


def started(decisions):
    return [decision.job for decision in decisions if isinstance(decision, Admit)]


def test_what_can_never_fit_is_refused_and_blocks_nobody():
    """Kueue 6947, 6929: a job that fits nowhere stood at the head and let none pass."""
    scheduler = cluster(queues=(QueueSpec("q", discipline=Discipline.LOCK),))
    (refused,) = scheduler.handle(Submitted(1.0, 1, job(33)))
    assert isinstance(refused, Refuse)
    assert "room for 32 ranks" in refused.why
    assert started(scheduler.handle(Submitted(2.0, 2, job(32)))) == [2]
    (refused,) = scheduler.handle(Submitted(3.0, 3, job(9, within="host", required=True)))
    assert "one host of kind 'a' has room for 8 ranks" in refused.why


def test_victims_do_not_take_back_what_they_were_stopped_for():
    """Kueue 13662: victims were evicted, admitted again before the one they left for, and so on."""
    owner, guest = QueueSpec("own", {"a": 16}, "c"), QueueSpec("guest", {"a": 16}, "c")
    scheduler = cluster(queues=(owner, guest))
    assert started(scheduler.handle(Submitted(1.0, 1, job(32, "guest", priority=9)))) == [1]
    (ask,) = scheduler.handle(Submitted(2.0, 2, job(16, "own")))
    assert isinstance(ask, AskToStop)
    assert scheduler.why(2) == "it starts when job 1 has left its devices for it"
    (stop,) = scheduler.handle(Saved(3.0, 1))
    assert isinstance(stop, Stop)
    assert started(scheduler.handle(Ended(4.0, 1, done=False))) == [2]
    assert "uses 16 of 32" in scheduler.why(1)
    assert started(scheduler.handle(Ended(9.0, 2))) == [1]


@pytest.mark.parametrize("lost", [1, 2])
def test_lost_hosts_are_replaced_without_moving_the_rest(lost):
    """Kueue 14244: one failed node was replaced, two evicted the whole job of 500."""
    scheduler = cluster(hosts=8, domains=lambda n: (f"s{n // 6}",), levels=("supernode",))
    (admit,) = scheduler.handle(Submitted(1.0, 1, job(32, within="supernode", required=True)))
    hosts = [share.host for share in admit.shares]
    kept = hosts[lost:]
    for number in range(lost):
        (resize,) = scheduler.handle(HostLost(2.0 + number, hosts[number]))
    assert isinstance(resize, Resize)
    now = {share.host for share in resize.shares}
    assert set(kept) < now
    assert sum(len(share.devices) for share in resize.shares) == 32
    assert now <= {f"h{n}" for n in range(6)}
    assert "8 of 8 ranks are replaced" in resize.why


def test_a_job_that_no_host_can_replace_starts_again_when_one_is_back():
    scheduler = cluster(hosts=2)
    assert started(scheduler.handle(Submitted(1.0, 1, job(16)))) == [1]
    (stop,) = scheduler.handle(HostLost(2.0, "h0"))
    assert isinstance(stop, Stop)
    assert scheduler.handle(Ended(3.0, 1, done=False)) == []
    back = scheduler.handle(HostJoined(4.0, HostSpec("h0", (Chip("a", 8),))))
    assert started(back) == [1]


def test_a_job_waits_for_what_it_lacks_now_and_not_for_what_it_lacked_first():
    """Its quota was free again, but devices were not: nothing tried it again when these came."""
    queues = (QueueSpec("x", {"a": 4}), QueueSpec("y", {"a": 12}))
    scheduler = cluster(hosts=2, devices=4, queues=queues, rules=Rules(reclaim=False))
    scheduler.handle(Submitted(1.0, 0, job(4, "x")))
    scheduler.handle(Submitted(2.0, 1, job(4, "y")))
    scheduler.handle(Submitted(3.0, 2, job(8, "y")))
    assert started(scheduler.handle(Submitted(4.0, 3, job(4, "x")))) == []
    scheduler.handle(HostLost(5.0, "h0"))
    scheduler.handle(Ended(6.0, 0))
    scheduler.handle(HostJoined(7.0, HostSpec("h0", (Chip("a", 4),))))
    assert started(scheduler.handle(Cancelled(8.0, 2))) == [3]


def test_free_devices_are_taken_before_any_victim():
    """Volcano 3291: a job was preempted beside a node that was free."""
    scheduler = cluster(hosts=2, rules=Rules(preempt=True))
    scheduler.handle(Submitted(1.0, 1, job(8)))
    assert started(scheduler.handle(Submitted(2.0, 2, job(8, priority=5)))) == [2]
    (ask,) = scheduler.handle(Submitted(3.0, 3, job(4, priority=5)))
    assert (ask.job, isinstance(ask, AskToStop)) == (1, True)


def test_newer_small_jobs_do_not_pass_a_large_one_for_ever():
    """Volcano 5805, 748: a gang that lacked one device, or a large one, was passed by all."""
    scheduler = cluster(hosts=1)
    scheduler.handle(Submitted(0.0, 0, job(4, limit_s=100.0)))
    assert started(scheduler.handle(Submitted(1.0, 1, job(8, limit_s=100.0)))) == []
    assert started(scheduler.handle(Submitted(2.0, 2, job(4, limit_s=98.0)))) == [2]
    scheduler.handle(Ended(50.0, 2))
    assert started(scheduler.handle(Submitted(51.0, 3, job(4, limit_s=60.0)))) == []
    assert scheduler.why(3) == (
        "free devices of kind 'a' are kept for job 1, which is before it, "
        "in at most 49 s by the limits"
    )
    assert scheduler.why(1) == (
        "it needs room for 8 ranks of kind 'a' and finds room for 4; job 0 has the others; "
        "it is next, in at most 49 s by the limits"
    )
    assert started(scheduler.handle(Ended(90.0, 0))) == [1]


def test_who_waits_is_told_who_has_the_devices():
    scheduler = cluster(hosts=3, devices=2)
    for number in range(4):
        scheduler.handle(Submitted(1.0, number, job(1)))
    assert scheduler.why(0) == "it runs with 1 rank"
    scheduler.handle(HostDrained(2.0, "h2"))
    scheduler.handle(Submitted(3.0, 9, job(3, devices=2)))
    assert scheduler.why(9) == (
        "it needs room for 3 ranks of 2 devices of kind 'a' and finds room for 0; "
        "jobs 0, 1, 2 and 1 more have the others; 1 of its chips are lost or drained with their "
        "hosts; it is next"
    )


def test_two_queues_do_not_reclaim_from_each_other():
    """Volcano 3869: two jobs took the same devices back from each other."""
    queues = (QueueSpec("x", {"a": 4}, "c"), QueueSpec("y", {"a": 4}, "c"))
    scheduler = cluster(hosts=1, queues=queues, rules=Rules(preempt=True))
    assert started(scheduler.handle(Submitted(1.0, 1, job(4, "x")))) == [1]
    assert started(scheduler.handle(Submitted(2.0, 2, job(4, "y")))) == [2]
    assert scheduler.handle(Submitted(3.0, 3, job(1, "x", priority=9))) == [
        AskToStop(1, 33.0, "job 3 of priority 9 in queue x needs it")
    ]
    scheduler.handle(Saved(4.0, 1))
    assert started(scheduler.handle(Ended(5.0, 1, done=False))) == [3]
    assert scheduler.handle(Submitted(6.0, 4, job(4, "y", priority=9)))[0].job == 2


def test_elastic_jobs_keep_within_their_level():
    """Kueue 13640: elastic jobs and required topology excluded each other."""
    scheduler = cluster(hosts=4, domains=lambda n: (f"r{n // 2}",), levels=("rack",))
    spec = job(16, least=4, within="rack", required=True)
    (admit,) = scheduler.handle(Submitted(1.0, 1, spec))
    rack = {int(share.host[1:]) // 2 for share in admit.shares}
    assert len(rack) == 1
    scheduler.handle(Submitted(2.0, 2, job(16)))
    (resize,) = scheduler.handle(Submitted(3.0, 3, job(8)))
    assert {int(share.host[1:]) // 2 for share in resize.shares} == rack
    assert started(scheduler.handle(Resized(4.0, 1, resize.number))) == [3]
    (grown,) = scheduler.handle(Ended(5.0, 3))
    assert sum(len(share.devices) for share in grown.shares) == 16
    assert {int(share.host[1:]) // 2 for share in grown.shares} == rack


def test_an_elastic_job_shrinks_before_another_is_stopped():
    scheduler = cluster(hosts=2, rules=Rules(preempt=True))
    scheduler.handle(Submitted(1.0, 1, job(8, least=2)))
    scheduler.handle(Submitted(2.0, 2, job(8)))
    (resize,) = scheduler.handle(Submitted(3.0, 3, job(6, priority=1)))
    assert isinstance(resize, Resize)
    assert (resize.job, sum(len(share.devices) for share in resize.shares)) == (1, 2)


def test_a_victim_that_does_not_save_is_stopped_when_its_grace_is_over():
    scheduler = cluster(hosts=1, rules=Rules(preempt=True))
    scheduler.handle(Submitted(1.0, 1, job(8, grace_s=20.0)))
    (ask,) = scheduler.handle(Submitted(2.0, 2, job(8, priority=1)))
    assert ask.by == 22.0 == scheduler.alarm_at
    assert scheduler.handle(Alarm(21.9)) == []
    assert scheduler.handle(Alarm(22.0)) == [Stop(1, ask.why)]


def test_the_four_policies_of_a_queue():
    """What starts while the first job waits: nothing, what fits, what fits after a step's time."""
    for discipline, rung_s, at_once, later in (
        (Discipline.LOCK, math.inf, [], []),
        (Discipline.FILL, math.inf, [2], []),
        (Discipline.LADDER, 10.0, [], [2]),
    ):
        scheduler = cluster(hosts=1, queues=(QueueSpec("q", discipline=discipline, rung_s=rung_s),))
        scheduler.handle(Submitted(0.0, 0, job(6, limit_s=100.0)))
        scheduler.handle(Submitted(1.0, 1, job(4, limit_s=100.0)))
        assert started(scheduler.handle(Submitted(1.0, 2, job(2, limit_s=50.0)))) == at_once
        assert started(scheduler.handle(Alarm(11.0))) == later
    graded = cluster(hosts=1)
    graded.handle(Submitted(0.0, 0, job(8)))
    for number, grade in enumerate((0, 2, 1), start=1):
        graded.handle(Submitted(1.0, number, job(8, priority=grade)))
    order = []
    running = 0
    for time in range(2, 5):
        (running,) = started(graded.handle(Ended(float(time), running)))
        order.append(running)
    assert order == [2, 3, 1]


def test_lent_devices_come_back_and_shares_are_fair():
    queues = tuple(QueueSpec(name, {"a": 8}, "c") for name in ("x", "y", "z"))
    rules = Rules(order=("share", "submitted"))
    scheduler = cluster(hosts=3, queues=queues, rules=rules)
    for number in range(24):
        scheduler.handle(Submitted(1.0, number, job(1, "x")))
    for number in range(24, 40):
        scheduler.handle(Submitted(2.0, number, job(1, "xyz"[number % 2 + 1])))
    asked = 0
    for number in range(24):
        for decision in scheduler.handle(Saved(3.0, number)):
            asked += 1
            assert isinstance(decision, Stop)
    assert asked == 16


def test_a_job_goes_on_with_as_many_ranks_as_its_user_wants():
    scheduler = cluster(hosts=2)
    scheduler.handle(Submitted(0.0, 1, job(8, limit_s=100.0)))
    scheduler.handle(Submitted(0.0, 2, job(8)))
    (fewer,) = scheduler.handle(Wanted(50.0, 1, 4))
    assert isinstance(fewer, Resize)
    assert sum(len(share.devices) for share in fewer.shares) == 4
    assert scheduler.handle(Submitted(51.0, 3, job(4))) == []
    assert started(scheduler.handle(Resized(52.0, 1, fewer.number))) == [3]
    assert "in at most 98 s" in scheduler.why(1)  # half of its work was left, at half the speed
    assert scheduler.handle(Wanted(53.0, 1, 8)) == []
    assert "with 4 of 8 ranks" in scheduler.why(1)
    (more,) = scheduler.handle(Ended(54.0, 3))
    assert sum(len(share.devices) for share in more.shares) == 8
    waits = Submitted(55.0, 4, job(16))
    assert scheduler.handle(waits) == []
    assert scheduler.handle(Wanted(56.0, 4, 8)) == []
    assert started(scheduler.handle(Ended(57.0, 2))) == [4]
    with pytest.raises(SpecError, match="asks for 0 ranks"):
        scheduler.with_ranks(4, 0)


@pytest.mark.parametrize("backfill", list(Backfill))
@pytest.mark.parametrize("key", ["priority", "submitted", "share", "borrowing", "smallest"])
@pytest.mark.parametrize(
    ("owned", "jobs"),
    [
        ((2, 4), (("y", 6, 1), ("x", 6, 2), ("y", 2, 0))),
        ((3, 3), (("x", 4, 5), ("y", 3, 0), ("y", 4, 5), ("x", 3, 0))),
    ],
)
def test_priority_and_reclaiming_make_no_circle(owned, jobs, key, backfill):
    """One took back what was borrowed, one of its queue stopped that by priority and borrowed
    again, and so on at one moment (found in a random world, 21487)."""
    queues = [QueueSpec(name, {"a": count}, "c") for name, count in zip("xy", owned, strict=True)]
    rules = Rules((key, "submitted"), backfill, preempt=True)
    for turn in itertools.permutations(jobs):
        tasks = [
            Task(float(number), number, job(ranks, queue, priority=priority), 10.0)
            for number, (queue, ranks, priority) in enumerate(turn)
        ]
        simulation = Simulation(tasks, [HostSpec("h", (Chip("a", 6),))], queues, rules=rules)
        assert sum(1 for _ in itertools.islice(simulation.steps(), 200)) < 200
        courses = simulation.outcome.courses.values()
        assert all(course.ended < math.inf for course in courses)
        assert sum(course.starts for course in courses) <= 2 * len(jobs)


def test_a_host_that_was_alone_is_sorted_among_others_by_what_it_has_left():
    """Its room changed while there was no other to sort it among."""
    scheduler = Scheduler([QueueSpec("all")])
    scheduler.handle(HostJoined(0.0, HostSpec("first", (Chip("gpu", 4),))))
    scheduler.handle(Submitted(1.0, 1, JobSpec("all", 3, ("gpu",))))
    scheduler.handle(HostJoined(2.0, HostSpec("second", (Chip("gpu", 4),))))
    (small,) = scheduler.handle(Submitted(3.0, 2, JobSpec("all", 1, ("gpu",))))
    assert [share.host for share in small.shares] == ["first"]  # it fills the fullest host
    (large,) = scheduler.handle(Submitted(4.0, 3, JobSpec("all", 4, ("gpu",))))
    assert [share.host for share in large.shares] == ["second"]
