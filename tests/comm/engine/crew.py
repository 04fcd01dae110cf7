"""Ranks that are threads of the test's process: each has a group of its own."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count

from stack.comm.group import Group
from stack.comm.store import Store, StoreServer

TOKEN = "of-a-test"
_KEYS = count()


class Crew:
    """A group for each rank; `do(f)` gives f(group) of every rank, in rank order."""

    def __init__(self, port, size, pool, deadline_s):
        self.size = size
        self.key = f"crew-{next(_KEYS)}"
        self._pool = pool
        self.address = f"127.0.0.1:{port}"
        self.store = Store(self.address, TOKEN, 20.0)
        join = [pool.submit(self._join, rank, deadline_s) for rank in range(size)]
        self.groups = [f.result(30) for f in join]

    def _join(self, rank, deadline_s):
        return Group.join(self.store, self.address, self.key, rank, self.size, deadline_s)

    def do(self, function):
        running = [self._pool.submit(function, group) for group in self.groups]
        return [f.result(60) for f in running]

    def close(self):
        for group in self.groups:
            group.close()
        self.store.close()


@contextmanager
def crews(*sizes, deadline_s=20.0):
    """A crew of each size."""
    with StoreServer(TOKEN) as server, ThreadPoolExecutor(sum(sizes)) as pool:
        made = [Crew(server.port, size, pool, deadline_s) for size in sizes]
        yield made
        for crew in made:
            crew.close()
