"""Two ranks on one host that add up arrays when asked, by our engine and by PyTorch's gloo:
`python -m benchmarks.comm_ranks STORE GLOO RANK BOUND` reads a line "WAY NBYTES REPEATS" for each
measurement; rank 0 answers with the seconds of one all-reduce, or of a message there and back. With
BOUND 1 each has its share of the processors, as `hal run` and `mpirun` give it."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.machine import ROOT
from benchmarks.row import BenchmarkError
from stack.comm.group import Group
from stack.comm.store import Store, StoreServer
from stack.launch.seats import share

TOKEN = "of-a-benchmark"
SIZE = 2
DEADLINE_S = 120.0
WAYS = ("shared", "private", "gloo")
MESSAGE = "message"


class Rank:
    """A rank's process: its group, its gloo, and an array of each kind."""

    def __init__(self, store: str, gloo: str, rank: int) -> None:
        self._group = Group.join(Store(store, TOKEN, 30.0), store, "bench", rank, SIZE, DEADLINE_S)
        dist.init_process_group("gloo", init_method=f"tcp://{gloo}", rank=rank, world_size=SIZE)
        self._calls: dict[tuple[str, int], Callable[[], object]] = {}

    def seconds(self, way: str, nbytes: int, repeats: int) -> float:
        """The mean seconds of an all-reduce of zeros in place, or of a MESSAGE of them there and
        back, begun together."""
        call = self._calls.setdefault((way, nbytes), self._call(way, nbytes))
        self._group.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats

    def _call(self, way: str, nbytes: int) -> Callable[[], object]:
        n, group = nbytes // 4, self._group
        if way == "gloo":
            tensor = torch.zeros(n)
            return lambda: dist.all_reduce(tensor)
        array = group.empty(n) if way == "shared" else np.zeros(n, np.float32)
        array[:] = 0
        if way == MESSAGE:
            return lambda: _there_and_back(group, array)
        return lambda: group.all_reduce(array)

    def close(self) -> None:
        self._group.close()
        dist.destroy_process_group()


def _there_and_back(group: Group, array: np.ndarray[Any, Any]) -> None:
    other = 1 - group.rank
    if group.rank == 0:
        group.send(array, other)
    group.receive(array, other)
    if group.rank == 1:
        group.send(array, other)


class Pair:
    """The two processes, as their driver sees them. Use it in a `with` statement."""

    def __init__(self, bound: bool = False) -> None:
        self._bound = bound

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            server = stack.enter_context(StoreServer(TOKEN))
            addresses = f"127.0.0.1:{server.port}", f"127.0.0.1:{_free_port()}"
            self._ranks = [
                stack.enter_context(_started(*addresses, rank, self._bound)) for rank in range(SIZE)
            ]
            stack.callback(self._end)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def seconds(self, way: str, nbytes: int, repeats: int) -> float:
        """As `Rank.seconds`. Raises BenchmarkError when no answer comes."""
        for process in self._ranks:
            assert process.stdin is not None
            process.stdin.write(f"{way} {nbytes} {repeats}\n")
            process.stdin.flush()
        answer = self._ranks[0].stdout
        assert answer is not None
        line = answer.readline() if select.select([answer], [], [], DEADLINE_S)[0] else ""
        if not line:
            raise BenchmarkError("the ranks of the benchmark do not answer; see their errors")
        return float(json.loads(line))

    def _end(self) -> None:
        for process in self._ranks:
            process.communicate(timeout=DEADLINE_S)  # the end of its input ends it


def _started(store: str, gloo: str, rank: int, bound: bool) -> subprocess.Popen[str]:
    words = (store, gloo, str(rank), str(int(bound)))
    command = [sys.executable, "-m", "benchmarks.comm_ranks", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store, gloo, rank, bound = sys.argv[1:]
    if bound == "1":
        os.sched_setaffinity(0, share(sorted(os.sched_getaffinity(0)), int(rank), SIZE))
    member = Rank(store, gloo, int(rank))
    for line in sys.stdin:
        way, nbytes, repeats = line.split()
        seconds = member.seconds(way, int(nbytes), int(repeats))
        if rank == "0":
            print(json.dumps(seconds), flush=True)
    member.close()


if __name__ == "__main__":
    main()
