"""A member of a group that adds up a large array with the others, and the second process of such a
group: `python -m benchmarks.collectives KEY` makes one call for each line that it reads."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import hal
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.values import AllocOptions, Collective, CollectiveKind, GroupSpec

NBYTES = 64 << 20
CALL = Collective(CollectiveKind.ALL_REDUCE, DType.F32, NBYTES // DType.F32.nbytes)
TIMEOUT_S = 60.0


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


def main() -> None:
    with hal.open("cpu:0", wrappers=()) as device:
        member = Member(device, sys.argv[1], 1, ("cpu:0", "cpu:0"))
        for _ in sys.stdin:
            member.submit()
            member.wait_done()


if __name__ == "__main__":
    main()
