"""A server that is busy lives, however long it says nothing; one that does not work is lost."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hal_plugin_remote import channel, connection, device
from hal_plugin_remote.address import connect, lives, places

import hal
from hal.core.errors import DeviceLost
from hal.core.values import AllocOptions

WAIT_S = 60.0
SILENCE_S = 0.6

SERVER = """
import ctypes, math, re, select, sys, time
import hal
from hal.hosted.lock import LOCK
from hal_plugin_remote.server import Server

BUSY_S = 4.0

def computes():
    def seconds(n):  # grow as Fibonacci's numbers do
        begin_s = time.process_time()
        re.match("(a|aa)+b", "a" * n)
        return time.process_time() - begin_s

    seconds(24 + math.ceil(math.log(BUSY_S / seconds(24), (1 + 5**0.5) / 2)))

def holds_the_lock():
    with LOCK:
        time.sleep(BUSY_S)

def opens_slowly():
    once = hal.open
    def late(*args, **options):
        time.sleep(BUSY_S)
        return once(*args, **options)
    hal.open = late

ORDERS = {
    # Calls that keep the interpreter for themselves: one that takes seconds, one that does nothing.
    "computes": computes,
    "sleeps": lambda: ctypes.PyDLL(None).poll(None, 0, 600_000),
    # What leaves the interpreter to others.
    "holds the lock": holds_the_lock,
    "opens slowly": opens_slowly,
}

def obey():
    while select.select([sys.stdin], [], [], 600)[0] and (line := sys.stdin.readline()):
        print("begins", flush=True)
        ORDERS[line.strip()]()
        print("is through", flush=True)

with Server(sys.argv[1]) as server:
    print(server.address, flush=True)
    obey()
"""


class Busy:
    """A server that keeps its interpreter to itself when it is told to, and what was answered to
    those who asked whether it lives."""

    def __init__(self, process):
        self.process = process
        self.answers = []

    def speaks(self):
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def line(self):
        assert select.select([self.process.stdout], [], [], WAIT_S)[0], "the server says nothing"
        return self.process.stdout.readline().strip()

    def begin(self, order):
        self.process.stdin.write(order + "\n")
        assert self.line() == "begins"

    def lives(self, place, until_s):
        self.answers.append(lives(place, until_s))
        return self.answers[-1]


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server of `remote:0`, which is lost after a shorter silence than else."""
    monkeypatch.setattr(channel, "TICK_S", SILENCE_S / 6)
    monkeypatch.setattr(connection, "SILENCE_S", SILENCE_S)
    monkeypatch.setattr(connection, "_ASK_AFTER_S", SILENCE_S / 3)
    command = [sys.executable, "-c", SERVER, f"unix:{tmp_path / 'socket'}"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        busy = Busy(process)
        monkeypatch.setattr(device, "lives", busy.lives)
        monkeypatch.setenv("HAL_REMOTE", f"{busy.line()}/reference:0")
        yield busy
        process.kill()


def fills(opened):
    timeline = opened.create_timeline(False)
    buffer, host = opened.alloc(4, AllocOptions()), bytearray(4)
    opened.fill(buffer.region(), b"x", timeline, ())
    point = opened.copy(host, buffer.region(), timeline, ())
    assert opened.wait([point], WAIT_S, True)
    return bytes(host) == b"xxxx"


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("order", ["computes", "holds the lock"])
def test_a_server_that_is_busy_for_long_is_not_lost(server, order):
    with hal.open("remote:0") as opened:
        server.begin(order)
        with contextlib.closing(connect(places()[0])):  # whoever comes now is heard
            while not server.speaks():
                assert fills(opened)
        assert server.line() == "is through"
    assert server.answers.count(True) >= 2


@pytest.mark.slow
@pytest.mark.turns
def test_a_device_that_opens_for_long_is_not_lost(server):
    server.begin("opens slowly")
    assert server.line() == "is through"
    with hal.open("remote:0") as opened:
        assert fills(opened)
    assert server.answers.count(True) >= 2


@pytest.mark.slow
@pytest.mark.turns
def test_a_server_that_takes_nothing_for_long_gets_it_later(server):
    """Far more than a connection holds, so that the sender waits for the server, too."""
    with hal.open("remote:0") as opened:
        timeline, data = opened.create_timeline(False), os.urandom(1 << 20) * 16
        buffer, host = opened.alloc(len(data), AllocOptions()), bytearray(len(data))
        server.begin("computes")
        opened.copy(buffer.region(), data, timeline, ())
        assert server.line() == "is through"
        point = opened.copy(host, buffer.region(), timeline, ())
        assert opened.wait([point], WAIT_S, True)
        assert host == data
    assert True in server.answers


def the_front(server):
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return int(children[0])


STOPS = {
    "its interpreter is kept by what does nothing": lambda s: s.begin("sleeps"),
    "it is stopped": lambda s: s.process.send_signal(signal.SIGSTOP),
    "all of its machine stands": lambda s: [
        os.kill(process, signal.SIGSTOP) for process in (the_front(s.process), s.process.pid)
    ],
}


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
def test_a_server_that_hangs_is_lost(server, stop):
    opened = hal.open("remote:0")
    assert fills(opened)
    front = the_front(server.process)
    stop(server)
    try:
        with pytest.raises(DeviceLost, match=r"said nothing for .* and does not work"):
            fills(opened)
    finally:
        server.process.kill()
        os.kill(front, signal.SIGCONT)
    assert not server.answers[-1]
    opened.close()


@pytest.mark.slow
@pytest.mark.turns
def test_a_server_that_is_killed_while_it_is_busy_is_lost(server):
    opened = hal.open("remote:0")
    server.begin("computes")
    server.process.kill()
    with pytest.raises(DeviceLost, match="the connection to the server ended: "):
        fills(opened)
    opened.close()
