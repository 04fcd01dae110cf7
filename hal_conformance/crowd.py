"""Groups of several devices in this process, and calls from several threads."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from hal.core.device import Device
from hal.core.errors import DeadlineExceeded
from hal.core.facts import dataclass
from hal.core.values import (
    Collective,
    Group,
    GroupSpec,
    Point,
    Region,
    Timeline,
    Waits,
)
from hal.tile.numeric import NUMPY
from hal_conformance.collectives import Array, wanted_count
from hal_conformance.expect import Wrong
from hal_conformance.rig import WAIT_S, Rig
from hal_conformance.steps import lines

JOIN_S = 5.0
"""How long members wait for each other in cases where all of them come."""

T = TypeVar("T")
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Member:
    """One rank: its device, its membership and a timeline for its calls."""

    device: Device
    group: Group
    timeline: Timeline

    def call(self, call: Collective, dst: Region, src: Region, waits: Waits = ()) -> Point:
        """Submit this rank's part of a collective."""
        return self.device.collective(self.group, call, dst, src, self.timeline, waits)


def new_key() -> str:
    """A group key that nobody else uses."""
    return f"conformance-{os.getpid()}-{next(_serial)}"


def together(calls: Sequence[Callable[[], T]], timeout_s: float = 2 * WAIT_S) -> list[T]:
    """Run calls at once, a thread each; gives their results, or raises the first one's error."""
    results = []
    for outcome in settled(calls, timeout_s):
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


def settled(
    calls: Sequence[Callable[[], T]], timeout_s: float = 2 * WAIT_S
) -> list[T | BaseException]:
    """As `together`, with the exceptions among the results."""
    outcomes: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            outcomes[index] = calls[index]()
        except BaseException as error:  # noqa: BLE001  it is given to the caller
            outcomes[index] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for index, thread in enumerate(threads):
        thread.join(timeout_s)
        if thread.is_alive():
            raise Wrong(f"member {index} did not come back in {timeout_s} s")
    return outcomes


def join(
    rig: Rig, devices: Sequence[Device], timeout_s: float = JOIN_S, key: str | None = None
) -> list[Member]:
    """A group of these devices, each with a timeline for its calls. `timeout_s` is the deadline of
    the calls, too: where it is short, members that a busy machine let come too late for each
    other meet anew, for `JOIN_S` at most."""
    end = time.monotonic() + JOIN_S
    while True:
        try:
            groups = _groups(devices, timeout_s, key or new_key())
            break
        except DeadlineExceeded:
            if time.monotonic() > end:
                raise
    return [
        Member(device, group, lines(rig, 1, device)[0])
        for device, group in zip(devices, groups, strict=True)
    ]


def _groups(devices: Sequence[Device], timeout_s: float, key: str) -> list[Group]:
    peers = tuple(device.name for device in devices)
    return together(
        [
            partial(device.create_group, GroupSpec(key, rank, peers, timeout_s))
            for rank, device in enumerate(devices)
        ]
    )


def crowd(rig: Rig, size: int, timeout_s: float = JOIN_S) -> list[Member]:
    """A group of the device under test and more devices of its plugin."""
    return join(rig, rig.devices(size), timeout_s)


def perform(
    rig: Rig,
    members: Sequence[Member],
    call: Collective,
    sources: Sequence[Array],
    in_place: bool = False,
) -> list[Array]:
    """Every rank's destination after the collective, each filled with canaries before."""
    sizes = [wanted_count(call, rank, len(members)) for rank in range(len(members))]
    src = [rig.buffer(s, m.device) for s, m in zip(sources, members, strict=True)]
    dst = src
    if not in_place:
        dst = [
            rig.buffer(b"\xc5" * (n * call.dtype.nbytes), m.device)
            for n, m in zip(sizes, members, strict=True)
        ]
    points = [
        m.call(call, d.region(), s.region()) for m, d, s in zip(members, dst, src, strict=True)
    ]
    for member, point in zip(members, points, strict=True):
        rig.done(point, member.device)
    return [
        np.frombuffer(rig.read(d, m.device), NUMPY[call.dtype])
        for d, m in zip(dst, members, strict=True)
    ]
