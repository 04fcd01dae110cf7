"""Groups that meet while processes of another user speak, or are silent, at every listener."""

import os
import re
import select
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from stack.comm.group import Group
from stack.comm.store import Store, StoreServer
from tests.comm.engine.crew import BOOT, TOKEN, several_hosts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="another user id needs root"),
]
LONG_S = 30.0

STRANGER = """
import os, socket, sys, time
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
address, how = eval(sys.argv[1]), sys.argv[2]
links = []
for _ in range(3):
    if isinstance(address, bytes):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    else:
        link = socket.socket()
    link.settimeout(30)
    link.connect(address)
    links.append(link)
print("connected", flush=True)
try:
    if how == "drip":
        for _ in range(60):
            links[0].send(b"x")
            time.sleep(0.5)
    elif how != "silent":
        for link in links:
            link.send(eval(how))
except OSError:
    pass
time.sleep(30)
"""


def listeners():
    """The addresses of the groups that meet now in this process: local, TCP."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            inodes |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/self/fd/{name}")))
        except FileNotFoundError:
            continue
    found = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    local = [f[7] for f in found if f[6] in inodes and f[-1].startswith("@hal-group-")]
    found = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    ports = [int(f[1][-4:], 16) for f in found if f[9] in inodes and f[3] == "0A"]
    return [b"\0" + name[1:].encode() for name in local], ports


@contextmanager
def stranger(address, how):
    """A process of another user at a listener."""
    command = [sys.executable, "-c", STRANGER, repr(address), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert select.select([process.stdout], [], [], LONG_S)[0]
            assert process.stdout.readline() == b"connected\n"
            yield
        finally:
            process.kill()


HELLO = "b'5'.ljust(256)", "b'null'.ljust(256)", '\'[1,"life","é"]\'.encode().ljust(256)'


@pytest.mark.parametrize("near", [True, False], ids=["local", "tcp"])
@pytest.mark.parametrize("how", [*HELLO, "silent", "drip"])
def test_no_stranger_ends_or_delays_a_meeting(near, how):
    """The deadline is shorter than what one silent stranger used to take."""
    with StoreServer(TOKEN) as server, several_hosts(), ThreadPoolExecutor(2) as pool:
        address, before = f"127.0.0.1:{server.port}", listeners()[1]
        store = Store(address, TOKEN, LONG_S)

        def join(rank):
            BOOT.host.number = 0 if near else rank
            return Group.join(store, address, "attacked", rank, 2, 4.0)

        first = pool.submit(join, 0)
        until_s = time.monotonic() + LONG_S
        local, port = [], set()
        while not (local and port) and time.monotonic() < until_s:
            time.sleep(0.01)
            local, ports = listeners()
            port = set(ports) - set(before)
        [local], [port] = local, port
        with stranger(local if near else ("127.0.0.1", port), how):
            groups = [one.result(LONG_S) for one in (first, pool.submit(join, 1))]
        sums = [pool.submit(group.all_reduce, np.ones(3)) for group in groups]
        assert [s.result(LONG_S).tolist() for s in sums] == [[2.0] * 3] * 2
        for group in groups:
            group.close()
