"""Ranks that disagree are told so on every rank, at once, on one host and between hosts."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from hal.core.errors import InvalidCall
from stack.comm.engine.failures import CallMismatch
from stack.comm.engine.links import VERSION
from stack.comm.group import Group
from stack.comm.store import Store, StoreServer
from tests.comm.engine.crew import TOKEN, crews

LAYOUTS = [(0, 0), (0, 1)]
LARGE = 1 << 16


def added(n, dtype=np.float32):
    return lambda g: g.all_reduce(np.ones(n, dtype))


def told(g):
    g.broadcast(np.ones(3, np.float32), 0)


CALLS = {
    "size": (added(3), added(4), "of 3 f32", "of 4 f32"),
    "large size": (added(LARGE), added(LARGE + 1), "of 65536 f32", "of 65537 f32"),
    "dtype": (added(3), added(3, np.int32), "of 3 f32", "of 3 i32"),
    "order": (added(3), told, "all-reduce (sum)", "broadcast"),
    "name": (
        lambda g: g.all_reduce(np.ones(3, np.float32), name="weights"),
        lambda g: g.all_reduce(np.ones(3, np.float32), name="biases"),
        "(weights)",
        "(biases)",
    ),
    "message": (
        lambda g: g.send(np.ones(3, np.float32), 1),
        lambda g: g.receive(np.ones(4), 0),
        "of 3 f32",
        "of 4 f64",
    ),
}


def call_and_listen(call, group):
    """A message that was sent already has no error: its rank hears of it by its next call."""
    call(group)
    for _ in range(200):
        if group.failure is not None:
            break
        time.sleep(0.05)
    group.barrier()


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize("hosts", LAYOUTS)
def test_other_calls(hosts, what):
    ours, theirs, one, other = CALLS[what]
    with crews(hosts) as [crew]:

        def run(group):
            with pytest.raises(CallMismatch) as raised:
                call_and_listen(theirs if group.rank else ours, group)
            return raised.value

        for error in crew.do(run):
            assert sorted(error.ranks) == [0, 1]
            assert one in str(error)
            assert other in str(error)


def test_other_sizes_of_the_group():
    with StoreServer(TOKEN) as server, ThreadPoolExecutor(2) as pool:
        address = f"127.0.0.1:{server.port}"

        def join(rank, size):
            with (
                closing(Store(address, TOKEN, 20.0)) as store,
                pytest.raises(InvalidCall) as raised,
            ):
                Group.join(store, address, "odd", rank, size, 20.0)
            return str(raised.value)

        said = [pool.submit(join, rank, 2 + rank) for rank in range(2)]
        first, second = (future.result(30) for future in said)
        of = f"version {VERSION}"
        assert f"rank 1 has {of} and size 3, rank 0 has {of} and size 2" in first
        assert f"rank 0 has {of} and size 2, rank 1 has {of} and size 3" in second
