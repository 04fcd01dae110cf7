"""How long an agent may say nothing."""

import selectors
from functools import partial

import pytest

from hal.net.loop import turn
from stack.launch.link import AgentLink
from tests.launch.running import LONG_S


@pytest.fixture
def silent():
    """An agent that greets, is ready, and says nothing more; and what is told of it."""
    command = ("sh", "-c", 'echo hal-agent/1; echo \'{"say": "ready"}\'; exec cat')
    heard, lost = [], []
    with selectors.PollSelector() as selector:
        link = AgentLink(command, selector, lambda words, _: heard.append(words), lost.append)
        while not heard:
            turn(selector, LONG_S)
        yield link, lost, partial(turn, selector)
        link.let_go()
        link.close(LONG_S)


def test_a_silent_agent_is_lost_sooner_where_others_can_go_on(silent):
    link, lost, turned = silent
    while (left_s := link.patience_s(True)) > 0:
        assert link.patience_s(False) > left_s
        turned(left_s)
        link.look(left_s)
        assert not lost  # of which nobody could go on
    link.look(left_s, True)
    (why,) = lost
    assert "no sign of life" in why
