"""Ranks that are killed at random moments of a save over an older one: what loads afterwards.

`python -m benchmarks.storage_kills WHERE [COUNT] [SIZE]`: WHERE is a folder or an s3:// URL; every
second time one rank is killed, else all. Each time the old or the new state must load, whole.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import numpy as np

from benchmarks.machine import ROOT
from benchmarks.row import BenchmarkError
from stack.comm.group import Group
from stack.comm.store import Store, StoreServer
from stack.storage import Checkpoints, TensorShard

TOKEN = "of-a-test"
TENSORS, ELEMENTS = 24, 64 * 1024
WAIT_S = 60.0


def rank_main(address: str, rank: int, size: int, where: str) -> None:
    """Save state after state as one and the same step, and say which is committed."""
    with (
        Group.join(Store(address, TOKEN, WAIT_S), address, "kills", rank, size, WAIT_S) as group,
        Checkpoints(where, group, deadline_s=WAIT_S, keep=1) as checkpoints,
    ):
        there = np.array([bool(checkpoints.steps())])  # rank 0 may be saving already
        group.broadcast(there, 0)
        first = checkpoints.load().state + 1 if there[0] else 1
        for number in range(first, first + 10_000):
            checkpoints.save(1, {"model": state(number, rank, size)}, number)
            print(number, flush=True)


def state(number: int, rank: int, size: int) -> dict[str, TensorShard]:
    """A rank's columns of tensors that are full of a number."""
    edges = [ELEMENTS // 256 * r // size for r in (rank, rank + 1)]
    part = np.full((256, edges[1] - edges[0]), number, np.uint32)
    shape = (256, ELEMENTS // 256)
    return {f"w{i}": TensorShard.box(part, shape, (0, edges[0])) for i in range(TENSORS)}


def kill_once(where: str, size: int, choose: random.Random, one: bool) -> tuple[int, int]:
    """Let ranks save, and kill one or all; gives the last number that they said was committed, and
    the one that loads. Raises BenchmarkError for a state that is not whole."""
    with ExitStack() as stack:
        server = stack.enter_context(StoreServer(TOKEN))
        ranks = [_started(stack, f"127.0.0.1:{server.port}", r, size, where) for r in range(size)]
        said = [_line(ranks[0]), _line(ranks[0])]
        began = time.monotonic()
        said.append(_line(ranks[0]))
        took = time.monotonic() - began
        time.sleep(choose.random() * took)
        victims = [choose.choice(ranks)] if one else ranks
        for process in victims:
            process.send_signal(signal.SIGKILL)
        rest = [_rest(process) for process in ranks]
    said += [int(n) for n in rest[0].split()]
    loaded = _loaded(where)
    values = {int(v) for a in loaded.values() for v in (a.min(), a.max())}
    if len(values) != 1:
        raise BenchmarkError(f"what loads is mixed of {sorted(values)}")
    return max(said), values.pop()


def _loaded(where: str) -> dict[str, np.ndarray]:
    with Checkpoints(where, deadline_s=WAIT_S) as checkpoints:
        return checkpoints.load().tensors["model"]


def _started(
    stack: ExitStack, address: str, rank: int, size: int, where: str
) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "benchmarks.storage_kills", "rank", address, str(rank)]
    process = subprocess.Popen(
        [*words, str(size), where],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    stack.callback(_ended, process)
    return process


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate(timeout=WAIT_S)


def _line(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], WAIT_S)[0]:
        raise BenchmarkError("a rank saves nothing")
    data = b""
    while not data.endswith(b"\n"):
        byte = os.read(process.stdout.fileno(), 1)
        if not byte:
            raise BenchmarkError("a rank has ended before it was killed")
        data += byte
    return int(data)


def _rest(process: subprocess.Popen[bytes]) -> bytes:
    """Wait for the end, which the loss of another rank brings; gives what it has said meanwhile."""
    return process.communicate(timeout=WAIT_S)[0]


def kills(where: str, count: int, size: int, seed: int) -> tuple[int, int]:
    """So many kills; gives how often the old and the new state loaded. Raises BenchmarkError."""
    choose = random.Random(seed)
    old = new = 0
    for i in range(count):
        said, loads = kill_once(where, size, choose, one=bool(i % 2))
        if loads not in (said, said + 1):
            raise BenchmarkError(f"{said} was committed, but {loads} loads")
        old, new = old + (loads == said), new + (loads == said + 1)
    return old, new


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank_main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        total = int(sys.argv[2]) if len(sys.argv) > 2 else 100
        before, after = kills(sys.argv[1], total, int((sys.argv + ["2"] * 4)[3]), seed=1)
        print(f"{total} kills: the last committed state loaded {before} times, the next {after}")
