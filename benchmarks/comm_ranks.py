"""Two ranks on one host that make collectives or pass messages on when asked, by our engine and by
PyTorch's gloo: `python -m benchmarks.comm_ranks STORE GLOO RANK BOUND` reads a line "KIND WAY
NBYTES REPEATS" for each measurement; rank 0 answers with the seconds of one call. With BOUND 1 each
has its share of the processors, as `hal run` and `mpirun` give it.

NBYTES are those of the whole array of a call: what a rank reduces (all_reduce in place,
reduce_scatter), has together (all_gather), shares out (all_to_all), tells (broadcast in place, from
each rank in turn, so that no root runs ahead) or passes on (message, there and back). The kind COPY
waits for nobody: each rank copies an array of its own past its caches."""

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
from itertools import cycle
from types import TracebackType
from typing import Self

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.machine import ROOT
from benchmarks.row import BenchmarkError
from stack.comm.group import Array, Group
from stack.comm.store import Store, StoreServer
from stack.launch.seats import share
from stack.storage.memory import copy_past_cache

TOKEN = "of-a-benchmark"
SIZE = 2
DEADLINE_S = 120.0
WAYS = ("shared", "private", "gloo")
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "message")
COPY = "copy"


class Rank:
    """A rank's process: its group, its gloo, and an array of each kind."""

    def __init__(self, store: str, gloo: str, rank: int) -> None:
        self._group = Group.join(Store(store, TOKEN, 30.0), store, "bench", rank, SIZE, DEADLINE_S)
        dist.init_process_group("gloo", init_method=f"tcp://{gloo}", rank=rank, world_size=SIZE)
        self._calls: dict[tuple[str, str, int], Callable[[], object]] = {}

    def seconds(self, kind: str, way: str, nbytes: int, repeats: int) -> float:
        """The mean seconds of a call, begun together."""
        key = kind, way, nbytes
        if key not in self._calls:
            # large arrays are not kept for sizes that do not come again
            self._calls = {k: c for k, c in self._calls.items() if k[2] == nbytes}
            self._calls[key] = self._gloo(nbytes) if way == "gloo" else self._call(*key)
        call = self._calls[key]
        self._group.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats

    def _gloo(self, nbytes: int) -> Callable[[], object]:
        tensor = torch.zeros(nbytes // 4)
        return lambda: dist.all_reduce(tensor)

    def _call(self, kind: str, way: str, nbytes: int) -> Callable[[], object]:
        group = self._group
        make = group.empty if way == "shared" else _touched
        n = nbytes // 4
        if kind == "all_gather":
            part, whole = make(n // SIZE), make(n)
            return lambda: group.all_gather(part, whole)
        whole = make(n)
        if kind == "reduce_scatter":
            part = make(n // SIZE)
            return lambda: group.reduce_scatter(whole, out=part)
        if kind in ("all_to_all", COPY):
            result = make(n)
            if kind == COPY:
                return lambda: copy_past_cache(result.view(np.uint8), whole.view(np.uint8))
            return lambda: group.all_to_all(whole, result)
        roots = cycle(range(SIZE))
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: group.all_reduce(whole),
            "broadcast": lambda: group.broadcast(whole, next(roots)),
            "message": lambda: _there_and_back(group, whole),
        }
        return calls[kind]

    def close(self) -> None:
        self._group.close()
        dist.destroy_process_group()


def _touched(n: int) -> Array:
    array = np.empty(n, np.float32)
    array[:] = 0
    return array


def _there_and_back(group: Group, array: Array) -> None:
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

    def seconds(self, kind: str, way: str, nbytes: int, repeats: int) -> float:
        """As `Rank.seconds`. Raises BenchmarkError when no answer comes."""
        for process in self._ranks:
            assert process.stdin is not None
            process.stdin.write(f"{kind} {way} {nbytes} {repeats}\n")
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
        kind, way, nbytes, repeats = line.split()
        seconds = member.seconds(kind, way, int(nbytes), int(repeats))
        if rank == "0":
            print(json.dumps(seconds), flush=True)
    member.close()


if __name__ == "__main__":
    main()
