"""The life of a job, by events alone: nothing runs here."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.launch.job import (
    Alarm,
    Asked,
    Exited,
    Finish,
    Job,
    Limits,
    Lost,
    Phase,
    Ready,
    Signal,
    Start,
    ended,
)
from stack.launch.seats import Host, seats

LIMITS = Limits(meet_s=60, failed_s=5, asked_s=30, kill_s=10)
HOSTS = (Host("a", 2, ("cpu:0",)), Host("b", 1, ("cpu:0",)))
TERM, KILL = Signal(signal.SIGTERM), Signal(signal.SIGKILL)


def job():
    return Job(HOSTS, seats(HOSTS, 3), LIMITS, 100.0)


def told(job, *events, now_s=100.0):
    return [done for event in events for done in job.handle(event, now_s)]


def running():
    made = job()
    assert told(made, Ready(1), Ready(0)) == [Start()]
    return made


def test_nothing_starts_before_every_host_is_ready():
    made = job()
    assert told(made, Ready(1), Ready(1)) == []
    assert made.phase is Phase.MEETING
    assert told(made, Ready(0)) == [Start()]
    assert made.running == {0, 1, 2}
    assert made.alarm_s is None


def test_a_job_whose_ranks_all_end_well_has_no_cause():
    made = running()
    assert told(made, Exited(2, 0), Exited(0, 0)) == []
    assert told(made, Exited(1, 0)) == [Finish()]
    assert made.cause is None
    assert made.phase is Phase.OVER


def test_the_first_failure_ends_the_others_and_stays_the_cause():
    made = running()
    assert told(made, Exited(1, 3)) == [TERM]
    assert made.alarm_s == 105.0
    assert told(made, Exited(0, -15), Exited(2, 1)) == [Finish()]
    assert (made.cause.rank, made.cause.code) == (1, 3)
    assert made.cause.text == "rank 1 failed: exit status 3"
    assert made.statuses == {0: -15, 1: 3, 2: 1}


def test_a_rank_that_a_signal_kills_gives_the_shells_exit_status():
    made = running()
    told(made, Exited(0, -11))
    assert (made.cause.text, made.cause.code) == ("rank 0 failed: killed by SIGSEGV", 139)


def test_ranks_that_do_not_end_are_killed_and_then_given_up():
    made = running()
    told(made, Exited(0, 1))
    assert told(made, Alarm(), now_s=105.0) == [KILL]
    assert made.alarm_s == 115.0
    assert told(made, Alarm(), now_s=115.0) == [Finish()]
    assert made.running == {1, 2}


def test_ctrl_c_is_passed_on_and_a_second_one_kills():
    made = running()
    assert told(made, Asked(signal.SIGINT)) == [Signal(signal.SIGINT)]
    assert made.alarm_s == 130.0
    assert told(made, Exited(0, 0)) == []
    assert told(made, Asked(signal.SIGINT)) == [KILL]
    assert told(made, Asked(signal.SIGINT)) == []
    assert told(made, Exited(1, -9), Exited(2, -9)) == [Finish()]
    assert (made.cause.text, made.cause.code) == ("the launcher was asked to end by SIGINT", 130)


def test_ctrl_c_after_a_failure_kills_and_is_not_the_cause():
    made = running()
    assert told(made, Exited(0, 1), Asked(signal.SIGINT)) == [TERM, KILL]
    assert made.cause.rank == 0


def test_a_host_that_is_lost_counts_its_ranks_out():
    made = running()
    assert told(made, Lost(0, "the cable")) == [TERM]
    assert told(made, Exited(2, -15)) == [Finish()]
    assert (made.cause.text, made.cause.code) == ("a is lost: the cable", 1)


@pytest.mark.parametrize(("missing", "killed", "named"), [(1, -9, 2), (-9, -9, 0), (1, -15, 0)])
def test_a_rank_that_was_killed_is_the_cause_though_who_misses_it_ends_sooner(
    missing, killed, named
):
    made = running()
    assert told(made, Exited(0, missing)) == [TERM]
    assert told(made, Exited(2, killed), Exited(1, -15)) == [Finish()]
    assert made.cause.rank == named


def test_a_rank_that_the_launcher_kills_is_no_cause():
    made = running()
    assert told(made, Exited(0, 1), Alarm()) == [TERM, KILL]
    assert told(made, Exited(2, -9), Exited(1, -9)) == [Finish()]
    assert made.cause.rank == 0


@pytest.mark.parametrize(
    ("event", "text", "code"),
    [
        (Lost(1, "no route"), "b is lost: no route", 1),
        (Asked(signal.SIGTERM), "the launcher was asked to end by SIGTERM", 143),
        (Alarm(), "no answer from b within 60 s", 1),
    ],
)
def test_what_happens_before_the_start_ends_the_job_at_once(event, text, code):
    made = job()
    assert made.alarm_s == 160.0
    assert told(made, Ready(0), event) == [Finish()]
    assert (made.cause.text, made.cause.code) == (text, code)
    assert told(made, Ready(1), Exited(0, 1), Alarm()) == []


def test_how_a_process_ended_in_words():
    assert [ended(s) for s in (0, 7, -9, -99)] == [
        "exit status 0",
        "exit status 7",
        "killed by SIGKILL",
        "killed by signal 99",
    ]


EVENTS = st.one_of(
    st.builds(Ready, st.integers(0, 1)),
    st.builds(Lost, st.integers(0, 1), st.just("why")),
    st.builds(Asked, st.sampled_from([signal.SIGINT, signal.SIGTERM])),
    st.just(Alarm()),
)


@given(st.lists(EVENTS, max_size=8), st.permutations(range(3)), st.data())
def test_any_job_ends_and_says_so_once(events, order, data):
    """Whatever happens, in which order: one start at most, signals only to what has started, the
    first cause stays, and in the end there is one Finish, after three alarms at the latest."""
    made, done, alarms, waiting = job(), [], 0, list(order)
    causes = set()
    while made.phase is not Phase.OVER:
        if events:
            event = events.pop()
        elif made.phase is Phase.RUNNING:
            event = Exited(waiting.pop(), data.draw(st.sampled_from([0, 1, -9])))
        else:
            assert made.alarm_s is not None, "a job that waits for nobody has an alarm"
            event, alarms = Alarm(), alarms + 1
        done += told(made, event)
        causes.add(made.cause)
        if done and not isinstance(done[0], Finish):
            assert isinstance(done[0], Start)
    assert len(causes - {None}) <= 1
    assert alarms <= 3
    assert [type(one) for one in done].count(Finish) == 1
    assert isinstance(done[-1], Finish)
    assert [type(one) for one in done].count(Start) <= 1
    assert not told(made, Alarm(), Exited(0, 1), Asked(signal.SIGINT))
