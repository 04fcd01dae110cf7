"""The life of an elastic job: every sequence of events, and some told by hand."""

import copy
import itertools
import signal
import sys

import pytest

from hal.core.errors import InvalidCall
from stack.launch.job import Alarm, Asked, Exited, Finish, Limits, Lost, Phase, Ready, Signal
from stack.launch.membership import (
    Arrived,
    Begin,
    Elastic,
    End,
    Entered,
    Epoch,
    Faulty,
    Form,
    Held,
    Left,
    Member,
    Membership,
    Place,
)
from stack.launch.seats import Host, seats

LIMITS = Limits(meet_s=60, failed_s=5, asked_s=30, kill_s=10, start_s=100)
KILLED = -signal.SIGKILL
LENGTH = 6
"""Of the sequences that `python -m tests.launch.test_membership` explores, all of them."""


def made(size=3, least=2, spares=0, restarts=0, hosts=1):
    slots = size + spares
    hosts = [Host(f"h{i}", -(-slots // hosts), ("cpu:0",)) for i in range(hosts)]
    elastic = Elastic(size, least, spares, restarts)
    return Membership(hosts, seats(hosts, slots), LIMITS, elastic, 0.0)


def told(job, *events, now_s=1.0):
    return [done for event in events for done in job.handle(event, now_s)]


def begun(**options):
    """A job in its first epoch; gives it with the members."""
    job = made(**options)
    told(job, *map(Ready, range(options.get("hosts", 1))))
    done = told(job, *(Arrived(Member(seat, 0)) for seat in sorted(job.running)))
    told(job, *(Entered(Member(seat, 0)) for seat in range(options.get("size", 3))))
    assert done == [Form(Epoch(1, tuple(Member(i, 0) for i in range(options.get("size", 3)))))]
    return job


def members(text):
    return tuple(Member.of(word) for word in text.split())


def test_the_others_go_on_and_keep_their_order():
    job = begun()
    assert told(job, Exited(0, KILLED)) == [Form(Epoch(2, members("1.0 2.0")))]
    assert job.phase is Phase.RUNNING
    assert job.alarm_s is None


def test_a_spare_takes_the_place_of_whoever_ended():
    job = begun(spares=1)
    assert told(job, Exited(1, KILLED)) == [Form(Epoch(2, members("0.0 3.0 2.0")))]


def test_a_new_process_comes_back_as_a_rank():
    job = begun(restarts=1)
    done = told(job, Exited(1, KILLED))
    assert done == [Begin(Member(1, 1)), Form(Epoch(2, members("0.0 2.0")))]
    assert told(job, Arrived(Member(1, 0))) == []  # of the one before
    assert told(job, Arrived(Member(1, 1))) == [Form(Epoch(3, members("0.0 2.0 1.1")))]


def test_fewer_than_the_least_wait_for_a_new_process():
    job = begun(least=3, restarts=2)
    assert told(job, Exited(2, KILLED)) == [Begin(Member(2, 1))]
    assert job.phase is Phase.GATHERING
    assert told(job, Arrived(Member(2, 1))) == [Form(Epoch(2, members("0.0 1.0 2.1")))]
    assert told(job, Exited(2, KILLED)) == []  # it was no rank yet: the next one waits
    assert told(job, Alarm(), now_s=job.alarm_s) == [Begin(Member(2, 2))]


def test_only_what_ends_before_it_is_a_rank_makes_others_wait():
    job = begun(least=1, restarts=10)
    for start in range(5):
        assert told(job, Exited(2, KILLED))[0] == Begin(Member(2, start + 1))
        told(job, Arrived(Member(2, start + 1)), Entered(Member(2, start + 1)))
    told(job, Exited(2, KILLED))
    pauses = []
    for start in range(6, 9):
        now_s = job.alarm_s or 1.0
        told(job, Exited(2, KILLED), now_s=now_s)
        pauses.append(job.alarm_s - now_s)
        assert told(job, Alarm(), now_s=job.alarm_s) == [Begin(Member(2, start + 1))]
    assert pauses == [1.0, 2.0, 4.0]


def test_fewer_than_the_least_end_the_job_where_nobody_comes():
    job = begun(least=3)
    assert told(job, Exited(2, KILLED)) == [Signal(signal.SIGTERM)]
    assert job.cause.text == "rank 2 failed: killed by SIGKILL"


def test_the_same_error_at_the_same_step_ends_the_job():
    job = begun(size=4, least=1)
    assert isinstance(told(job, Exited(3, 1, "ValueError: 7, step 5"))[0], Form)
    assert isinstance(told(job, Exited(2, 1, "ValueError: 7, step 6"))[0], Form)
    assert told(job, Exited(1, 1, "ValueError: 7, step 6")) == [Signal(signal.SIGTERM)]
    assert job.cause.code == 1


def test_a_script_that_declares_nothing_is_refused():
    job = made()
    told(job, Ready(0))
    assert told(job, Exited(1, 0)) == [Signal(signal.SIGTERM)]
    assert "declare it by `stack.fault.Training`" in job.cause.text


def test_spares_are_let_go_when_all_ranks_have_ended_well():
    job = begun(spares=1)
    assert told(job, Exited(0, 0), Exited(1, 0)) == []
    assert told(job, Exited(2, 0)) == [Signal(signal.SIGTERM)]
    assert told(job, Exited(3, -signal.SIGTERM)) == [Finish()]
    assert job.cause is None


def test_who_comes_too_late_to_be_a_rank_is_let_go():
    job = begun(restarts=1)
    told(job, Exited(2, KILLED))
    assert told(job, Arrived(Member(2, 1))) == [Form(Epoch(3, members("0.0 1.0 2.1")))]
    assert told(job, Exited(0, 0)) == []  # while the others were about to meet the newcomer
    assert told(job, Exited(1, 0)) == [Signal(signal.SIGTERM)]
    assert told(job, Exited(2, -signal.SIGTERM)) == [Finish()]
    assert job.cause is None


def test_where_all_ranks_have_died_the_newest_state_is_with_their_agents():
    job = begun(size=2, least=1, restarts=3, hosts=2)  # a rank on each host
    assert told(job, Exited(1, KILLED)) == [Begin(Member(1, 1)), Form(Epoch(2, members("0.0")))]
    told(job, Entered(Member(0, 0)))
    assert told(job, Exited(0, KILLED)) == [Begin(Member(0, 1))]
    assert told(job, Arrived(Member(1, 1))) == []  # its host knows nothing of epoch 2
    assert job.phase is Phase.GATHERING
    late = copy.deepcopy(job)
    assert told(job, Arrived(Member(0, 1))) == [Form(Epoch(3, members("0.1 1.1")))]
    assert told(late, Alarm(), now_s=late.alarm_s) == [Form(Epoch(3, members("1.1")), is_lost=True)]


def test_where_a_host_is_lost_the_state_is_with_who_has_a_copy():
    job = made(size=1, least=1, spares=2, hosts=3)
    told(job, *map(Ready, range(3)), Arrived(Member(0, 0)), Entered(Member(0, 0)))
    told(job, Held(2, 1), Arrived(Member(1, 0)))
    assert told(job, Lost(0, "gone")) == []  # a process of the third host is still to arrive
    assert told(job, Arrived(Member(2, 0))) == [Form(Epoch(2, members("2.0")))]
    job = made(size=1, least=1, spares=2, hosts=3)
    told(job, *map(Ready, range(3)), Arrived(Member(0, 0)), Entered(Member(0, 0)))
    told(job, Arrived(Member(1, 0)), Arrived(Member(2, 0)), Held(2, 1))
    assert told(job, Lost(0, "gone")) == [Form(Epoch(2, members("2.0")))]
    # and so is the third one before it has entered, and with it all that had the state
    assert told(job, Lost(2, "gone")) == [Form(Epoch(3, members("1.0")), is_lost=True)]


def test_hosts_that_only_the_launcher_would_miss():
    job = made(size=2, least=1, spares=4, hosts=3)
    told(job, *map(Ready, range(3)), *(Arrived(Member(seat, 0)) for seat in (0, 1, 2)))
    assert job.unwatched == set()  # nobody has a state to go on with
    told(job, Entered(Member(0, 0)), Entered(Member(1, 0)), Held(2, 1))
    assert job.unwatched == set()  # a process waits on the second host, and the third has a copy
    told(job, Arrived(Member(4, 0)))
    assert job.unwatched == {0}
    told(job, Lost(2, "gone"))
    assert job.unwatched == set()
    told(job, Held(1, 1))
    assert job.unwatched == {0}
    assert told(job, Exited(1, KILLED)) == [Form(Epoch(2, members("0.0 2.0")))]
    assert job.unwatched == {0, 1}  # the ranks of two hosts meet
    told(job, Entered(Member(0, 0)))
    assert job.unwatched == set()  # and miss each other


def test_who_dies_after_the_end_of_the_training_has_not_done_what_comes_after_it():
    job = begun(size=2, spares=1, restarts=2)
    ranks = members("0.0 1.0")
    assert told(job, Left(Member(1, 0), ranks), Exited(2, KILLED)) == []  # it only waited
    assert told(job, Exited(0, KILLED)) == [Signal(signal.SIGTERM)]
    assert job.cause.text == "rank 0 failed: killed by SIGKILL"
    job = begun(size=2, spares=1, restarts=2)
    done = told(job, Exited(0, KILLED))  # which is heard of before the end of the others
    assert done == [Begin(Member(0, 1)), Form(Epoch(2, members("2.0 1.0")))]
    assert told(job, Left(Member(1, 0), ranks)) == [Signal(signal.SIGTERM)]
    assert job.cause.code == 128 + signal.SIGKILL
    job = begun(size=2, spares=1, restarts=2)
    told(job, Left(Member(1, 0), ranks), Left(Member(0, 0), ranks), Exited(0, 0))
    assert told(job, Exited(1, 0)) == [Signal(signal.SIGTERM)]
    assert job.cause is None


def test_a_lost_host_takes_its_seats_along():
    job = begun(size=4, least=2, restarts=3, hosts=2)
    assert told(job, Lost(0, "gone")) == [Form(Epoch(2, members("2.0 3.0")))]
    assert told(job, Lost(1, "gone")) == [Finish()]
    assert job.cause.text == "h1 is lost: gone"


def test_what_is_no_elastic_job():
    for wrong in ((3, 4), (3, 0), (3, 2, -1), (3, 2, 0, -1)):
        with pytest.raises(InvalidCall, match="--"):
            Elastic(*wrong)
    with pytest.raises(InvalidCall, match=r"SEAT\.START"):
        Member.of("1.x")


# every sequence


def possible(job):
    """The events that can come now: those that the world can bring about, and some that come late,
    of processes that are no more."""
    found = [Asked(signal.SIGINT)]
    if job.alarm_s is not None:
        found.append(Alarm())
    found += [Ready(host) for host in sorted(job._unready)]
    found += [Lost(host, "gone") for host in range(len(job._hosts))]
    if job.epoch:
        found += [Held(host, job.epoch.number) for host in range(len(job._hosts))]
    for seat, state in enumerate(job._places):
        if state.place in (Place.STARTING, Place.HERE):
            found += [Exited(seat, status) for status in (0, KILLED)]
            found += [Exited(seat, 1, "an error at step 1"), Faulty(Member(seat, state.start), "")]
        if state.place is Place.HERE and job.epoch and not state.entered:
            found.append(Entered(Member(seat, state.start)))
        if state.place is Place.HERE and job.epoch and state.entered:
            found.append(Left(Member(seat, state.start), job.epoch.members))
            found.append(Left(Member(seat, state.start), members("0.0 1.0 2.0")))
        if state.place is Place.STARTING:
            found.append(Arrived(Member(seat, state.start)))
        if state.start > 0:
            found.append(Arrived(Member(seat, state.start - 1)))
    return found


def looks(job):
    """What a job does next follows from this."""
    own = {
        k: v for k, v in vars(job).items() if k not in ("statuses", "cause", "epoch", "_last_cause")
    }
    state = {k: tuple(v) if isinstance(v, list) else v for k, v in own.items()}
    state["_unready"] = frozenset(state["_unready"])
    members = job.epoch and job.epoch.members
    kept = ("_hosts", "_seats", "_limits", "_elastic")
    return (*((k, v) for k, v in sorted(state.items()) if k not in kept), members)


def check(job, event, now_s):
    """One event, and all that must hold of what is said for it."""
    ran, epoch, over = job.running, job.epoch, job.phase is Phase.OVER
    done = job.handle(event, now_s)
    begins = {d.member.seat for d in done if isinstance(d, Begin)}
    gone = {event.rank} if isinstance(event, Exited) else set()
    alive = (ran - gone) | begins
    assert not (over and done)
    for d in done:
        match d:
            case Begin(member):
                assert member.seat not in ran - gone, "a second process in a seat"
                assert job._places[member.seat].usable, "a process for a host that is lost"
            case End(seat):
                assert seat in alive, "an instruction for the dead"
            case Form(new):
                assert all(m in job.here() for m in new.members), "a rank that is not there"
                assert len(set(new.members)) == len(new.members)
                assert job._elastic.least <= len(new.members) <= job._elastic.size
                assert new.number == (epoch.number + 1 if epoch else 1)
            case Signal():
                assert job.running, "an instruction for the dead"
            case Finish():
                assert job.phase is Phase.OVER
    assert (Finish() in done) == (job.phase is Phase.OVER and not over)
    if job.phase is not Phase.OVER:
        assert job.running or job.alarm_s is not None, "a state without an exit"
        in_epoch = job.epoch and [m for m in job.epoch.members if m in job.here()]
        if job.phase is Phase.RUNNING and not job._has_left:
            assert in_epoch == list(job.epoch.members), "an epoch with the dead"
    return done


def ends(job, now_s):
    """A job ends whatever it is, once each process that runs ends and each alarm comes."""
    job = copy.deepcopy(job)
    for _ in range(100):
        if job.phase is Phase.OVER:
            return True
        for seat in sorted(job.running):
            check(job, Exited(seat, KILLED), now_s)
        if job.alarm_s is not None:
            now_s = max(now_s, job.alarm_s)
            check(job, Alarm(), now_s)
    return False


def explored(job, length):
    """Every state that sequences of so many events lead to, from a job whose host is ready; each
    alarm comes in time."""
    seen, level = {looks(job)}, [(job, 1.0)]
    for _ in range(length):
        found = []
        for state, now_s in level:
            for event in possible(state):
                after = copy.copy(state)
                after._places, after._unready = list(state._places), set(state._unready)
                after.statuses = dict(state.statuses)
                then_s = max(now_s, state.alarm_s) if isinstance(event, Alarm) else now_s
                check(after, event, then_s)
                if looks(after) not in seen:
                    seen.add(looks(after))
                    assert ends(after, then_s), (event, looks(after))
                    found.append((after, then_s))
        level = found
    return len(seen)


def explore(length, least, spares, restarts):
    """How many states there are within so many events, of a job in its first epoch and of one whose
    hosts are still to answer."""
    options = {"least": least, "spares": spares, "restarts": restarts}
    return explored(begun(**options), length) + explored(made(**options, hosts=2), length)


@pytest.mark.parametrize("case", [(1, 0, 2), (2, 1, 1), (3, 0, 1)])
def test_every_sequence_of_three_events(case):
    assert explore(3, *case) > 100


if __name__ == "__main__":  # python -m tests.launch.test_membership: a minute
    kinds = itertools.product((1, 2, 3), (0, 1), (0, 2))
    states = sum(explore(LENGTH, *kind) for kind in kinds)
    sys.stdout.write(f"{states} states within {LENGTH} events\n")
