"""Processes that are to end, and do not."""

import os
import selectors
import signal
import subprocess
from contextlib import contextmanager

import pytest

from hal.core.errors import DeadlineExceeded, InvalidCall
from stack.launch.link import AgentLink
from stack.launch.processes import descendants, descendants_end, kill_descendants
from tests.launch.running import read_lines

STARTS = "read now; sleep 1000 & echo $!; exec cat"
"""A process that starts another one when it is told to, and never asks how that has ended: it
stays, as a zombie."""


@contextmanager
def starter():
    """Gives a function that starts what stays; its parent was there before."""
    pipe = subprocess.PIPE
    started = []

    def start():
        parent.stdin.write(b"now\n")
        parent.stdin.flush()
        started.extend(map(int, read_lines(parent.stdout, 1)))
        return started[0]

    with subprocess.Popen(["sh", "-c", STARTS], stdin=pipe, stdout=pipe) as parent:
        try:
            yield start
        finally:
            for process in started:
                os.kill(process, signal.SIGKILL)
            parent.stdin.close()


def test_a_process_that_does_not_end_is_told_with_what_holds_it():
    with starter() as start:
        spared = descendants()
        said = rf"after SIGKILL: {start()} \((?:sleep|sh): [A-Z] priority \d"
        with pytest.raises(DeadlineExceeded, match=said):
            kill_descendants(0.0, spared)


def test_what_went_wrong_before_is_told_along_with_processes_that_do_not_end():
    def run():
        with starter() as start, descendants_end(0.0):
            start()
            raise InvalidCall("the disk is full")

    # Killed at once, it may not have got as far as `sleep`.
    said = r"InvalidCall: the disk is full; besides, processes .* \((sleep|sh): "
    with pytest.raises(DeadlineExceeded, match=said) as caught:
        run()
    assert isinstance(caught.value.__cause__, InvalidCall)


class _Unending:
    """A process that the system does not end."""

    def wait(self, timeout):
        raise subprocess.TimeoutExpired("agent", timeout)

    def kill(self):
        pass


def test_an_agent_that_does_not_end_is_told_and_hides_nothing_else():
    """A launcher that raised here kept to itself what ranks had written, and why they ended."""
    with selectors.PollSelector() as selector:
        link = AgentLink(("cat",), selector, lambda words, data: None, lambda why: None)
        link.let_go()
        agent, link._process = link._process, _Unending()
        assert link.close(0.0) == "its agent did not end within 0 s after SIGKILL"
        agent.wait(60)
