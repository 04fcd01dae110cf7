"""Adding up 64 MiB on two devices of a process, against numpy on two arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np

import hal
from benchmarks.row import Bar, Row
from benchmarks.timer import interleaved
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.values import AllocOptions, Collective, CollectiveKind, GroupSpec

DEVICES = "HAL_CPU_DEVICES"
NBYTES = 64 << 20
CALL = Collective(CollectiveKind.ALL_REDUCE, DType.F32, NBYTES // DType.F32.nbytes)
TIMEOUT_S = 60.0
GIB = 2**30


def rows(quick: bool) -> Iterator[Row]:
    with ExitStack() as stack:
        devices = [stack.enter_context(device) for device in _open_two()]
        functions = [_numpy(), _devices(devices)]
        interleaved(functions, 2, 1)  # the first calls touch all memory for the first time
        times_s = interleaved(functions, 5 if quick else 40, 1)
    peer, ours = (NBYTES / GIB / seconds for seconds in times_s)
    sums, note = "64 MiB of float32 summed", "one source's bytes per time until all have the sum"
    yield Row(
        f"{sums}, two devices of a process", "GiB/s", ours, peer, "numpy", Bar(ratio=0.7),
        more_is_better=True, note=note,
    )  # fmt: skip


class Member:
    """A device's membership in a group of `peers`, with a source and a destination. Blocks until
    all members are there."""

    def __init__(self, device: Device, key: str, rank: int, peers: Sequence[str]) -> None:
        self._device = device
        self._group = device.create_group(GroupSpec(key, rank, tuple(peers), TIMEOUT_S))
        self._timeline = device.create_timeline(False)
        regions = [device.alloc(NBYTES, AllocOptions(zero=True)).region() for _ in range(2)]
        self._dst, self._src = regions

    def submit(self) -> None:
        """Begin this member's part of a call."""
        call = (self._group, CALL, self._dst, self._src, self._timeline, ())
        self._point = self._device.collective(*call)

    def wait_done(self) -> None:
        """Wait for the end of the call."""
        if not self._device.wait((self._point,), TIMEOUT_S, True):
            raise TimeoutError(f"the call did not end in {TIMEOUT_S} s")


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


def _devices(devices: Sequence[Device]) -> Callable[[], object]:
    with ThreadPoolExecutor(2) as pool:
        peers = ("cpu:0", "cpu:1")
        joins = [
            pool.submit(Member, device, f"bench {os.getpid()}", rank, peers)
            for rank, device in enumerate(devices)
        ]
    members = [join.result(timeout=60) for join in joins]

    def add() -> None:
        for member in members:
            member.submit()
        for member in members:
            member.wait_done()

    return add
