"""A few of the trials that `tests.comm.engine.trials` runs by the hundred."""

import pytest

from tests.comm.engine.hosts import why_not
from tests.comm.engine.trials import run


def fine(told):
    assert told.wrong == []
    assert told.right == told.trials
    assert [held[::2] for held in told.open_after] == [held[::2] for held in told.open_before]
    assert all(threads < len(told.open_after) for _, threads, _ in told.open_after)
    return True


@pytest.mark.slow
@pytest.mark.turns
def test_survivors_of_kills_go_on_and_leave_nothing_open():
    assert fine(run(4, "kill"))


@pytest.mark.slow
@pytest.mark.turns
def test_survivors_of_a_stopped_rank_go_on():
    assert fine(run(1, "stop", deadline_s=10.0))


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_survivors_of_kills_on_other_hosts_go_on_and_leave_nothing_open():
    assert fine(run(2, "kill", count=2, size=4))
