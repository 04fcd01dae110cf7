"""Ranks that are threads of the test's process: each has a group of its own."""

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager
from itertools import count

from stack.comm.engine import links
from stack.comm.group import Group
from stack.comm.store import Store, StoreServer

TOKEN = "of-a-test"
WAIT_S = 120.0
"""Far beyond what any of it takes: a machine may be busy."""
_KEYS = count()


class BootId:
    """What the kernel calls its boot, where every thread may say that it runs under another one."""

    def __init__(self):
        self.host = threading.local()

    def read_text(self):
        return f"boot-of-a-test-{getattr(self.host, 'number', 0)}\n"


BOOT = BootId()


class Crew:
    """A group for each rank; `do(f)` gives f(group) of every rank, in rank order."""

    def __init__(self, port, size, pool, deadline_s=WAIT_S, hosts=None):
        self.size = size
        self.hosts = hosts or (0,) * size
        self.key = f"crew-{next(_KEYS)}"
        self._pool = pool
        self.address = f"127.0.0.1:{port}"
        self.store = Store(self.address, TOKEN, WAIT_S)
        join = [pool.submit(self._join, rank, deadline_s) for rank in range(size)]
        try:
            self.groups = [f.result(WAIT_S) for f in join]
        except BaseException:
            wait(join, WAIT_S)  # a rank that still uses the store would leave a connection
            self.store.close()
            raise

    def _join(self, rank, deadline_s):
        BOOT.host.number = self.hosts[rank]
        group = Group.join(self.store, self.address, self.key, rank, self.size, WAIT_S)
        group.deadline_s = deadline_s
        return group

    def do(self, function):
        running = [self._pool.submit(function, group) for group in self.groups]
        for f in as_completed(running, 2 * WAIT_S):
            f.result(0)  # the first error is the cause; the other ranks wait in vain for that one
        return [f.result(0) for f in running]

    def close(self):
        for group in self.groups:
            group.close()
        self.store.close()


@contextmanager
def several_hosts():
    """Every thread says by `BOOT.host.number` of which host it is."""
    before, links._BOOT = links._BOOT, BOOT
    try:
        yield
    finally:
        links._BOOT = before


@contextmanager
def crews(*sizes, deadline_s=WAIT_S):
    """A crew of each size: of that many ranks, or with these hosts, one for each rank. Calls have
    the deadline; that ranks find each other, and say that they live, takes what it takes on a busy
    machine: with a deadline of 2 s one that says nothing for 0.2 s would be lost."""
    hosts = [(0,) * size if isinstance(size, int) else size for size in sizes]
    with StoreServer(TOKEN) as server, ThreadPoolExecutor(sum(map(len, hosts))) as pool:
        with several_hosts():
            made = [Crew(server.port, len(of), pool, deadline_s, of) for of in hosts]
        try:
            yield made
        finally:  # what a failed test left open would be found in a later one
            for crew in made:
                crew.close()
