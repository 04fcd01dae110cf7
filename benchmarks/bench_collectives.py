"""Adding up 64 MiB on two devices, in one process and between two, against numpy on two arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np

import hal
from benchmarks.collectives import NBYTES, Member
from benchmarks.machine import ROOT
from benchmarks.row import Bar, Row
from benchmarks.timer import interleaved
from hal.core.device import Device

DEVICES = "HAL_CPU_DEVICES"
GIB = 2**30


def rows(quick: bool) -> Iterator[Row]:
    with ExitStack() as stack:
        devices = [stack.enter_context(device) for device in _open_two()]
        functions = [_numpy(), _inside(devices), stack.enter_context(_between(devices[0]))]
        interleaved(functions, 2, 1)  # the first calls touch all memory for the first time
        times_s = interleaved(functions, 5 if quick else 40, 1)
    peer, inside, between = (NBYTES / GIB / seconds for seconds in times_s)
    sums, note = "64 MiB of float32 summed", "one source's bytes per time until all have the sum"
    yield Row(
        f"{sums}, two devices of a process", "GiB/s", inside, peer, "numpy", Bar(ratio=0.7),
        more_is_better=True, note=note,
    )  # fmt: skip
    yield Row(
        f"{sums}, two processes", "GiB/s", between, inside, "one process", Bar(ratio=0.33),
        more_is_better=True,
    )  # fmt: skip


def _open_two() -> Sequence[Device]:
    before = os.environ.get(DEVICES)
    os.environ[DEVICES] = "2"
    try:
        return [hal.open(f"cpu:{index}", wrappers=()) for index in range(2)]
    finally:
        del os.environ[DEVICES]
        os.environ.update({} if before is None else {DEVICES: before})


def _numpy() -> Callable[[], object]:
    """The same reads and writes: the sum of two arrays, and a copy of it for the other member."""
    one, other, total, copy = (np.zeros(NBYTES // 4, np.float32) for _ in range(4))

    def add() -> None:
        np.add(one, other, out=total)
        np.copyto(copy, total)

    return add


def _inside(devices: Sequence[Device]) -> Callable[[], object]:
    with ThreadPoolExecutor(2) as pool:
        peers = ("cpu:0", "cpu:1")
        joins = [
            pool.submit(Member, device, f"bench inside {os.getpid()}", rank, peers)
            for rank, device in enumerate(devices)
        ]
    members = [join.result(timeout=60) for join in joins]

    def add() -> None:
        for member in members:
            member.submit()
        for member in members:
            member.wait_done()

    return add


@contextmanager
def _between(device: Device) -> Iterator[Callable[[], object]]:
    key = f"bench between {os.getpid()}"
    command = [sys.executable, "-m", "benchmarks.collectives", key]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, cwd=ROOT)
    assert other.stdin is not None
    go = other.stdin
    try:
        member = Member(device, key, 0, ("cpu:0", "cpu:0"))

        def add() -> None:
            go.write("\n")
            go.flush()
            member.submit()
            member.wait_done()

        yield add
    finally:
        go.close()  # the end of its input ends the other process
        other.wait(timeout=60)
