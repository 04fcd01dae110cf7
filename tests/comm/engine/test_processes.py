"""What processes do to the engine, and the engine to processes."""

import gc
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from hal.core.errors import InvalidCall
from stack.comm.engine.failures import GroupAborted
from stack.comm.store import StoreServer
from tests.comm.engine.crew import crews
from tests.comm.engine.ranks import running


def test_the_stack_does_without_the_engine():
    program = "import stack.framework, sys; print('stack.comm.engine.library' in sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


@pytest.mark.filterwarnings("ignore:.*fork")
def test_the_child_of_a_fork_is_no_rank():
    with crews(2) as [crew]:
        child = os.fork()
        if not child:
            code = 1
            try:
                with pytest.raises(InvalidCall, match="the child of a fork is no rank"):
                    crew.groups[0].barrier()
                with pytest.raises(InvalidCall, match="the child of a fork is no rank"):
                    crew.groups[0].later.barrier()
                crew.groups[0].abort()
                crew.groups.clear()  # they are given back
                gc.collect()
                code = 0
            finally:
                os._exit(code)
        for _ in range(1000):
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                break
            time.sleep(0.01)
        assert (found, status) == (child, 0)
        assert crew.do(lambda g: g.all_reduce(np.ones(1))[0]) == [2.0, 2.0]
        # what each writes in the other's memory
        rows = np.ones((2, 1 << 20))
        for root in (0, 1) * 4:
            found = crew.do(
                lambda g, root=root: g.scatter(rows if g.rank == root else None, root, rows[0] * 0)
            )
            assert [part.sum() for part in found] == [1 << 20] * 2


@pytest.mark.slow
def test_a_child_that_lives_on_does_not_hide_that_its_parent_has_ended():
    with running(2) as ranks:
        ranks.ask(0, "os.fork() or time.sleep(5) or os._exit(0)")
        ranks.tell(1, "g.barrier()")
        ranks.signal(0, signal.SIGKILL)
        assert "rank 0 has ended" in ranks.fails(1).text


def test_ctrl_c_ends_a_wait_for_a_late_rank_and_tells_the_others():
    with crews(2) as [crew]:
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            with pytest.raises(KeyboardInterrupt):
                crew.groups[0].all_reduce(np.ones(1))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        with pytest.raises(GroupAborted, match="rank 0 has aborted the group"):
            crew.groups[1].all_reduce(np.ones(1))


IN_REAL_TIME = """
import os, pathlib, time
os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(3))
from stack.comm.group import Group
from stack.comm.store import Store, StoreServer

def priorities():
    stats = [(task / "stat").read_text() for task in pathlib.Path("/proc/self/task").iterdir()]
    return {int(stat.rpartition(")")[2].split()[37]) for stat in stats}

with StoreServer("of-a-test") as server:
    address = f"127.0.0.1:{server.port}"
    with Group.join(Store(address, "of-a-test", 30.0), address, "alone", 0, 1, 30.0):
        until_s = time.monotonic() + 100
        while priorities() == {3} and time.monotonic() < until_s:
            time.sleep(0.01)
        print(sorted(priorities()))
"""


def test_the_watch_goes_first_where_the_program_runs_in_real_time():
    """Below it, it would hear of nothing as long as the program has something to do."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        pytest.skip("this user may run nothing in real time")
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    command = [sys.executable, "-c", IN_REAL_TIME]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[3, 4]\n"


ON_ONE_CORE = """
import os, sys, time
core, address, rank = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
os.sched_setaffinity(0, {core})
from stack.comm.group import Group
from stack.comm.store import Store

def cores():
    return [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")]

with Group.join(Store(address, "of-a-test", 30.0), address, "pair", rank, 2, 30.0) as group:
    until_s = time.monotonic() + 100
    while max(map(len, cores())) < 2 and time.monotonic() < until_s:
        time.sleep(0.01)
    print(sorted(map(len, cores()))[0], sorted(map(len, cores()))[-1])
    group.barrier()
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_the_watch_of_a_rank_may_run_on_the_cores_of_others():
    """A program in real time on the core of a rank kept it from saying that it lives."""
    with StoreServer("of-a-test") as server:
        address, cores = f"127.0.0.1:{server.port}", sorted(os.sched_getaffinity(0))
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", ON_ONE_CORE, str(cores[rank]), address, str(rank)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        said = [process.communicate(timeout=60)[0] for process in ranks]
    assert said == ["1 2\n"] * 2  # what computes stays on its own
